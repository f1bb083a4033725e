// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/output.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "hardware/quoting.hpp"

namespace moesim {

namespace {

[[noreturn]] void cannot_write(const std::filesystem::path& file, std::string_view why) {
  throw ConfigError("{}: cannot be written ({}); name a file in a writable folder", file.string(),
                    why);
}

// Target of a link: renaming onto the link would replace it.
std::filesystem::path through_link(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(file, error);
  return error ? file : target;
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

// The folders above a file that are missing, from the outermost on.
std::vector<std::filesystem::path> missing_folders_of(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  for (std::filesystem::path folder = file.parent_path();
       !folder.empty() && !std::filesystem::exists(folder, ignored); folder = folder.parent_path())
    missing.push_back(folder);
  std::ranges::reverse(missing);
  return missing;
}

// Removes folders that hold nothing.
void remove_folders(const std::vector<std::filesystem::path>& folders) {
  std::error_code ignored;
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder)
    std::filesystem::remove(*folder, ignored);
}

// The names of files that are not whole yet, where a signal handler, which may neither lock nor
// allocate, finds them. More than that many at once stay if a signal ends the program.
std::array<std::atomic<const char*>, 16> unfinished{};
static_assert(std::atomic<const char*>::is_always_lock_free);

void remove_unfinished(int received) {
  for (const auto& name : unfinished) {
    const char* const file = name;
    if (file != nullptr) ::unlink(file);
  }
  std::signal(received, SIG_DFL);
  std::raise(received);
}

// Has an interrupted program remove this file, whose name stays where it is. What else handles a
// signal, or ignores it, goes on doing so.
void note_unfinished(const char* file) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const auto before = std::signal(number, remove_unfinished);
    if (before != SIG_DFL && before != remove_unfinished) std::signal(number, before);
  }
  for (auto& place : unfinished) {
    const char* none = nullptr;
    if (place.compare_exchange_strong(none, file)) return;
  }
}

void forget_unfinished(const char* file) {
  for (auto& place : unfinished) {
    const char* known = file;
    place.compare_exchange_strong(known, nullptr);
  }
}

// Text that print() adds to, if not stdout.
std::string* printed_to = nullptr;

// True if it begins as every SQLite file.
bool is_store(const std::filesystem::path& file) {
  constexpr std::string_view magic = "SQLite format 3";
  std::array<char, magic.size()> begin{};
  std::ifstream(file, std::ios::binary).read(begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == magic;
}

}  // namespace

void require_writable(const std::filesystem::path& file) {
  if (file.empty()) return;
  require_writable_folder(file);  // first: reading what is no regular file may never end
  if (is_store(file))
    throw ConfigError("{}: is a store of results, which would be lost; name another file",
                      file.string());
}

void require_writable_folder(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (error && error != std::errc::no_such_file_or_directory) cannot_write(file, error.message());
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    cannot_write(file, "not a regular file");
  }
  const auto missing = missing_folders_of(file);
  const std::filesystem::path folder = folder_of(missing.empty() ? file : missing.front());
  if (!std::filesystem::is_directory(folder, error))
    cannot_write(file, fmt::format("{} is not a folder", folder.string()));
  if (::access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(file, std::strerror(errno));
}

void require_different(std::initializer_list<NamedFile> files) {
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code ignored;
    return a == b || std::filesystem::equivalent(a, b, ignored) ||
           std::filesystem::weakly_canonical(a, ignored) ==
               std::filesystem::weakly_canonical(b, ignored);
  };
  for (auto one = files.begin(); one != files.end(); ++one) {
    for (auto other = files.begin(); other != one; ++other) {
      if (one->file.empty() || !same(one->file, other->file)) continue;
      throw ConfigError("{} and {} name one file, {}; name two", other->argument, one->argument,
                        one->file);
    }
  }
}

std::vector<std::filesystem::path> create_folders_of(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> created;
  for (const std::filesystem::path& folder : missing_folders_of(file)) {
    std::error_code error;
    if (std::filesystem::create_directory(folder, error)) {
      created.push_back(folder);
    } else if (error) {  // without an error another program has created the folder
      remove_folders(created);
      cannot_write(file, error.message());
    }
  }
  return created;
}

