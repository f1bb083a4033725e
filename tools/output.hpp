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

/// Throws ConfigError if write_file() to `file` could not succeed: asked before long work. An empty
/// name is none.
void require_writable(const std::filesystem::path& file);

/// Breaks a text at spaces into lines of at most `columns`; all but the first are indented.
std::string wrapped(std::string_view text, std::size_t columns = 100, std::size_t indent = 0);

/// Writes to stdout.
void print(std::string_view text);

}  // namespace moesim
