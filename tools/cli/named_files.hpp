// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "hardware/config.hpp"
#include "hardware/shipped.hpp"

namespace moesim {

/// Names that --model may have, for help texts.
inline constexpr const char* model_option =
    "a HuggingFace config.json or its folder, a file of the zoo's form, or a name of moesim list "
    "models";

/// A path of the command line as a config anywhere can have it; a short name stays one.
inline Json anywhere(const std::string& named) {
  std::error_code none;
  return std::filesystem::exists(named, none) ? std::filesystem::absolute(named).string() : named;
}

/// The model that --model names. Throws ConfigError with the nearest names.
inline ConfigNode named_model(const std::string& name) {
  return named_or_inline(ConfigNode(anywhere(name), "--model"), Shipped::model);
}

}  // namespace moesim
