// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/shipped.hpp"
#include "tools/bench/bench_client.hpp"
#include "tools/bench/step_records.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

namespace {

struct BenchOptions {
  std::vector<std::string> results;
  std::string config, serving, steps, anchor;
  std::filesystem::path root = data_folder();
  bool json = false;
};

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

std::string to_text(const StepComparison& comparison) {
  Table table({"holds", "steps", "measured ms", "predicted ms", "bias", "error", "in 1 of 10"});
  for (const StepErrors& of : comparison.kinds)
    table.add({std::string(step_kind_names[at(of.kind)]), fmt::format("{}", of.steps),
               fmt::format("{:.4g}", of.measured_ms), fmt::format("{:.4g}", of.predicted_ms),
               fmt::format("{:+.1f} %", 100 * of.bias), fmt::format("{:.1f} %", 100 * of.error),
               fmt::format("{:.1f} %", 100 * of.error_p90)});
  return table.text();
}

OrderedJson to_json(const StepComparison& comparison) {
  OrderedJson json;
  for (const StepErrors& of : comparison.kinds) {
    json[step_kind_names[at(of.kind)]] = {{"steps", of.steps},
                                          {"measured_ms", of.measured_ms},
                                          {"predicted_ms", of.predicted_ms},
                                          {"bias_pct", 100 * of.bias},
                                          {"error_pct", 100 * of.error},
                                          {"error_p90_pct", 100 * of.error_p90}};
  }
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
  if (anchor.layouts.size() < 2) return table.text();
  return table.text() + fmt::format("the runs are of {} layouts: {}\n", anchor.layouts.size(),
                                    fmt::join(anchor.layouts, "; "));
}

int compare_benchmarks(const BenchOptions& options) {
  const ConfigNode experiment = ConfigNode::from_file(here_or_shipped(options.config));
  TraceLibrary traces;
  std::vector<BenchRun> runs;
  for (const std::string& file : options.results)
    std::ranges::move(read_bench(file), std::back_inserter(runs));
  OrderedJson json = OrderedJson::array();
  std::string text;
  for (const BenchRun& measured : runs) {
    const BenchComparison comparison = compare_with_bench(measured, experiment, traces);
    json.push_back(to_json(comparison));
    text += (text.empty() ? "" : "\n") + to_text(comparison);
  }
  if (!options.anchor.empty())
    text += "\n" + write_anchor(anchor_of_bench(runs, experiment, traces), options.anchor);
  print(options.json ? json.dump(1) + "\n" : text);
  return 0;
}

// The ranks whose steps were recorded: one pool's.
const Deployment& recorded_pool(const Experiment& experiment) {
  if (experiment.pools.size() > 1)
    throw ConfigError("bench --fpm: the experiment has pools; give a config of the recorded one");
  return experiment.decode();
}

int compare_recorded_steps(const BenchOptions& options) {
  if (options.config.empty())
    throw ConfigError("bench --fpm: give --config CONFIG.json, the deployment that was measured");
  TraceLibrary traces;
  const Experiment experiment = Remarks().say_of(
      load_experiment(ConfigNode::from_file(here_or_shipped(options.config)), traces));
  const Deployment& deployment = recorded_pool(experiment);
  const bool counts_new = deployment.engine.starts_with("sglang");
  const StepComparison comparison = compare_steps(
      read_step_records(options.steps, deployment.parallel.dp, counts_new), deployment);
  std::string text = to_text(comparison);
  if (!options.anchor.empty()) {
    if (comparison.decoding == 0)
      throw ConfigError(options.steps + ": no step decodes; an anchor corrects steps that do");
    Anchor anchor = unfitted_anchor(experiment);
    anchor.tpot = {
        .factor = comparison.factor, .runs = comparison.decoding, .leave_one_out = comparison.left};
    text += "\n" + write_anchor(anchor, options.anchor);
  }
  print(options.json ? to_json(comparison).dump(1) + "\n" : text);
  return 0;
}

int bench(const BenchOptions& options) {
  if (!options.anchor.empty()) require_writable(options.anchor);
  if (!options.steps.empty()) return compare_recorded_steps(options);
  if (!options.serving.empty()) {
    if (options.anchor.empty())
      throw ConfigError("bench --serving: give --anchor FILE, the file for the corrections");
    print(write_anchor(anchor_of_serving(options.serving, options.root), options.anchor));
    return 0;
  }
  if (options.results.empty() || options.config.empty()) {
    throw ConfigError(
        "bench: give RESULT.json --config CONFIG.json, --fpm STEPS.jsonl --config CONFIG.json, or "
        "--serving RUNS.csv --anchor FILE");
  }
  return compare_benchmarks(options);
}

}  // namespace

Action setup_bench(CLI::App& command) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::Option* results =
      command.add_option("results", options->results,
                         "what vllm bench serve --save-result, SGLang's bench_serving, AIPerf or "
                         "genai-perf wrote, one or more files; each load is simulated");
  CLI::Option* config = command.add_option("--config", options->config,
                                           "the deployment that was measured: an experiment, JSON; "
                                           "its workload is replaced by the benchmark's");
  CLI::Option* serving = command.add_option(
      "--serving", options->serving, "instead of results: measured runs of one deployment, CSV");
  serving->excludes(results)->excludes(config);
  command
      .add_option("--fpm", options->steps,
                  "instead of results: steps that the engine recorded, JSONL, also .gz. Dynamo "
                  "writes them (DYN_FPM_TRACE=1 DYN_FPM_MODE=full). Each is priced as the "
                  "deployment of --config computes it")
      ->excludes(results)
      ->excludes(serving);
  command.add_option("--anchor", options->anchor,
                     "write what corrects predictions of this deployment to this file, JSON; an "
                     "experiment's \"anchor\" and plan --anchor name the file");
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  CLI::Option* json = command.add_flag("--json", options->json, "print JSON instead of tables");
  json->excludes(serving);
  return [options] { return bench(*options); };
}

}  // namespace moesim
