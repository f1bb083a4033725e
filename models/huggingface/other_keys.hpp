// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// Keys of a config.json of that model type that no rule has read and that are switched on. Known
/// harmless ones are left out; the order is that of their names. A key is off with null, false, 0,
/// or nothing in it. Throws ConfigError at a key that changes layers in a way that is not modelled.
std::vector<std::string> unknown_hf_keys(const ConfigReader&, std::string_view family);

}  // namespace moesim
