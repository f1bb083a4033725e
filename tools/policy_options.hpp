// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "hardware/config.hpp"

namespace moesim {

/// A policy on the command line: --policy NAME and its options as --option key=value.
struct PolicyOptions {
  std::string name;
  std::vector<std::string> options;

  void add_to(CLI::App& command) {
    command.add_option("--policy", name, "see `moesim list`")->required();
    command.add_option("--option", options, "key=value for the policy; repeatable")
        ->allow_extra_args(false);
  }

  /// Throws ConfigError if an option is not key=value.
  ConfigNode node() const {
    Json policy{{"type", name}};
    for (const std::string& option : options) {
      const auto equals = option.find('=');
      if (equals == 0 || equals == std::string::npos) {
        throw ConfigError(fmt::format("--option {}: expected key=value", option));
      }
      const std::string value = option.substr(equals + 1);
      Json parsed = Json::parse(value, nullptr, false);
      policy[option.substr(0, equals)] = parsed.is_discarded() ? Json(value) : std::move(parsed);
    }
    return {std::move(policy), "--policy"};
  }
};

}  // namespace moesim
