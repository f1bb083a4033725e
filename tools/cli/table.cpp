// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "hardware/units.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

bool numeric(const std::string& cell) {
  if (cell.empty() || cell == "-") return true;
  char* end = nullptr;
  std::strtod(cell.c_str(), &end);
  // "1.5x" and "+3.1 %" are numbers to a reader.
  return end != cell.c_str() && cell.size() - at(end - cell.c_str()) <= 2;
}

// Columns, not bytes: UTF-8 continuation bytes take none.
std::size_t width(const std::string& cell) {
  return at(std::ranges::count_if(
      cell, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::string> lines_of(const std::string& cell) {
  std::istringstream text(cell);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::size_t widest_line(const std::string& cell) {
  std::size_t widest = 0;
  for (const std::string& line : lines_of(cell)) widest = std::max(widest, width(line));
  return widest;
}

// A head whose lines break at spaces, each as wide as the cells below unless a word is wider.
std::string broken(const std::string& head, std::size_t cells) {
  std::string text;
  for (const std::string& line : lines_of(head)) {
    if (!text.empty()) text += '\n';
    text += wrapped(line, cells);
  }
  return text;
}

// The lines of a head's cells as rows; a cell of fewer lines than another stands at the bottom.
std::vector<std::vector<std::string>> head_rows(const std::vector<std::string>& head) {
  std::vector<std::vector<std::string>> lines;
  std::size_t most = 1;
  for (const std::string& cell : head)
    most = std::max(most, lines.emplace_back(lines_of(cell)).size());
  std::vector<std::vector<std::string>> rows(most, std::vector<std::string>(head.size()));
  for (std::size_t c = 0; c < head.size(); ++c) {
    const std::size_t above = most - lines[c].size();
    for (std::size_t r = above; r < most; ++r) rows[r][c] = lines[c][r - above];
  }
  return rows;
}

constexpr std::size_t gap = 2;

}  // namespace

void Table::add(std::vector<std::string> row) {
  check(row.size() == head_.size(), "a table row has another number of cells than its head");
  rows_.push_back(std::move(row));
}

std::string Table::text() const { return text(output_columns().value_or(usual_columns)); }

std::string Table::text(std::size_t columns) const {
  std::vector<std::string> head = head_;
  std::vector<std::size_t> cells(head.size()), widths(head.size());
  for (std::size_t c = 0; c < head.size(); ++c) {
    for (const auto& row : rows_) cells[c] = std::max(cells[c], width(row[c]));
    widths[c] = std::max(cells[c], widest_line(head[c]));
  }
  const auto total = [&] {
    return std::accumulate(widths.begin(), widths.end(), gap * (widths.size() - 1));
  };
  for (std::size_t c = 0; c < head.size() && total() > columns; ++c) {
    head[c] = broken(head[c], cells[c]);
    widths[c] = std::max(cells[c], widest_line(head[c]));
  }
  std::vector<std::size_t> all(head.size());
  std::iota(all.begin(), all.end(), 0);
  if (total() <= columns) return block(all, head);

  std::size_t label_width = 0, labels = this->labels();
  for (std::size_t c = 0; c < labels; ++c) label_width += widths[c] + gap;
  if (3 * label_width > 2 * columns) {
    labels = 1;
    label_width = widths[0] + gap;
  }
  const std::vector<std::size_t> label(all.begin(),
                                       all.begin() + static_cast<std::ptrdiff_t>(labels));
  std::string text;
  for (std::size_t c = labels; c < head.size();) {
    std::vector<std::size_t> chosen = label;
    std::size_t used = label_width + widths[c];
    chosen.push_back(c++);
    while (c < head.size() && used + gap + widths[c] <= columns) {
      used += gap + widths[c];
      chosen.push_back(c++);
    }
    if (!text.empty()) text += '\n';
    text += block(chosen, head);
  }
  return text;
}

// How many columns on the left tell all rows apart; 1 if all columns do not.
std::size_t Table::labels() const {
  for (std::size_t count = 1; count < head_.size(); ++count) {
    std::set<std::vector<std::string>> seen;
    for (const auto& row : rows_)
      seen.emplace(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(count));
    if (seen.size() == rows_.size()) return count;
  }
  return 1;
}

std::string Table::block(const std::vector<std::size_t>& columns,
                         const std::vector<std::string>& head) const {
  const auto picked = [&](const std::vector<std::string>& row) {
    std::vector<std::string> cells;
    for (const std::size_t c : columns) cells.push_back(row[c]);
    return cells;
  };
  std::vector<std::vector<std::string>> lines = head_rows(picked(head));
  const std::size_t heads = lines.size();
  for (const auto& row : rows_) lines.push_back(picked(row));
  std::vector<std::size_t> widths(columns.size());
  std::vector<bool> right(columns.size(), !rows_.empty());
  for (std::size_t r = 0; r < lines.size(); ++r) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      widths[c] = std::max(widths[c], width(lines[r][c]));
      if (r >= heads && !numeric(lines[r][c])) right[c] = false;
    }
  }
  std::string text;
  for (const auto& row : lines) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string padding(widths[c] - width(row[c]), ' ');
      if (c > 0) line += std::string(gap, ' ');
      line += right[c] ? padding + row[c] : row[c] + padding;
    }
    while (line.ends_with(' ')) line.pop_back();
    text += line + '\n';
  }
  return text;
}

std::optional<std::size_t> output_columns() {
  if (const char* said = std::getenv("COLUMNS"); said != nullptr) {
    const long columns = std::strtol(said, nullptr, 10);
    if (columns > 0) return at(columns);
  }
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return std::nullopt;
}

std::string fixed_text(std::optional<double> value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string percent(double share, int digits) {
  return fmt::format("{:.{}f} %", 100 * share, digits);
}

std::string number_text(double value) {
  const double size = std::abs(value);
  const int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace moesim
