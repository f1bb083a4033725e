// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>

#include <fmt/format.h>

#include "hardware/shipped.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/report/metric_catalogue.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/bench/anchors.hpp"
#include "tools/bench/validation.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/lab/validation/contrast_report.hpp"
#include "tools/lab/validation/scorecard.hpp"

namespace moesim {

namespace {

struct ValidateOptions {
  std::string csv, fidelity, scorecard;
  std::vector<std::string> points, only, gpus;
  std::filesystem::path root = data_folder();
  int anchors = 0;
  std::string anchor;
  bool contrasts = false;
  bool json = false;
};

OrderedJson to_json(const std::map<std::string, CategoryErrors>& categories) {
  OrderedJson json{{"categories", OrderedJson::object()}};
  for (const auto& [name, c] : categories) {
    json["categories"][name] = {{"n", c.n},
                                {"median_abs_pct_error", c.median_abs_pct},
                                {"p90_abs_pct_error", c.p90_abs_pct},
                                {"bias_pct", c.bias_pct},
                                {"skipped", c.skipped},
                                {"failed", c.failed},
                                {"extrapolated", c.extrapolated}};
  }
  return json;
}

using Errors = std::map<std::string, CategoryErrors>;

std::string table_of(const char* what, const Errors& errors) {
  Table table(
      {what, "points", "median error", "p90 error", "bias", "extrapolated", "failed", "skipped"});
  for (const auto& [name, c] : errors)
    table.add({name, fmt::format("{}", c.n), fmt::format("{:.1f} %", c.median_abs_pct),
               fmt::format("{:.1f} %", c.p90_abs_pct), fmt::format("{:+.1f} %", c.bias_pct),
               fmt::format("{}", c.extrapolated), fmt::format("{}", c.failed),
               fmt::format("{}", c.skipped)});
  return table.text();
}

// How many points were not predicted, by the reason; which ones, says --csv.
std::string reasons_of(const std::vector<ValidatedPoint>& points) {
  std::map<std::string, int> reasons;
  for (const ValidatedPoint& p : points) {
    if (p.skipped()) ++reasons["skipped: " + std::get<Skipped>(p.predicted).reason];
    if (!p.failure.empty()) ++reasons["failed: " + p.failure];
  }
  std::string text;
  for (const auto& [reason, count] : reasons)
    text += indented(fmt::format("{} {}", count, reason), 2);
  return text;
}

std::string to_text(const std::vector<ValidatedPoint>& points, const Errors& categories) {
  std::string text = table_of("category", categories) + "\n";
  if (const Errors engines = errors_by_engine(points); !engines.empty())
    text += table_of("category and engine", engines) + "\n";
  const bool sheets = std::ranges::any_of(points, &ValidatedPoint::by_sheet);
  return text + table_of("category and group", errors_by_group(points)) +
         "error: |predicted / measured - 1|; bias: the median with its sign; extrapolated: outside "
         "what\nconstants were fitted on\n" +
         (sheets ? "roofline: by a GPU's data sheet alone; nothing of that GPU was measured\n"
                 : "") +
         reasons_of(points);
}

std::string to_csv(const std::vector<ValidatedPoint>& points) {
  std::string text =
      "id,category,gpu,model,op,precision,tp,ep,dp,concurrency,isl,osl,metric,measured,predicted,"
      "error_pct,extrapolated,evidence,breakdown\n";
  for (const ValidatedPoint& p : points) {
    std::string predicted, error, extrapolated, evidence, breakdown;
    if (p.skipped()) {
      breakdown = "skipped: " + std::get<Skipped>(p.predicted).reason;
    } else if (!p.failure.empty()) {
      breakdown = "failed: " + p.failure;
    } else {
      const auto& prediction = std::get<Prediction>(p.predicted);
      predicted = fmt::format("{:.5g}", prediction.value);
      error = fmt::format("{:.1f}", p.error_pct());
      extrapolated = prediction.extrapolated ? "yes" : "no";
      evidence = evidence_names[at(prediction.evidence)];
      breakdown = prediction.breakdown;
    }
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{:.5g},{},{},{},{},{}\n", csv_cell(p.point.id),
        csv_cell(p.point.category), csv_cell(p.point.gpu), csv_cell(p.point.model),
        csv_cell(p.point.operation), csv_cell(p.point.precision), p.point.tp, p.point.ep,
        p.point.dp, p.point.concurrency, p.point.prompt, p.point.output, csv_cell(p.point.metric),
        p.point.value, predicted, error, extrapolated, evidence, csv_cell(breakdown));
  }
  return text;
}

// An experiment with exact and with sampled MoE layers, metric next to metric.
struct BothFidelities {
  struct Row {
    std::string metric;
    double exact, sampled;
    double error_pct() const { return exact == 0 ? 0 : (sampled / exact - 1) * 100; }
  };
  std::vector<Row> rows;
  double exact_s = 0, sampled_s = 0;
};

BothFidelities run_both(const std::filesystem::path& config) {
  constexpr std::array metrics{&metric("total_token_throughput"),
                               &metric("tokens_per_s_per_gpu"),
                               &metric("mean_tpot_ms"),
                               &metric("median_tpot_ms"),
                               &metric("p99_tpot_ms"),
                               &metric("mean_ttft_ms"),
                               &metric("p99_ttft_ms"),
                               &metric("mean_e2el_ms")};
  TraceLibrary traces;
  const auto run_as = [&](const char* fidelity, double& seconds) {
    const ConfigNode file = ConfigNode::from_file(config);
    refuse_keys_beside_pools(file);
    Json json = file.json();
    json["fidelity"] = fidelity;
    const Experiment experiment = load_experiment(ConfigNode(std::move(json), config), traces);
    const auto start = std::chrono::steady_clock::now();
    Report report = run(experiment);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
  };
  BothFidelities both;
  const Report exact = run_as("exact", both.exact_s);
  const Report sampled = run_as("sampled", both.sampled_s);
  for (const Metric* metric : metrics) {
    const auto a = metric->value(exact), b = metric->value(sampled);
    if (a && b) both.rows.push_back({std::string(metric->name), *a, *b});
  }
  return both;
}

std::string to_text(const BothFidelities& both) {
  Table table({"metric", "exact", "sampled", "error"});
  for (const auto& row : both.rows)
    table.add({row.metric, fmt::format("{:.5g}", row.exact), fmt::format("{:.5g}", row.sampled),
               fmt::format("{:+.2f} %", row.error_pct())});
  return table.text() + fmt::format("\nsimulated in {:.2f} s exact, {:.2f} s sampled\n",
                                    both.exact_s, both.sampled_s);
}

// Without the times: the same on every call.
OrderedJson to_json(const BothFidelities& both) {
  OrderedJson json;
  for (const auto& row : both.rows) {
    json["metrics"][row.metric] = {
        {"exact", row.exact}, {"sampled", row.sampled}, {"error_pct", row.error_pct()}};
  }
  return json;
}

std::map<std::string, std::filesystem::path> named_files(const std::vector<std::string>& options) {
  std::map<std::string, std::filesystem::path> files;
  for (const std::string& option : options) {
    const std::size_t equals = option.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == option.size()) {
      throw ConfigError("--gpu {}: expected NAME=FILE, e.g. H100-SXM-80GB=hardware/gpus/h100.json",
                        option);
    }
    files[option.substr(0, equals)] = option.substr(equals + 1);
  }
  return files;
}

