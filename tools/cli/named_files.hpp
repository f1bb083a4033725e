// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <spdlog/spdlog.h>

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

/// A file or folder of the command line, or the one of that name beside the program's data: README
/// names files as they stand in a clone, and packages have them elsewhere.
inline std::string here_or_shipped(const std::string& named) {
  std::error_code none;
  if (named.empty() || std::filesystem::exists(named, none)) return named;
  const std::filesystem::path shipped = data_folder() / named;
  if (std::filesystem::path(named).is_absolute() || !std::filesystem::exists(shipped, none))
    return named;
  spdlog::info("{}: taken from {}", named, shipped.string());
  return shipped.string();
}

/// The model that --model names. Throws ConfigError with the nearest names.
inline ConfigNode named_model(const std::string& name) {
  return named_or_inline(ConfigNode(anywhere(name), "--model"), Shipped::model);
}

}  // namespace moesim
