// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

/// A measured time of a table, with what its line and its place in the line's series say.
class TableRow {
 public:
  TableRow(const std::vector<std::string>& columns, const std::string& place)
      : columns_(columns), place_(place) {}
  /// The text in a column that must be there. Throws ConfigError "file:line: ..." if it is not.
  std::string_view text(std::string_view column) const;
  /// Empty where there is no such column.
  std::string_view text_or_none(std::string_view column) const;
  /// A number of at least 0; `fallback` where the column is absent or empty. Throws ConfigError
  /// "file:line: ..." if it is none.
  double number(std::string_view column, double fallback) const;
  /// A number of at least 0 in a column that must be there.
  double number(std::string_view column) const;
  const std::string& place() const { return place_; }
  const std::vector<std::string>& columns() const { return columns_; }
  std::vector<std::string_view> fields;

 private:
  const std::vector<std::string>& columns_;
  const std::string& place_;
};

/// The text of a file, compressed by gzip or plain, without a byte order mark. `kind` names it in
/// messages: "table". Throws ConfigError if the file cannot be read, is damaged, or has more than
/// 1 GiB of text.
std::string decompressed(const std::filesystem::path& file, std::string_view kind);

/// Reads a table of kernel times, plain or compressed by gzip: CSV without quotes, one header line.
/// A last column named "a:b:..." holds a series, points "1:2.5 2:2.6" separated by spaces, whose
/// parts stand for columns a, b, ...; then `visit` is called for each point of each line. Throws
/// ConfigError.
void read_table(const std::filesystem::path& file,
                const std::function<void(const TableRow&)>& visit);

}  // namespace moesim
