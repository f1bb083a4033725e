// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

#include "hardware/config.hpp"

namespace moesim {

/// Parses the YAML that configurations of numbers consist of, as PyYAML writes it. These are nested
/// block mappings, lists of whole numbers in block or flow style ("- 1" lines, "[1, 2]" over any
/// number of lines), flow mappings of these, comments. Keys are words or numbers. Everything else
/// (texts, anchors, several documents, tabs) is refused: ConfigError "file:line: ...".
Json parse_plain_yaml(std::string_view text, const std::filesystem::path& file);

}  // namespace moesim
