// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"

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
    throw ConfigError("{}: {}", option, error.what());
  }
  if (seconds <= 0) throw ConfigError("{}: {} is out of range; expected more than 0", option, text);
  return text;
}

}  // namespace moesim
