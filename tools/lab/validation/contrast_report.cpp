// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/contrast_report.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

std::string name_of(Difference kind) { return std::string(difference_names[at(kind)]); }

// Ratios by a key of their contrast; none where the key is empty.
using Sorted = std::map<std::pair<Difference, std::string>, std::vector<ContrastRatios>>;

std::vector<ContrastReport::Row> scored(const Sorted& sorted) {
  std::vector<ContrastReport::Row> rows;
  for (const auto& [key, ratios] : sorted)
    rows.push_back({key.first, key.second, score_of(ratios)});
  return rows;
}

using Rows = std::vector<std::vector<std::string>>;

std::string share_of(double part, int pairs) {
  return pairs == 0 ? "-" : fmt::format("{:.0f} %", 100 * part / pairs);
}

Rows sign_rows(const std::vector<ContrastReport::Row>& scores, const char* what) {
  Rows rows{{"differs", what, "pairs", "equal", "right sign", "size error", "rule: right sign",
             "rule: size error"}};
  for (const auto& [kind, name, s] : scores) {
    const auto size = [none = s.pairs == 0](double pct) {
      return none ? "-" : fmt::format("{:.1f} %", pct);
    };
    rows.push_back({name_of(kind), name, fmt::format("{}", s.pairs), fmt::format("{}", s.equal),
                    share_of(s.right, s.pairs), size(s.size_error_pct),
                    share_of(s.rule_right, s.pairs), size(s.rule_size_error_pct)});
  }
  return rows;
}

std::string share(double value) { return fmt::format("{:.1f} %", 100 * value); }

Rows regret_rows(const ContrastReport& report) {
  Rows rows{{"choice among", "choices", "misses", "mean regret", "p90", "rule: mean", "rule: p90"}};
  for (const auto& [name, r] :
       {std::pair{"layouts", report.layouts}, {"anything", report.anything}}) {
    if (r.choices == 0) continue;
    rows.push_back({name, fmt::format("{}", r.choices), fmt::format("{}", r.misses), share(r.mean),
                    share(r.p90), share(r.rule_mean), share(r.rule_p90)});
  }
  return rows;
}

// A table and an empty line; nothing without rows below the head.
std::string terminal_table(const Rows& rows) {
  if (rows.size() == 1) return "";
  Table table(rows.front());
  for (std::size_t i = 1; i < rows.size(); ++i) table.add(rows[i]);
  return table.text(std::min<std::size_t>(100, output_columns().value_or(100))) + "\n";
}

std::string markdown_block(const Rows& rows) {
  return rows.size() == 1 ? "" : markdown_table(rows) + "\n";
}

std::string legend_of_signs() {
  return "Two runs of a pair differ in one thing. equal: measured within 2 %, without a score. "
         "size error: the median error of the ratio of the two runs. Layouts are compared at equal "
         "concurrency per GPU. rule: a rule of thumb. By it more GPUs in a layout, more HBM "
         "bandwidth, fewer bytes of a weight and a larger batch give more tokens/s per GPU. "
         "TensorRT-LLM is before SGLang, and SGLang before vLLM.";
}

std::string legend_of_regret() {
  return fmt::format(
      "Under TPOT limits of {} ms. regret: the loss of tokens/s per GPU against the best measured "
      "run that meets the limit. miss: the chosen run measures more than 5 % above the limit; the "
      "chosen deployment then serves fewer requests. The rule of thumb takes the fewest GPUs that "
      "meet the limit in measurement, and is told the best concurrency.",
      fmt::join(tpot_limits_ms, ", "));
}

double four_digits(double value) { return std::round(value * 1e4) / 1e4; }

OrderedJson to_json(const ContrastScore& s) {
  return {
      {"pairs", s.pairs},           {"right", s.right},
      {"equal", s.equal},           {"size_error", four_digits(s.size_error_pct / 100)},
      {"rule_right", s.rule_right}, {"rule_size_error", four_digits(s.rule_size_error_pct / 100)}};
}

