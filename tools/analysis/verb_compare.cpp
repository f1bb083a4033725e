// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <spdlog/spdlog.h>

#include "sim/report/metric_catalogue.hpp"
#include "tools/analysis/best.hpp"
#include "tools/analysis/comparable.hpp"
#include "tools/analysis/compare.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

struct CompareOptions {
  std::string store;
  std::vector<std::string> baseline, candidate, fail_if;
  std::string best, launch, base, metric{moesim::metric("total_token_throughput").pointer};
  bool lower = false, json = false;
};

// The point that is best of all groups.
const StoredPoint& best_of_all(const BestChoice& choice) {
  const Alternative* best = nullptr;
  for (const Alternatives& group : choice.groups) {
    for (const Alternative& value : group.values) {
      const bool better = best == nullptr || (choice.lower_is_better ? value.metric < best->metric
                                                                     : value.metric > best->metric);
      if (better) best = &value;
    }
  }
  return *best->points.front();
}

// Takes a metric by its name, p99_ttft_ms, or by its pointer. Whether less of it is better is said
// where reports are described.
void settle_metric(CompareOptions& options) {
  const auto row = std::ranges::find(metric_catalogue, options.metric, &Metric::name);
  if (row != metric_catalogue.end())
    options.metric = row->pointer;
  else if (!options.metric.starts_with('/'))
    throw ConfigError(
        "--metric {}: no metric has this name; give one of `moesim keys report` by its "
        "pointer, as /metrics/p99_ttft_ms",
        options.metric);
  const ReportKey* const key = find_report_key(options.metric);
  options.lower = options.lower || (key != nullptr && key->better == Better::less);
}

// Prints what each value of the axis gains and costs.
int run_best(CompareOptions options) {
  settle_metric(options);
  const Store store = Store::open(options.store);
  std::vector<std::string> pointers = best_pointers();
  pointers.insert(pointers.end(), {options.best, options.metric});
  for (const std::string& pointer : trust_pointers()) pointers.push_back(pointer);
  const BestChoice choice =
      best_choice(read_comparable(store, pointers), options.best, options.metric, options.lower);
  print(options.json ? best_json(choice).dump(1) + "\n"
                     : best_text(choice) + trust_line(choice.sweep));
  if (options.launch.empty()) return 0;
  const StoreRow best = store.row(best_of_all(choice).config_hash);
  const ConfigNode config(Json::parse(best.config),
                          options.base.empty() ? options.store : options.base);
  print("\n" + launch_text(options.launch, read_spec(config)));
  return 0;
}

int run(const CompareOptions& options) {
  std::vector<Limit> limits;
  for (const std::string& text : options.fail_if) limits.push_back(parse_limit(text));
  if (options.baseline.empty() || options.candidate.empty())
    throw ConfigError("compare: give --baseline and --candidate, or --best; {} varies: {}",
                      options.store, axes_text(Store::open(options.store)));
  const std::vector<Setting> baseline = parse_settings(options.baseline);
  const std::vector<Setting> candidate = parse_settings(options.candidate);
  std::vector<std::string> pointers;
  for (const ComparedMetric& metric : compared_metrics)
    pointers.emplace_back(metric.metric->pointer);
  for (const auto* side : {&baseline, &candidate}) {
    for (const Setting& setting : *side) pointers.push_back(setting.pointer);
  }
  for (const std::string& pointer : trust_pointers()) pointers.push_back(pointer);
  const StoredSweep sweep = read_comparable(Store::open(options.store), pointers);
  const Comparison result = compare(sweep, baseline, candidate);
  print(options.json ? comparison_json(result).dump(1) + "\n"
                     : comparison_text(result) + trust_line(sweep));
  int code = 0;
  for (const Limit& limit : limits) {
    if (const auto why = violation(result, limit)) {
      spdlog::error("{}", *why);
      code = exit_limit_not_met;
    }
  }
  return code;
}

constexpr std::string_view compare_footer =
    R"(Pointers lead into the config (a leading /context/config is accepted). Two points are a pair if one
has the baseline's setting and the other the candidate's. All else must be equal, seeds included. A
text matches a policy by its type; its other options must then be equal. An object compares whole
policies.

Some token routings need another dispatch than the baseline's: metro needs the choices of the whole
group. Then sweep both under one dispatch, or name on both sides what differs:
  --baseline  /token_routing/decode=even  --baseline  /dispatch/decode=all_to_all
  --candidate /token_routing/decode=metro --candidate /dispatch/decode=ids_all_gather)";

}  // namespace

Action setup_compare(CLI::App& command) {
  const auto options = std::make_shared<CompareOptions>();
  option(command, "STORE", options->store, "store that `moesim sweep` wrote", mandatory);
  option(command, "--baseline", options->baseline,
         "/pointer=value; repeatable; if missing: the choices are named", repeatable);
  option(command, "--candidate", options->candidate, "/pointer=value; repeatable", repeatable);
  option(command, "--fail-if", options->fail_if,
         "exit 3 if e.g. \"total_token_throughput < 0.98\" (mean); repeatable", repeatable);
  CLI::Option* best = command.add_option(
      "--best", options->best,
      "instead of two settings: pointer to an axis, e.g. /placement/replication; prints the best "
      "value, and what each value gains and costs");
  for (const char* pairs : {"--baseline", "--candidate", "--fail-if"})
    best->excludes(command.get_option(pairs));
  option(command, "--metric", options->metric,
         "--best: quantity to maximise, a pointer into the report, or a metric's name",
         default_shown)
      ->needs(best);
  command.add_flag("--lower", options->lower, "--best: minimise the metric instead")->needs(best);
  add_launch_option(command, options->launch);
  option(command, "--base", options->base,
         "--launch: the sweep's base file, by whose folder paths in configs go (default: the "
         "store's folder)")
      ->needs(best);
  command.get_option("--launch")->needs(best);
  command.add_flag("--json", options->json, "print JSON instead of tables");
  command.footer(std::string(compare_footer));
  return [options] { return options->best.empty() ? run(*options) : run_best(*options); };
}

}  // namespace moesim
