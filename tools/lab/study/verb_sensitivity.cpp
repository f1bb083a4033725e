// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "sim/experiment/pools.hpp"
#include "tools/cli/interrupt.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/lab/study/sensitivity.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

struct SensitivityOptions {
  std::vector<std::string> configs, overrides;
  std::string metric{"output_throughput"};
  double by = 30;
  bool json = false;
};

struct Named {
  std::string name;
  ConfigNode config;
};

// Name that tells the points of a sweep apart: "replication=1.5, decode=metro".
std::string point_name(const std::vector<Axis>& axes, const std::vector<SweepPoint>& points,
                       const Json& config) {
  std::string text;
  for (const Axis& axis : axes) {
    const Json* value = find_value(config, axis.pointer);
    const bool differs = std::ranges::any_of(points, [&](const SweepPoint& point) {
      const Json* other = find_value(point.config, axis.pointer);
      return (value == nullptr) != (other == nullptr) || (value != nullptr && *value != *other);
    });
    if (!differs) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", axis.name, setting_cell(value));
  }
  return text;
}

// An experiment, or every point of a sweep.
void read_configs(const std::string& name, const std::vector<std::string>& overrides,
                  std::vector<Named>& all) {
  const auto add = [&](std::string called, Json config, const std::filesystem::path& file) {
    for (const std::string& change : overrides) apply_override(config, change);
    all.push_back({std::move(called), {std::move(config), file}});
  };
  const ConfigNode file = ConfigNode::from_file(name);
  if (!file.json().contains("base") || file.json().contains("workload")) {
    refuse_keys_beside_pools(file);
    add(std::filesystem::path(name).stem().string(), file.json(), file.file());
    return;
  }
  const Sweep sweep = expand_sweep(file);
  const std::vector<Axis> axes = axes_of(sweep.document);
  for (const SweepPoint& point : sweep.points)
    add(point_name(axes, sweep.points, point.config), point.config, sweep.base_file);
}

const Metric& metric_named(const std::string& name) {
  const auto found = std::ranges::find(metric_catalogue, name, &Metric::name);
  if (found != metric_catalogue.end()) return *found;
  std::vector<std::string_view> names;
  for (const Metric& metric : metric_catalogue) names.push_back(metric.name);
  const std::string_view nearest = nearest_name(name, names);
  throw ConfigError("--of: \"{}\" is not a metric; {}", name,
                    nearest.empty() ? "choose of " + join_names(names)
                                    : fmt::format("did you mean \"{}\"?", nearest));
}

int run(const SensitivityOptions& options) {
  const Metric& metric = metric_named(options.metric);
  std::vector<Named> configs;
  for (const std::string& config : options.configs)
    read_configs(config, options.overrides, configs);
  constexpr std::size_t most = 64;
  if (configs.size() > most) {
    throw ConfigError("sensitivity: {} deployments are more than {}; give a smaller sweep",
                      configs.size(), most);
  }
  TraceLibrary traces;
  Remarks remarks;
  std::vector<std::string> names;
  std::vector<Experiment> experiments;
  for (const Named& named : configs) {
    names.push_back(named.name);
    experiments.push_back(remarks.say_of(load_experiment(named.config, traces)));
  }
  ProgressBar progress("constants");
  const InterruptGuard guard("the runs in flight are finished; nothing is kept");
  const auto answer = sensitivity(names, experiments, metric, options.by / 100, progress.hook(),
                                  InterruptGuard::interrupted);
  progress.finish();
  if (!answer) return exit_interrupted;
  print(options.json ? sensitivity_json(*answer).dump(1) + "\n" : sensitivity_text(*answer));
  return 0;
}

}  // namespace

Action setup_sensitivity(CLI::App& command) {
  const auto options = std::make_shared<SensitivityOptions>();
  option(command, "CONFIG", options->configs, "experiments, or sweeps of few points", mandatory);
  option(command, "--of", options->metric, "metric by which deployments are ranked", default_shown);
  option(command, "--by", options->by, "percent by which a constant may be off", default_shown,
         a_number(1, 90));
  option(command, "--set", options->overrides,
         "/json/pointer=value to set in every config; repeatable", repeatable);
  command.add_flag("--json", options->json, "print JSON instead of tables");
  command.footer(
      R"(Which constants decide the answer? Each constant of the prices is made smaller and larger, one at a
time, under the same seed. Constants are those of kernels, links, the network, charges and the API
server. Times that were measured stay as they are.
One deployment: the change of its metric. Several deployments: the lead of the best one, and the
constants that turn the ranking. Metrics are the columns of a store's view `metrics`.
  moesim-lab sensitivity configs/quick.json --of median_tpot_ms
  moesim-lab sensitivity eplb.json metro.json --of output_throughput)");
  return [options] { return run(*options); };
}

}  // namespace moesim
