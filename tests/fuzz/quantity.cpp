// SPDX-License-Identifier: Apache-2.0
// Numbers with units.
#include "hardware/config.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text(data, size);
  fuzz::reads([&] { parse_quantity<Bytes>(text); });
  fuzz::reads([&] { parse_quantity<BytesPerSecond>(text); });
  fuzz::reads([&] { parse_quantity<FlopsPerSecond>(text); });
  fuzz::reads([&] { parse_quantity<PerSecond>(text); });
  return fuzz::reads([&] { to_duration(parse_quantity<Seconds>(text)); });
}
