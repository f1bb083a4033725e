// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/scorecard.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/statistics.hpp"
#include "tools/cli/output.hpp"
#include "tools/lab/validation/contrast_report.hpp"

namespace moesim {

namespace {

// Errors of some runs, in percent: predicted / measured - 1.
struct RunErrors {
  std::vector<double> per_gpu, tpot, ttft;

  void add(const ServingRun& run) {
    const auto error = [](double predicted, double measured) {
      return 100 * (predicted / measured - 1);
    };
    per_gpu.push_back(error(run.predicted.per_gpu, run.measured.per_gpu));
    if (run.measured.tpot_ms == 0) return;
    tpot.push_back(error(run.predicted.tpot_ms, run.measured.tpot_ms));
    ttft.push_back(error(run.predicted.ttft_ms, run.measured.ttft_ms));
  }
};

// Median, p90 and bias, in percent.
std::vector<std::string> cells_of(const std::vector<double>& errors) {
  if (errors.empty()) return {"-", "-", "-"};
  return {fmt::format("{:.1f}", median(absolute(errors))),
          fmt::format("{:.1f}", nearest_rank(absolute(errors), 0.9)),
          fmt::format("{:+.1f}", median(errors))};
}

std::string engine_of_run(const ServingRun& run) {
  const char* kind = run.pools ? ", pools" : run.concurrency == 0 ? ", offline" : "";
  return run.engine.name + kind;
}

using Cells = std::vector<std::string>;
using Groups = std::map<Cells, RunErrors>;

Groups grouped(const std::vector<ServingRun>& runs, bool fitted, auto name_of) {
  Groups groups;
  for (const ServingRun& run : runs)
    if (run.fitted == fitted) groups[name_of(run)].add(run);
  return groups;
}

// The worst median of tokens/s per GPU first.
std::string error_table(Cells head, const Groups& groups) {
  for (const char* figure : {"tokens/s per GPU", "TPOT", "TTFT"})
    head.insert(head.end(), {fmt::format("{}: median, %", figure), "p90, %", "bias, %"});
  std::vector<std::pair<double, Cells>> rows;
  for (const auto& [name, errors] : groups) {
    Cells row = name;
    row.push_back(fmt::format("{}", errors.per_gpu.size()));
    for (const auto* figure : {&errors.per_gpu, &errors.tpot, &errors.ttft}) {
      const Cells cells = cells_of(*figure);
      row.insert(row.end(), cells.begin(), cells.end());
    }
    rows.emplace_back(median(absolute(errors.per_gpu)), std::move(row));
  }
  std::ranges::stable_sort(rows, std::greater{}, [](const auto& row) { return row.first; });
  std::vector<Cells> table{std::move(head)};
  for (auto& [worst, row] : rows) table.push_back(std::move(row));
  return markdown_table(table);
}

Cells by_engine(const ServingRun& run) { return {engine_of_run(run)}; }

Cells by_deployment(const ServingRun& run) {
  return {run.model, run.gpu, engine_of_run(run),
          run.engine.version.empty() ? "-" : run.engine.version, run.precision};
}

std::string section(const std::vector<ServingRun>& runs, bool fitted, const char* title) {
  const Groups groups = grouped(runs, fitted, by_deployment);
  if (groups.empty()) return "";
  return fmt::format("## {}\n\n", title) +
         error_table({"model", "GPU", "engine", "version", "precision", "runs"}, groups) + "\n";
}

std::string summary(const std::vector<ServingRun>& runs, bool fitted, const char* title) {
  const Groups groups = grouped(runs, fitted, by_engine);
  if (groups.empty()) return "";
  return fmt::format("{}:\n\n", title) + error_table({"engine", "runs"}, groups) + "\n";
}

}  // namespace

std::string scorecard(const std::vector<ServingRun>& runs, const std::vector<std::string>& files) {
  const auto fitted = at(std::ranges::count_if(runs, &ServingRun::fitted));
  const std::string fit = fitted == 0
                              ? ""
                              : fmt::format(
                                    " Constants of the engines' presets are fitted on the other "
                                    "{}, whose rows have `calibrate` in their column `use`.",
                                    fitted);
  const ContrastReport contrasts = contrast_report(runs);
  std::string text =
      "# Scorecard of serving predictions\n\n" +
      fmt::format("`moesim-lab validate --points {} --scorecard FILE` wrote this page.\n\n",
                  fmt::join(files, ",")) +
      wrapped(fmt::format("The page compares {} measured runs with predictions. {} runs are held "
                          "out: no constant is fitted on them.{}",
                          runs.size(), runs.size() - fitted, fit)) +
      "\n\n" +
      wrapped(
          "median and p90: of |predicted / measured - 1|. bias: the median error with its sign. "
          "tokens/s per GPU of a server: by concurrency, TTFT and TPOT. Worst medians of tokens/s "
          "per GPU come first. pools: prefill and decode are apart; some settings of their recipes "
          "are read from these runs. offline: all prompts are there at the start.") +
      "\n\n## Summary\n\n" + summary(runs, false, "Held out") + summary(runs, true, "Fitted") +
      (contrasts.contrasts.empty() ? "" : "## Choices\n\n" + to_markdown(contrasts)) +
      section(runs, false, "Held-out runs") + section(runs, true, "Fitted runs");
  text.pop_back();
  return text;
}

}  // namespace moesim
