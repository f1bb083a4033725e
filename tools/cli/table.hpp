// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moesim {

/// A terminal table: a head, rows, columns as wide as their content; numbers right-aligned, texts
/// left-aligned (a column is numeric when every cell below its head parses as a number, "-" aside).
class Table {
 public:
  explicit Table(std::vector<std::string> head);
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// A number with about four digits and no exponent.
std::string number_text(double value);

}  // namespace moesim
