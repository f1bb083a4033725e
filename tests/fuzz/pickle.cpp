// SPDX-License-Identifier: Apache-2.0
// What torch.save() pickles.
#include "traces/import/pickle.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::reads([&] { Pickle(fuzz::text(data, size)).value(); });
}
