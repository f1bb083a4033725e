// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/config.hpp"
#include "tools/lab/validation/contrasts.hpp"

namespace moesim {

/// Pairs of runs with their scores, and the regrets.
struct ContrastReport {
  struct Row {
    Difference differs{};
    std::string what;  ///< a quantity, or "b200 against h200"
    ContrastScore score;
  };
  std::size_t runs = 0;
  std::vector<Contrast> contrasts;
  std::vector<Row> signs;  ///< by what differs and quantity
  std::vector<Row> pairs;  ///< tokens/s per GPU by GPUs, engines and precisions
  Regret layouts, anything;
};
ContrastReport contrast_report(const std::vector<ServingRun>&);

/// Three tables, at most 100 columns wide.
std::string to_text(const ContrastReport&);
/// The same tables in Markdown.
std::string to_markdown(const ContrastReport&);
/// The form of "contrasts" in hardware/accuracy.json.
OrderedJson to_json(const ContrastReport&);
/// A line per pair.
std::string to_csv(const std::vector<Contrast>&);

/// Rows of a Markdown table, the first of them its head.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace moesim
