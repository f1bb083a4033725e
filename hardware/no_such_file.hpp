// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/config.hpp"

namespace moesim {

/// A file that is asked for is not there.
class NoSuchFile : public ConfigError {
 public:
  explicit NoSuchFile(const std::filesystem::path& file)
      : ConfigError("{}: no such file", file.string()) {}
};

}  // namespace moesim
