// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "hardware/config.hpp"

namespace moesim {

/// Writes a file whole or not at all: to a temporary name beside it, then renamed. Throws
/// ConfigError if the folder is missing or not writable.
void write_file(const std::filesystem::path& file, std::string_view content);

/// Writes to stdout.
void print(std::string_view text);

}  // namespace moesim
