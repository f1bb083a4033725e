// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>

namespace moesim {

/// The folder with hardware/, models/ and configs/ where data files are looked for unless a command
/// says otherwise: what the environment variable MOESIM_DATA names, else share/moesim beside the
/// installed program, else the source tree that the program was built from.
inline std::filesystem::path data_folder() {
  if (const char* named = std::getenv("MOESIM_DATA"); named != nullptr && *named != '\0')
    return named;
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto installed = (program.parent_path() / MOESIM_INSTALLED_DATA).lexically_normal();
  if (std::filesystem::is_directory(installed / "hardware", none)) return installed;
  return MOESIM_SOURCE_DIR;
}

}  // namespace moesim
