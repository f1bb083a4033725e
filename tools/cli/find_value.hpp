// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"

namespace moesim {

/// The value at a JSON pointer, or nullptr where there is none.
const Json* find_value(const Json& json, const std::string& pointer);

}  // namespace moesim
