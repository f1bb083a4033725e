// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/find_value.hpp"

namespace moesim {

const Json* find_value(const Json& json, const std::string& pointer) {
  try {
    return &json.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    return nullptr;
  }
}

}  // namespace moesim