void write_scorecard(const ValidateOptions& options, const std::vector<ServingRun>& runs) {
  std::vector<std::string> names;
  for (const std::filesystem::path file : options.points) names.push_back(file.filename());
  write_file(options.scorecard, scorecard(runs, names));
}

int say_contrasts(const ValidateOptions& options, const std::vector<ServingRun>& runs) {
  const ContrastReport report = contrast_report(runs);
  if (report.contrasts.empty()) {
    throw ConfigError(
        "--contrasts: no two of {} predicted runs (category e2e) differ in one thing "
        "only: layout, experts (EP), GPU, engine, precision or batch",
        report.runs);
  }
  if (!options.csv.empty()) write_file(options.csv, to_csv(report.contrasts));
  print(options.json ? to_json(report).dump(1) + "\n" : to_text(report));
  return 0;
}

int compare_fidelities(const ValidateOptions& options) {
  const BothFidelities both = run_both(options.fidelity);
  print(options.json ? to_json(both).dump(1) + "\n" : to_text(both));
  return 0;
}

int validate_points(const ValidateOptions& options) {
  if (!options.fidelity.empty()) return compare_fidelities(options);
  if (options.points.empty()) {
    throw ConfigError("validate: give --points FILE.csv or --fidelity CONFIG.json");
  }
  require_writable(options.csv);
  require_writable(options.scorecard);
  std::vector<MeasuredPoint> points;
  for (const std::string& file : options.points)
    std::ranges::move(read_points(file), std::back_inserter(points));
  const auto unwanted = [&](const MeasuredPoint& point) {
    const std::vector<std::string>& only = options.only;
    return !only.empty() && std::ranges::find(only, point.category) == only.end();
  };
  std::erase_if(points, unwanted);
  std::vector<ValidatedPoint> validated =
      validate(points, options.root, Json::object(), named_files(options.gpus));
  if (!options.anchor.empty())
    correct(validated, read_anchor(ConfigNode::from_file(options.anchor)));
  if (options.anchors > 0) validated = with_anchors(validated, options.anchors);
  if (options.contrasts || !options.scorecard.empty()) {
    const std::vector<ServingRun> runs =
        serving_runs(validated, options.root, named_files(options.gpus));
    if (!options.scorecard.empty()) write_scorecard(options, runs);
    if (options.contrasts) return say_contrasts(options, runs);
  }
  const auto categories = errors_by_category(validated);
  if (!options.csv.empty()) write_file(options.csv, to_csv(validated));
  print(options.json ? to_json(categories).dump(1) + "\n" : to_text(validated, categories));
  return 0;
}

}  // namespace

