// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>

#include "hardware/units.hpp"

namespace moesim {

namespace {

bool numeric(const std::string& cell) {
  if (cell.empty() || cell == "-") return true;
  char* end = nullptr;
  std::strtod(cell.c_str(), &end);
  // "1.5x" and "+3.1 %" are numbers to a reader.
  return end != cell.c_str() && cell.size() - static_cast<std::size_t>(end - cell.c_str()) <= 2;
}

// Columns, not bytes: UTF-8 continuation bytes take none.
std::size_t width(const std::string& cell) {
  return static_cast<std::size_t>(std::count_if(cell.begin(), cell.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// The lines of a head's cells as rows; a cell of fewer lines than another stands at the bottom.
std::vector<std::vector<std::string>> head_rows(const std::vector<std::string>& head) {
  std::vector<std::vector<std::string>> lines_of;
  std::size_t most = 1;
  for (const std::string& cell : head) {
    std::istringstream text(cell);
    auto& lines = lines_of.emplace_back();
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    most = std::max(most, lines.size());
  }
  std::vector<std::vector<std::string>> rows(most, std::vector<std::string>(head.size()));
  for (std::size_t c = 0; c < head.size(); ++c) {
    const std::size_t above = most - lines_of[c].size();
    for (std::size_t r = above; r < most; ++r) rows[r][c] = lines_of[c][r - above];
  }
  return rows;
}

}  // namespace

Table::Table(const std::vector<std::string>& head) : rows_(head_rows(head)), heads_(rows_.size()) {}

void Table::add(std::vector<std::string> row) {
  check(row.size() == rows_.front().size(),
        "a table row has another number of cells than its head");
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> widths(columns);
  std::vector<bool> right(columns, rows_.size() > heads_);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      widths[c] = std::max(widths[c], width(rows_[r][c]));
      if (r >= heads_ && !numeric(rows_[r][c])) right[c] = false;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(widths[c] - width(row[c]), ' ');
      if (c > 0) line += "  ";
      line += right[c] ? padding + row[c] : row[c] + padding;
    }
    while (line.ends_with(' ')) line.pop_back();
    text += line + '\n';
  }
  return text;
}

std::string number_text(double value) {
  const double size = std::abs(value);
  const int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace moesim
