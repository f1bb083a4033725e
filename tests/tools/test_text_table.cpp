// SPDX-License-Identifier: Apache-2.0
// Does a terminal table keep to a width, with every cell whole?
#include <algorithm>
#include <sstream>

#include "tests/support.hpp"
#include "tools/cli/table.hpp"

namespace moesim::test_text_table {
namespace {

std::size_t width_of(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

Table sample() {
  Table table({"policy", "copies", "p90 TTFT ms", "throughput"});
  table.add({"even", "1.5", "208.6", "10"});
  table.add({"even", "2.0", "223.2", "9"});
  return table;
}

TEST_CASE("a table that fits is one block, as without a width") {
  const std::string text = sample().text(100);
  CHECK(text ==
        "policy  copies  p90 TTFT ms  throughput\n"
        "even       1.5        208.6          10\n"
        "even       2.0        223.2           9\n");
  CHECK(sample().text(39) == text);
}

TEST_CASE("heads break at spaces before a table takes more blocks") {
  CHECK(sample().text(38) ==
        "                  p90\n"
        "                 TTFT\n"
        "policy  copies     ms  throughput\n"
        "even       1.5  208.6          10\n"
        "even       2.0  223.2           9\n");
}

TEST_CASE("columns that do not fit follow below the columns that tell rows apart") {
  CHECK(sample().text(30) ==
        "                  p90\n"
        "                 TTFT\n"
        "policy  copies     ms\n"
        "even       1.5  208.6\n"
        "even       2.0  223.2\n"
        "\n"
        "policy  copies  throughput\n"
        "even       1.5          10\n"
        "even       2.0           9\n");
}

TEST_CASE("no cell is cut, however narrow the output") {
  for (std::size_t columns = 1; columns < 45; ++columns) {
    const std::string text = sample().text(columns);
    for (const char* cell : {"policy", "208.6", "223.2", "throughput", "copies"})
      CHECK(text.find(cell) != std::string::npos);
    if (columns >= 26) CHECK(width_of(text) <= columns);
  }
}

}  // namespace
}  // namespace moesim::test_text_table
