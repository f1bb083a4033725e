// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/answer_table.hpp"

#include <utility>

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

void AnswerTable::add(std::string shape, std::string remark, std::vector<std::string> cells) {
  shapes.push_back(std::move(shape));
  remarks.push_back(std::move(remark));
  rows.push_back(std::move(cells));
}

std::string AnswerTable::text() const {
  constexpr int indent = 3;
  std::vector<std::string> heads{""};
  heads.insert(heads.end(), head.begin(), head.end());
  Table table(std::move(heads));
  std::string names;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    names += indented(
        fmt::format("{}: {}{}{}", number, shapes[i], remarks[i].empty() ? "" : "; ", remarks[i]),
        indent);
    std::vector<std::string> cells{number};
    cells.insert(cells.end(), rows[i].begin(), rows[i].end());
    table.add(std::move(cells));
  }
  return names + "\n" + table.text();
}

}  // namespace moesim
