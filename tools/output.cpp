// SPDX-License-Identifier: Apache-2.0
#include "tools/output.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

namespace moesim {

namespace {

[[noreturn]] void cannot_write(const std::filesystem::path& file, std::string_view why) {
  throw ConfigError(fmt::format("{}: cannot be written ({}); name a file in a writable folder",
                                file.string(), why));
}

}  // namespace

void require_writable(const std::filesystem::path& file) {
  if (file.empty()) return;
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (error && error != std::errc::no_such_file_or_directory) cannot_write(file, error.message());
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    cannot_write(file, "it is not a regular file");
  }
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (::access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(file, std::strerror(errno));
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  // Leading spaces stay: they are the first line's own indentation.
  std::size_t used = std::min(text.find_first_not_of(' '), text.size());
  std::string lines(text.substr(0, used));
  text.remove_prefix(used);
  for (bool first = true; !text.empty(); first = false) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool breaks = !first && used + 1 + word.size() > columns;
    if (breaks) {
      lines += '\n' + std::string(indent, ' ');
      used = indent;
    } else if (!first) {
      lines += ' ';
      ++used;
    }
    lines += word;
    used += word.size();
  }
  return lines;
}

void write_file(const std::filesystem::path& named, std::string_view content) {
  require_writable(named);
  // Through a link to what it names: renaming onto the link would replace it.
  std::error_code error;
  std::filesystem::path file = std::filesystem::canonical(named, error);
  if (error) file = named;
  std::filesystem::path temporary = file;
  temporary += fmt::format(".{}.tmp", ::getpid());
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  stream.close();
  error.clear();
  if (stream) std::filesystem::rename(temporary, file, error);
  if (!stream || error) {
    const std::string why = error ? error.message() : std::strerror(errno);
    std::filesystem::remove(temporary, error);
    cannot_write(file, why);
  }
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace moesim
