// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tools/sweep/slo_search.hpp"

namespace moesim {

/// A time above 0 that an option gives, "1s" as well as "1 s", as a config has it: "1 s". Throws
/// ConfigError.
inline std::string duration_of(const std::string& option, std::string text) {
  const std::size_t unit = text.find_first_not_of("0123456789.");
  if (unit != std::string::npos && unit > 0 && text[unit] != ' ') text.insert(unit, " ");
  double seconds = 0;
  try {
    seconds = parse_quantity<Seconds>(text).count();
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", option, error.what()));
  }
  if (seconds <= 0)
    throw ConfigError(fmt::format("{}: {} is out of range; expected more than 0", option, text));
  return text;
}

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
