// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moesim {

/// A terminal table: a head, rows, columns as wide as their content; numbers right-aligned, texts
/// left-aligned (a column is numeric when every cell below its head parses as a number, "-" aside).
/// A cell of the head may have several lines.
class Table {
 public:
  explicit Table(const std::vector<std::string>& head);
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the head's lines first
  std::size_t heads_;
};

/// A number with about four digits and no exponent.
std::string number_text(double value);

}  // namespace moesim
