// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moesim {

/// A terminal table: a head, rows, columns as wide as their content; numbers right-aligned, texts
/// left-aligned. A column is numeric when every cell below its head parses as a number, "-" aside.
/// A cell of the head may have several lines.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : head_(std::move(head)) {}
  void add(std::vector<std::string> row);
  /// Text as wide as the output is (output_columns()), else usual_columns.
  std::string text() const;
  /// Text at most `columns` wide where possible. Heads break at spaces, then the columns on the
  /// right follow in blocks below, each after the columns that tell the rows apart. No cell is cut.
  std::string text(std::size_t columns) const;

 private:
  /// The table of some columns, with their heads.
  std::string block(const std::vector<std::size_t>& columns,
                    const std::vector<std::string>& head) const;
  std::size_t labels() const;

  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

/// How wide an output is that does not say it.
constexpr std::size_t usual_columns = 100;
/// How wide the output is: $COLUMNS, else the width of the terminal that stdout is. Empty where
/// neither says, as in a pipe.
std::optional<std::size_t> output_columns();

/// A number with about four digits and no exponent.
std::string number_text(double value);
/// A share in percent: "41.3 %".
std::string percent(double share, int digits = 1);
/// With that many digits after the point; "-" where there is none.
std::string fixed_text(std::optional<double> value, int digits = 1);

}  // namespace moesim
