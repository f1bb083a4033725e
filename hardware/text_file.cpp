// SPDX-License-Identifier: Apache-2.0
#include "hardware/text_file.hpp"

#include <system_error>

#include "hardware/config.hpp"

namespace moesim {

void refuse_huge(const std::filesystem::path& file, std::string_view kind) {
  std::error_code gone;
  const auto size = std::filesystem::file_size(file, gone);
  if (!gone && size > largest_text)
    throw ConfigError("{}: is too large; a {} has at most 1 GiB", file.string(), kind);
}

}  // namespace moesim
