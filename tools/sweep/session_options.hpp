// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "tools/cli/duration.hpp"
#include "tools/sweep/slo_search.hpp"

namespace moesim {

/// The options that limit sessions.
struct SessionOptions {
  std::string ttft_first, ttft_later, completion;

  void add_to(CLI::App& command) {
    command.add_option("--ttft-first", ttft_first,
                       "limit of p90 TTFT of the first turns of sessions");
    command.add_option("--ttft-later", ttft_later, "limit of p90 TTFT of all other turns");
    command.add_option("--session-p90", completion,
                       "limit of the p90 time from a session's first request to its last reply");
  }
  bool any() const { return !(ttft_first + ttft_later + completion).empty(); }
  SessionLimits read() const {
    const auto limit = [](const char* option, const std::string& text) -> std::optional<Seconds> {
      if (text.empty()) return std::nullopt;
      return parse_quantity<Seconds>(duration_of(option, text));
    };
    return {.first_ttft = limit("--ttft-first", ttft_first),
            .later_ttft = limit("--ttft-later", ttft_later),
            .completion = limit("--session-p90", completion)};
  }
};

}  // namespace moesim
