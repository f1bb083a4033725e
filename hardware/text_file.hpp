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

/// Reason why bytes are no text that can be read, or nullptr. They begin with the byte order mark
/// of UTF-16, as Windows' shells write files, or as gzip's do.
constexpr const char* unreadable(std::string_view bytes) {
  if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF"))
    return "is UTF-16; save it as UTF-8";
  if (bytes.starts_with("\x1F\x8B\x08")) return "is compressed by gzip; unpack it with gunzip";
  return nullptr;
}

}  // namespace moesim
