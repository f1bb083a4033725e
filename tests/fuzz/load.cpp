// SPDX-License-Identifier: Apache-2.0
// Observed loads of experts, as JSON.
#include "sim/placement/files/placement_file.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "traces/expert_load.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::File file;
  return fuzz::reads([&] { read_load(file.holding(fuzz::text(data, size))); });
}
