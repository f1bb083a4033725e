// SPDX-License-Identifier: Apache-2.0
#include "tools/policies/new_trace.hpp"

#include "hardware/config.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

void check_new_directory(const std::filesystem::path& directory) {
  std::error_code nowhere;
  if (std::filesystem::is_empty(directory, nowhere) || nowhere) return;
  throw ConfigError("{}: exists already; name a new directory", directory.string());
}

void write_new_trace(const RoutingTrace& trace, const std::filesystem::path& directory) {
  const auto [ids, requests, meta] = unfinished_trace_files(directory);
  const RemovedWhenStopped ids_left(ids), requests_left(requests), meta_left(meta);
  write_trace(trace, directory);
}

}  // namespace moesim
