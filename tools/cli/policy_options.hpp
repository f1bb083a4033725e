// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "hardware/config.hpp"
#include "hardware/parse_json.hpp"
#include "tools/cli/option_checks.hpp"

namespace moesim {

/// A policy in one word: name, or name:key=value:key=value; a class of Python, my.py:Mine,
/// likewise. `flag` is where it stands, for messages. Throws ConfigError if an option is not
/// key=value.
inline ConfigNode policy_node(const std::string& word, const std::string& flag) {
  const std::size_t file_end = file_of_class(word.substr(0, word.find('='))).size();
  const std::size_t name_end =
      std::min(word.find(':', file_end == 0 ? 0 : file_end + 1), word.size());
  Json policy{{"type", word.substr(0, name_end)}};
  for (std::size_t first = name_end; first < word.size();) {
    const std::size_t end = std::min(word.find(':', first + 1), word.size());
    const std::string option = word.substr(first + 1, end - first - 1);
    const auto equals = option.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw ConfigError("{} {}: expected name:key=value", flag, word);
    }
    policy[option.substr(0, equals)] = json_or_text(option.substr(equals + 1));
    first = end;
  }
  return {std::move(policy), flag};
}

/// A policy on the command line: --policy NAME and its options as --option key=value.
struct PolicyOptions {
  std::string name;
  std::vector<std::string> options;

  void add_to(CLI::App& command) {
    option(command, "--policy", name, "see `moesim list`", mandatory);
    option(command, "--option", options, "key=value for the policy; repeatable", repeatable);
  }

  /// Throws ConfigError if an option is not key=value.
  ConfigNode node() const {
    Json policy{{"type", name}};
    for (const std::string& option : options) {
      const auto equals = option.find('=');
      if (equals == 0 || equals == std::string::npos) {
        throw ConfigError("--option {}: expected key=value", option);
      }
      policy[option.substr(0, equals)] = json_or_text(option.substr(equals + 1));
    }
    return {std::move(policy), "--policy"};
  }
};

}  // namespace moesim
