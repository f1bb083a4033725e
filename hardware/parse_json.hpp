// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "hardware/config.hpp"

namespace moesim {

/// Parses JSON from another program. NaN, Infinity and -Infinity, as Python writes them, are null.
/// Throws ConfigError, without a file, if it is not JSON, has a key twice in one object, or is
/// nested deeper than 64. (Values are copied by recursion, which a hostile text could make as deep
/// as it is long.)
Json parse_json(std::string_view text);

/// Parses JSON that moesim wrote itself, where duplicate keys need not be looked for.
Json parse_written_json(std::string_view text);

/// Parses as parse_json(). Text that is no JSON, or nested too deep, is returned as it is: a value
/// on the command line.
Json json_or_text(std::string_view text);

/// Control characters, which a name of a file or a key may hold, as JSON escapes them: what is said
/// of it stays one line.
std::string one_line(std::string_view message);

}  // namespace moesim
