// SPDX-License-Identifier: Apache-2.0
// Request traces in every format, recognised by their first line; and files of sessions.
#include "tests/fuzz/fuzz.hpp"
#include "traces/requests/request_trace.hpp"
#include "traces/sessions/session_file.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::File file;
  const auto path = file.holding(fuzz::text(data, size));
  fuzz::reads([&] { read_session_file(path, 512); });
  return fuzz::reads([&] { read_request_trace(path); });
}
