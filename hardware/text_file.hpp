// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace moesim {

/// No text that is read whole is larger, 1 GiB: it would fill memory before it is found wrong.
constexpr std::uintmax_t largest_text = std::uintmax_t{1} << 30;

/// Throws ConfigError, "is too large; a <kind> has at most 1 GiB", if the file is. A file that is
/// not there is not refused here.
void refuse_huge(const std::filesystem::path& file, std::string_view kind);

/// True if a text begins with the byte order mark of UTF-16, as Windows' shells write files.
constexpr bool is_utf16(std::string_view text) {
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
}
constexpr const char* utf16_refused = "is UTF-16; save it as UTF-8";

}  // namespace moesim
