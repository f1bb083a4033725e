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

double number_at(const Json& json, const std::string& pointer, double fallback) {
  const Json* const value = find_value(json, pointer);
  return value != nullptr && value->is_number() ? value->get<double>() : fallback;
}

std::string text_at(const Json& json, const std::string& pointer) {
  const Json* const value = find_value(json, pointer);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

}  // namespace moesim
