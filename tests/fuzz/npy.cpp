// SPDX-License-Identifier: Apache-2.0
// Arrays as numpy saves them.
#include "traces/npy.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::File file;
  return fuzz::reads([&] { NpyArray::open(file.holding(fuzz::text(data, size))).to_doubles(); });
}
