// SPDX-License-Identifier: Apache-2.0
// Request traces in every format, recognised by their first line.
#include "tests/fuzz/fuzz.hpp"
#include "traces/requests/request_trace.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::File file;
  return fuzz::reads([&] { read_request_trace(file.holding(fuzz::text(data, size))); });
}
