// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "hardware/config.hpp"

namespace moesim {

/// The value at a JSON pointer, or nullptr where there is none.
const Json* find_value(const Json& json, const std::string& pointer);

/// The value at a JSON pointer; null where there is none.
Json value_at(const Json& json, const std::string& pointer);
/// The number at a JSON pointer; nothing where there is none.
std::optional<double> found_number(const Json& json, const std::string& pointer);
/// The number at a JSON pointer, or `fallback` where there is none: for a value that another reader
/// checks.
double number_at(const Json& json, const std::string& pointer, double fallback);
/// The text at a JSON pointer, or "" where there is none.
std::string text_at(const Json& json, const std::string& pointer);

}  // namespace moesim
