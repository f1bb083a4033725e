// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <map>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/shipped.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/bench/anchors.hpp"
#include "tools/bench/bench_result.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

namespace {

struct BenchOptions {
  std::vector<std::string> results;
  std::string config, serving, anchor;
  std::filesystem::path root = data_folder();
  bool json = false;
};

// The experiment under the load of each run of the benchmark.
std::vector<BenchComparison> run_beside(const BenchOptions& options) {
  const ConfigNode experiment = ConfigNode::from_file(options.config);
  refuse_keys_beside_pools(experiment);
  TraceLibrary traces;
  std::vector<BenchComparison> comparisons;
  for (const std::string& file : options.results) {
    for (const BenchRun& measured : read_bench(file)) {
      const ConfigNode loaded(under_load_of(measured, experiment.json()), experiment.file());
      const Report report = run(load_experiment(loaded, traces));
      comparisons.push_back(compare_with_bench(measured, report.document()["metrics"]));
    }
  }
  return comparisons;
}

std::string to_text(const BenchComparison& comparison) {
  Table table({"metric", "measured", "predicted", "error"});
  for (const auto& row : comparison.rows)
    table.add({row.metric, fmt::format("{:.5g}", row.measured),
               fmt::format("{:.5g}", row.predicted), fmt::format("{:+.1f} %", row.error_pct())});
  std::string text = table.text();
  for (const std::string& remark : comparison.remarks) text += remark + "\n";
  return text;
}

OrderedJson to_json(const BenchComparison& comparison) {
  OrderedJson json{{"run", comparison.where}};
  for (const auto& row : comparison.rows)
    json["metrics"][row.metric] = {
        {"measured", row.measured}, {"predicted", row.predicted}, {"error_pct", row.error_pct()}};
  json["remarks"] = comparison.remarks;
  return json;
}

/// Writes what corrects the predictions of one deployment. Returns a table of the factors.
std::string write_anchor(const Anchor& anchor, const std::string& output) {
  write_file(output, to_json(anchor).dump(1) + "\n");
  Table table({"figure", "runs", "factor", "leave-one-out error"});
  for (const auto& [name, fit] : {std::pair{"tpot", anchor.tpot}, {"ttft", anchor.ttft}}) {
    if (fit.runs == 0) continue;
    table.add({name, fmt::format("{}", fit.runs), fmt::format("{:.3f}", fit.factor),
               fmt::format("{:.1f} %", fit.leave_one_out * 100)});
  }
  return table.text();
}

/// Fits the anchor of the deployment that the benchmarks were run on.
std::string anchor_benchmarks(const BenchOptions& options) {
  const ConfigNode experiment = ConfigNode::from_file(options.config);
  refuse_keys_beside_pools(experiment);
  TraceLibrary traces;
  std::array<std::vector<AnchorRun>, 2> runs;  // TPOT, TTFT
  constexpr std::array<std::array<const char*, 2>, 2> figures{
      {{"median_tpot_ms", "mean_tpot_ms"}, {"median_ttft_ms", "mean_ttft_ms"}}};
  std::string deployment;
  for (const std::string& file : options.results) {
    for (const BenchRun& measured : read_bench(file)) {
      const ConfigNode loaded(under_load_of(measured, experiment.json(), /*bare=*/true),
                              experiment.file());
      const Experiment simulated = load_experiment(loaded, traces);
      const OrderedJson metrics = run(simulated).document()["metrics"];
      const Deployment& e = simulated.decode();
      deployment = fmt::format("{} on {} x {}, {}", e.model.name, gpus_of(simulated),
                               e.cluster.gpu.name, e.engine.empty() ? "no engine" : e.engine);
      for (std::size_t kind = 0; kind < runs.size(); ++kind) {
        for (const char* figure : figures[kind]) {
          const auto found = measured.figures.find(figure);
          const auto predicted = metrics.find(figure);
          if (found == measured.figures.end() || found->second <= 0 || predicted == metrics.end() ||
              !predicted->is_number() || predicted->get<double>() <= 0)
            continue;
          runs[kind].push_back({load_of(measured), found->second, predicted->get<double>()});
          break;
        }
      }
    }
  }
  if (runs[0].empty())
    throw ConfigError(
        fmt::format("{}: no run has median_tpot_ms or mean_tpot_ms", options.results.front()));
  return write_anchor({deployment, fit_anchor(runs[0]), fit_anchor(runs[1])}, options.anchor);
}

/// "; 6 x model unknown": why runs cannot be predicted.
std::string why_not(const std::vector<ValidatedPoint>& runs) {
  std::map<std::string, int> reasons;
  for (const ValidatedPoint& run : runs) {
    if (run.skipped()) ++reasons[std::get<Skipped>(run.predicted).reason];
    if (!run.failure.empty()) ++reasons[run.failure];
  }
  std::string text;
  for (const auto& [reason, times] : reasons) text += fmt::format("; {} x {}", times, reason);
  return text;
}

/// Fits the anchor of the one deployment in a file of measured runs.
std::string anchor_serving(const BenchOptions& options) {
  const std::vector<ValidatedPoint> runs = validate(read_points(options.serving), options.root);
  const auto anchors = anchors_of(runs);
  if (anchors.size() != 1) {
    throw ConfigError(
        fmt::format("{}: runs of {} deployments that can be predicted; one is "
                    "needed{}",
                    options.serving, anchors.size(), why_not(runs)));
  }
  return write_anchor(anchors.begin()->second, options.anchor);
}

int compare_benchmarks(const BenchOptions& options) {
  OrderedJson json = OrderedJson::array();
  std::string text;
  for (const BenchComparison& comparison : run_beside(options)) {
    json.push_back(to_json(comparison));
    text += (text.empty() ? "" : "\n") + to_text(comparison);
  }
  if (!options.anchor.empty()) text += "\n" + anchor_benchmarks(options);
  print(options.json ? json.dump(1) + "\n" : text);
  return 0;
}

int bench(const BenchOptions& options) {
  if (!options.anchor.empty()) require_writable(options.anchor);
  if (!options.serving.empty()) {
    if (options.anchor.empty())
      throw ConfigError("bench --serving: give --anchor FILE, the file for the corrections");
    print(anchor_serving(options));
    return 0;
  }
  if (options.results.empty() || options.config.empty()) {
    throw ConfigError(
        "bench: give RESULT.json --config CONFIG.json, or --serving RUNS.csv --anchor FILE");
  }
  return compare_benchmarks(options);
}

}  // namespace

Action setup_bench(CLI::App& command) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::Option* results =
      command.add_option("results", options->results,
                         "what vllm bench serve --save-result, SGLang's bench_serving or "
                         "genai-perf wrote, one or more files; each load is simulated");
  CLI::Option* config =
      command.add_option("--config", options->config,
                         "the deployment that was measured: an experiment, JSON; its workload is "
                         "replaced by the benchmark's");
  CLI::Option* serving = command.add_option(
      "--serving", options->serving, "instead of results: measured runs of one deployment, CSV");
  serving->excludes(results)->excludes(config);
  command.add_option("--anchor", options->anchor,
                     "write what corrects predictions of this deployment to this file, JSON; "
                     "run --anchor and plan --anchor read the file");
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  CLI::Option* json = command.add_flag("--json", options->json, "print JSON instead of tables");
  json->excludes(serving);
  return [options] { return bench(*options); };
}

}  // namespace moesim
