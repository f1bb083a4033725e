// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "hardware/text_file.hpp"

namespace moesim {

/// A file's bytes, mapped read-only: opening costs nothing however long the file is, and copies
/// share the mapping.
class MappedFile {
 public:
  /// Throws ConfigError if the file is missing, empty, not regular (directory, pipe, device) or not
  /// readable.
  explicit MappedFile(const std::filesystem::path& file);

  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), size_}; }
  /// Keeps the mapping alive.
  std::shared_ptr<const void> storage() const { return data_; }

  /// These bytes of a mapping need not stay in memory: the next access reads them again.
  static void forget(std::span<const std::byte>);

 private:
  std::shared_ptr<const std::byte> data_;
  std::size_t size_ = 0;
};

[[noreturn]] void refuse_long_line(const std::filesystem::path& file, std::size_t number);

/// Calls fn(line_number, line) for every line of a text that is not blank; line ends of either kind
/// are cut off. Lines count from 1. Calls too_long(line_number), and ends, at a line of more than
/// `longest` bytes.
template <class Fn, class TooLong>
void for_each_line(std::string_view text, std::size_t longest, Fn&& fn, TooLong&& too_long) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.substr(0, longest + 1).find('\n');
    if (end == std::string_view::npos && text.size() > longest) return too_long(number);
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) fn(number, line);
  }
}

/// The first line of a file that is not blank, without its end; empty: there is none. Reads no more
/// than that line. Throws as for_each_line() does.
std::string first_line(const std::filesystem::path& file);

/// Calls fn(line_number, line) for the lines of a text that may have any length.
template <class Fn>
void for_each_line(std::string_view text, Fn&& fn) {
  for_each_line(text, text.size(), fn, [](std::size_t) {});
}

/// Calls fn(line_number, line) for the lines of a file, none longer than 1 GiB: one request with
/// its routing is shorter. Throws ConfigError, also as MappedFile does.
template <class Fn>
void for_each_line(const std::filesystem::path& file, Fn&& fn) {
  for_each_line(MappedFile(file).text(), largest_text, fn,
                [&](std::size_t number) { refuse_long_line(file, number); });
}

}  // namespace moesim
