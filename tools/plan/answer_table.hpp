// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moesim {

/// A plan's answer, a row for each deployment, best first.
struct AnswerTable {
  std::vector<std::string> head;               ///< of the cells
  std::vector<std::vector<std::string>> rows;  ///< texts as they are printed
  /// Names of the rows, "prefill tp2, decode dp4 ep4", and limits: "TPOT binds; experts 42 %".
  std::vector<std::string> shapes, remarks;

  void add(std::string shape, std::string remark, std::vector<std::string> cells);
  /// For a terminal: a line for each shape, then the cells by the numbers of these lines.
  std::string text() const;
};

}  // namespace moesim
