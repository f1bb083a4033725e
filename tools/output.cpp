// SPDX-License-Identifier: Apache-2.0
#include "tools/output.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

namespace moesim {

void write_file(const std::filesystem::path& file, std::string_view content) {
  std::filesystem::path temporary = file;
  temporary += fmt::format(".{}.tmp", ::getpid());
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(temporary, file, error);
  if (!stream || error) {
    const std::string why = error ? error.message() : std::strerror(errno);
    std::filesystem::remove(temporary, error);
    throw ConfigError(fmt::format("{}: cannot be written ({}); name a file in a writable folder",
                                  file.string(), why));
  }
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace moesim