void require_stem(const std::filesystem::path& name) {
  std::error_code error;
  const auto status = std::filesystem::status(name, error);
  if (!name.has_filename())
    throw ConfigError("{}: is a folder; name the files in it, e.g. {}", name.string(),
                      (name / "plan").string());
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    cannot_write(name, "not a regular file");
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  // Leading spaces stay: they are the first line's own indentation.
  std::size_t used = std::min(text.find_first_not_of(' '), text.size());
  std::string lines(text.substr(0, used));
  text.remove_prefix(used);
  for (bool first = true; !text.empty(); first = false) {
    std::size_t end = std::min(text.find(' '), text.size());
    // A sign stays with its number.
    while (text.substr(end).starts_with(" %")) end = std::min(text.find(' ', end + 1), text.size());
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

std::string paragraph(std::string_view text) { return wrapped(text) + "\n"; }
std::string indented(std::string_view text, std::size_t indent) {
  return wrapped(text, 100, indent) + "\n";
}

OutputFile::OutputFile(const std::filesystem::path& file) : named_(file) {
  require_writable(file);
  created_ = create_folders_of(file);
  temporary_ = through_link(file);
  temporary_ += fmt::format(".{}.tmp", ::getpid());
  note_unfinished(temporary_.c_str());
  stream_.open(temporary_, std::ios::binary | std::ios::trunc);
}

OutputFile::~OutputFile() {
  std::error_code error;
  if (!temporary_.empty()) {
    std::filesystem::remove(temporary_, error);
    remove_folders(created_);
  }
  forget_unfinished(temporary_.c_str());
}

void OutputFile::write(std::string_view text) {
  stream_.write(text.data(), static_cast<std::streamsize>(text.size()));
}

void OutputFile::commit() {
  stream_.close();
  if (!stream_) cannot_write(named_, std::strerror(errno));
  std::error_code error;
  std::filesystem::rename(temporary_, through_link(named_), error);
  if (error) cannot_write(named_, error.message());
  forget_unfinished(temporary_.c_str());
  temporary_.clear();
}

void write_file(const std::filesystem::path& named, std::string_view content) {
  OutputFile file(named);
  file.write(content);
  file.commit();
}

RemovedWhenStopped::RemovedWhenStopped(std::string file) : file_(std::move(file)) {
  note_unfinished(file_.c_str());
}

RemovedWhenStopped::~RemovedWhenStopped() { forget_unfinished(file_.c_str()); }

std::string csv_field(const std::string& text) {
  const bool plain = text.empty() || (text.front() != ' ' && text.back() != ' ' &&
                                      text.find_first_of(",\"\n\r") == std::string::npos);
  if (plain) return text;
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + "\"";
}

std::string csv_cell(const std::string& text) {
  // Spreadsheets take what begins so for a formula. One apostrophe more than the text has says that
  // it is none, and readers of tables take it off.
  const std::size_t begins = text.find_first_not_of('\'');
  const bool formula = begins != std::string::npos && text.size() > 1 &&
                       std::string_view("=+-@\t\r").find(text[begins]) != std::string_view::npos;
  return csv_field(formula ? "'" + text : text);
}

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number()) return value.dump();  // -1 is no formula
  return csv_cell(value.is_string() ? value.get<std::string>() : value.dump());
}

std::string csv_of(const OrderedJson& rows) {
  std::string csv;
  for (const OrderedJson& row : rows) {
    std::vector<std::string> names, cells;
    for (const auto& item : row.items()) {
      names.push_back(csv_cell(item.key()));
      cells.push_back(csv_cell(Json(item.value())));
    }
    if (csv.empty()) csv = fmt::format("{}\n", fmt::join(names, ","));
    csv += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return csv;
}

PrintedText::PrintedText() { printed_to = &text_; }
PrintedText::~PrintedText() { printed_to = nullptr; }

// A name out of a config or a store never reaches a terminal as an escape sequence.
void print(std::string_view text) {
  const std::string shown = visible(text);
  if (printed_to != nullptr) {
    *printed_to += shown;
    return;
  }
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

}  // namespace moesim
