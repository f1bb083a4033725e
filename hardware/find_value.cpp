// SPDX-License-Identifier: Apache-2.0
#include "hardware/find_value.hpp"

namespace moesim {

const Json* find_value(const Json& json, const std::string& pointer) {
  try {
    return &json.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    return nullptr;
  }
}

Json value_at(const Json& json, const std::string& pointer) {
  const Json* const value = find_value(json, pointer);
  return value == nullptr ? Json() : *value;
}

std::optional<double> found_number(const Json& json, const std::string& pointer) {
  const Json* const value = find_value(json, pointer);
  return value != nullptr && value->is_number() ? std::optional(value->get<double>())
                                                : std::nullopt;
}

double number_at(const Json& json, const std::string& pointer, double fallback) {
  return found_number(json, pointer).value_or(fallback);
}

std::string text_at(const Json& json, const std::string& pointer) {
  const Json* const value = find_value(json, pointer);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

}  // namespace moesim