Action setup_validate(CLI::App& command) {
  const auto options = std::make_shared<ValidateOptions>();
  CLI::Option* csv_file = option(command, "--points", options->points,
                                 "measured points, CSV files, comma-separated", comma_separated);
  CLI::Option* fidelity = command.add_option(
      "--fidelity", options->fidelity,
      "an experiment, JSON: compares figures of sampled and of exact MoE layers");
  csv_file->excludes(fidelity);
  command
      .add_flag("--contrasts", options->contrasts,
                "compare runs that differ in one thing: layout, experts (EP), GPU, engine, "
                "precision or batch. Prints how often the sign of the difference was right, the "
                "error of its size, and the regret of choices under limits of TPOT.")
      ->needs(csv_file);
  option(command, "--scorecard", options->scorecard,
         "write errors by model, GPU, engine and version to this file, Markdown")
      ->needs(csv_file);
  command.add_option(
      "--csv", options->csv,
      "write every point with its prediction to this file, CSV; with --contrasts every pair");
  option(command, "--category", options->only, "only these categories, comma-separated",
         comma_separated);
  command.add_option("--gpu", options->gpus,
                     "NAME=FILE: points of the GPU of this name are predicted with this file");
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  command.add_option("--anchor", options->anchor,
                     "corrections that moesim bench wrote, for their deployment");
  option(command, "--anchors", options->anchors,
         "number of runs that correct each deployment; the report is on the other runs",
         CLI::Range(1, 1000));
  command.add_flag("--json", options->json, "print JSON instead of a table");
  return [options] { return validate_points(*options); };
}

}  // namespace moesim
