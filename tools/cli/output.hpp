// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "hardware/config.hpp"

namespace moesim {

/// Creates the folders above `file` that are missing, and answers them from the outermost on.
/// Throws ConfigError if one cannot be created, and then leaves none.
std::vector<std::filesystem::path> create_folders_of(const std::filesystem::path& file);

/// Writes a file whole or not at all: to a temporary name beside it, then renamed. Missing folders
/// are created. Throws ConfigError if the folder is not writable.
void write_file(const std::filesystem::path& file, std::string_view content);

/// A file that is written piece by piece and appears under its name, whole, at commit(). Without
/// commit() nothing is left of it, nor of the folders that were created for it.
class OutputFile {
 public:
  /// Throws ConfigError if the folder is not writable.
  explicit OutputFile(const std::filesystem::path& file);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::string_view text);
  /// Throws ConfigError if anything could not be written.
  void commit();

 private:
  std::filesystem::path named_, temporary_;
  std::vector<std::filesystem::path> created_;  // folders that go if this file never comes to be
  std::ofstream stream_;
};

/// A file written elsewhere that a program stopped by SIGINT, SIGTERM or SIGHUP removes, for as
/// long as this object lives.
class RemovedWhenStopped {
 public:
  explicit RemovedWhenStopped(std::string file);
  RemovedWhenStopped(const RemovedWhenStopped&) = delete;
  RemovedWhenStopped& operator=(const RemovedWhenStopped&) = delete;
  ~RemovedWhenStopped();

 private:
  std::string file_;
};

/// Throws ConfigError if write_file() to `file` could not succeed, or would replace a store of
/// results: asked before long work. Creates nothing. An empty name is none.
void require_writable(const std::filesystem::path& file);
/// The same, where a store may be there already and is added to.
void require_writable_folder(const std::filesystem::path& file);

/// An argument that names a file, and the file; empty if not given.
struct NamedFile {
  std::string_view argument;
  std::string file;
};
/// Throws ConfigError if two arguments name one file, so that what is written would replace the
/// other.
void require_different(std::initializer_list<NamedFile>);

/// Throws ConfigError if a name to which endings are added is a folder's or a device's:
/// "/dev/null", "out/".
void require_stem(const std::filesystem::path& name);

/// Breaks a text at spaces into lines of at most `columns`; all but the first are indented.
std::string wrapped(std::string_view text, std::size_t columns = 100, std::size_t indent = 0);
/// The same at 100 columns, with the end of its last line.
std::string paragraph(std::string_view text);
std::string indented(std::string_view text, std::size_t indent);
template <class... Args>
std::string paragraph(fmt::format_string<Args...> format, Args&&... args) {
  return paragraph(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

/// A text as a field of a CSV file: in quotes where it needs them (RFC 4180).
std::string csv_field(const std::string& text);
/// The same of a name from outside: behind an apostrophe where a spreadsheet would take the name
/// for a formula.
std::string csv_cell(const std::string& text);
/// A value as a cell of a CSV file: texts bare, null empty, all else as JSON.
std::string csv_cell(const Json& value);
/// Rows of a table, objects with the same names, as a CSV file: the names, then a line for each
/// row.
std::string csv_of(const OrderedJson& rows);

/// Writes to stdout, hidden characters written out (visible()).
void print(std::string_view text);

/// Text that is printed while this object lives, in the place of stdout. One at a time.
class PrintedText {
 public:
  PrintedText();
  PrintedText(const PrintedText&) = delete;
  PrintedText& operator=(const PrintedText&) = delete;
  ~PrintedText();
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace moesim
