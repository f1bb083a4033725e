// SPDX-License-Identifier: Apache-2.0
#include "hardware/tables/table_file.hpp"

#include <algorithm>
#include <charconv>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include "hardware/config.hpp"
#include "hardware/text_file.hpp"

namespace moesim {

namespace {

void split(std::string_view line, char separator, std::vector<std::string_view>& fields) {
  while (true) {
    const std::size_t end = line.find(separator);
    fields.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return;
    line.remove_prefix(end + 1);
  }
}

struct CloseGz {
  void operator()(gzFile file) const { gzclose(file); }
};

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

}  // namespace

std::string decompressed(const std::filesystem::path& file, std::string_view kind) {
  refuse_huge(file, kind);
  std::unique_ptr<gzFile_s, CloseGz> in(gzopen(file.c_str(), "rb"));
  if (!in) throw ConfigError("{}: cannot be read", file.string());
  constexpr std::size_t step = std::size_t{1} << 20;
  constexpr std::string_view damaged = "is damaged or cut short; fetch it again";
  std::string text;
  while (true) {
    const std::size_t size = text.size();
    if (size > largest_text)
      throw ConfigError("{}: is too large; a {} has at most 1 GiB of text", file.string(), kind);
    text.resize(size + step);
    const int read = gzread(in.get(), text.data() + size, step);
    if (read < 0) throw ConfigError("{}: {}", file.string(), damaged);
    text.resize(size + at(read));
    if (read == 0) break;
  }
  // Only closing tells that the end of the data, its sum or its length are not there. Without even
  // its first two bytes a compressed file reads as text.
  const bool compressed = gzdirect(in.get()) == 0;
  if (gzclose_r(in.release()) != Z_OK || (file.extension() == ".gz" && !compressed))
    throw ConfigError("{}: {}", file.string(), damaged);
  if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
  return text;
}

std::string_view TableRow::text_or_none(std::string_view column) const {
  const auto found = std::ranges::find(columns_, column);
  if (found == columns_.end()) return {};
  return fields[at(found - columns_.begin())];
}

std::string_view TableRow::text(std::string_view column) const {
  if (std::ranges::find(columns_, column) == columns_.end())
    throw ConfigError("{}: the header has no column \"{}\"; it names {}", place_, column,
                      fmt::join(columns_, ", "));
  return text_or_none(column);
}

double TableRow::number(std::string_view column, double fallback) const {
  return text_or_none(column).empty() ? fallback : number(column);
}

double TableRow::number(std::string_view column) const {
  const std::string_view field = text(column);
  double value = 0;
  const char* const end = field.data() + field.size();
  const bool read = std::from_chars(field.data(), end, value).ptr == end && !field.empty();
  if (!read || !(value >= 0 && value < 1e15)) {
    throw ConfigError("{}: {} \"{}\" is not a number of at least 0", place_, column, field);
  }
  return value;
}

void read_table(const std::filesystem::path& file,
                const std::function<void(const TableRow&)>& visit) {
  const std::string text = decompressed(file, "table");
  std::vector<std::string> columns;
  std::vector<std::string_view> fields, points;
  std::size_t plain = 0;  // columns before the series
  std::string place;
  TableRow row(columns, place);
  int number = 0;
  std::string_view rest = text;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);  // a byte order mark
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    fields.clear();
    split(line, ',', fields);
    if (columns.empty()) {
      plain = fields.size();
      if (fields.back().find(':') != std::string_view::npos) {
        const std::string_view series = fields.back();
        fields.pop_back();
        plain = fields.size();
        split(series, ':', fields);
      }
      columns.assign(fields.begin(), fields.end());
      continue;
    }
    place = fmt::format("{}:{}", file.string(), number);
    const auto check = [&] {
      if (row.fields.size() == columns.size()) return;
      throw ConfigError("{}: {} fields; the header names {}", place, row.fields.size(),
                        columns.size());
    };
    if (plain == columns.size()) {
      row.fields = fields;
      check();
      visit(row);
      continue;
    }
    points.clear();
    if (fields.size() == plain + 1) split(fields.back(), ' ', points);
    fields.resize(std::min(plain, fields.size()));
    for (const std::string_view point : points) {
      row.fields = fields;
      split(point, ':', row.fields);
      check();
      visit(row);
    }
    if (points.empty()) throw ConfigError("{}: no series of points", place);
  }
  if (columns.empty()) throw ConfigError("{}: no header line", file.string());
}

}  // namespace moesim