OrderedJson to_json(const Regret& r) {
  return {{"choices", r.choices},
          {"misses", r.misses},
          {"mean", four_digits(r.mean)},
          {"p90", four_digits(r.p90)},
          {"rule_mean", four_digits(r.rule_mean)},
          {"rule_p90", four_digits(r.rule_p90)}};
}

}  // namespace

ContrastReport contrast_report(const std::vector<ServingRun>& runs) {
  ContrastReport report{.runs = runs.size(),
                        .contrasts = contrasts_of(runs),
                        .signs = {},
                        .pairs = {},
                        .layouts = regret_of(runs, Choice::layout),
                        .anything = regret_of(runs, Choice::anything)};
  Sorted signs, pairs;
  for (const Contrast& contrast : report.contrasts) {
    const Difference kind = contrast.differs;
    signs[{kind, "tokens/s per GPU"}].push_back(contrast.per_gpu);
    if (contrast.tpot) signs[{kind, "TPOT"}].push_back(*contrast.tpot);
    if (kind != Difference::layout && kind != Difference::batch)
      pairs[{kind, contrast.what()}].push_back(contrast.per_gpu);
  }
  report.signs = scored(signs);
  std::ranges::stable_sort(report.signs, {}, [](const ContrastReport::Row& row) {
    return std::pair(row.differs, row.what == "TPOT");
  });
  report.pairs = scored(pairs);
  return report;
}

std::string to_text(const ContrastReport& report) {
  const Rows regret = regret_rows(report);
  return terminal_table(sign_rows(report.signs, "quantity")) +
         terminal_table(sign_rows(report.pairs, "tokens/s per GPU of")) + terminal_table(regret) +
         paragraph(legend_of_signs()) + (regret.size() == 1 ? "" : paragraph(legend_of_regret())) +
         fmt::format("{} runs\n", report.runs);
}

std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("|{}|\n", fmt::join(row, "|"));
    if (&row == &rows.front()) {
      for (std::size_t i = 0; i < row.size(); ++i) text += "|---";
      text += "|\n";
    }
  }
  return text;
}

std::string to_markdown(const ContrastReport& report) {
  const Rows regret = regret_rows(report);
  return markdown_block(sign_rows(report.signs, "quantity")) + wrapped(legend_of_signs()) + "\n\n" +
         markdown_block(sign_rows(report.pairs, "tokens/s per GPU of")) +
         (regret.size() == 1 ? "" : markdown_block(regret) + wrapped(legend_of_regret()) + "\n\n");
}

OrderedJson to_json(const ContrastReport& report) {
  OrderedJson json{{"runs", report.runs},
                   {"signs", OrderedJson::array()},
                   {"pairs", OrderedJson::array()},
                   {"regret", OrderedJson::object()}};
  for (const auto& [kind, quantity, score] : report.signs) {
    OrderedJson row{{"differs", name_of(kind)}, {"quantity", quantity}};
    row.update(to_json(score));
    json["signs"].push_back(row);
  }
  for (const auto& [kind, what, score] : report.pairs) {
    OrderedJson row{{"differs", name_of(kind)}, {"what", what}};
    row.update(to_json(score));
    json["pairs"].push_back(row);
  }
  json["regret"]["layouts"] = to_json(report.layouts);
  json["regret"]["anything"] = to_json(report.anything);
  return json;
}

std::string to_csv(const std::vector<Contrast>& contrasts) {
  std::string text =
      "differs,id_one,id_other,one,other,measured_ratio,predicted_ratio,measured_tpot_ratio,"
      "predicted_tpot_ratio\n";
  for (const Contrast& c : contrasts) {
    const std::string of_tpot =
        c.tpot ? fmt::format("{:.5g},{:.5g}", c.tpot->measured, c.tpot->predicted) : ",";
    text += fmt::format("{},{},{},{},{},{:.5g},{:.5g},{}\n", name_of(c.differs), csv_cell(c.one),
                        csv_cell(c.other), csv_cell(c.of_one), csv_cell(c.of_other),
                        c.per_gpu.measured, c.per_gpu.predicted, of_tpot);
  }
  return text;
}

}  // namespace moesim
