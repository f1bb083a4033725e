// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "sim/report/metric_catalogue.hpp"
#include "tools/analysis/best.hpp"
#include "tools/analysis/comparable.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

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
  return *best->point;
}

}  // namespace

Action setup_best(CLI::App& command) {
  struct BestOptions {
    std::string store, over, launch, base, metric{moesim::metric("total_token_throughput").pointer};
    bool lower = false, json = false;
  };
  const auto options = std::make_shared<BestOptions>();
  command.add_option("STORE", options->store, "store that `moesim sweep` wrote")->required();
  command.add_option(
      "--over", options->over,
      "pointer to the axis, e.g. /placement/replication; if missing: the axes are named");
  command
      .add_option("--metric", options->metric, "quantity to maximise: a pointer into the report")
      ->capture_default_str();
  command.add_flag("--lower", options->lower, "minimise the metric instead");
  add_launch_option(command, options->launch);
  command.add_option("--base", options->base,
                     "--launch: the sweep's base file, by whose folder paths in configs go "
                     "(default: the store's folder)");
  command.add_flag("--json", options->json, "print JSON instead of tables");
  return [options] {
    const Store store = Store::open(options->store);
    if (options->over.empty())
      throw ConfigError(
          fmt::format("--over is missing; {} varies: {}", options->store, axes_text(store)));
    std::vector<std::string> pointers = best_pointers();
    pointers.insert(pointers.end(), {options->over, options->metric});
    for (const std::string& pointer : trust_pointers()) pointers.push_back(pointer);
    const BestChoice choice = best_choice(read_comparable(store, pointers), options->over,
                                          options->metric, options->lower);
    print(options->json ? best_json(choice).dump(1) + "\n"
                        : best_text(choice) + trust_line(choice.sweep));
    if (!options->launch.empty()) {
      const StoreRow best = store.row(best_of_all(choice).config_hash);
      const ConfigNode config(Json::parse(best.config),
                              options->base.empty() ? options->store : options->base);
      print("\n" + launch_text(options->launch, read_spec(config)));
    }
    return 0;
  };
}

}  // namespace moesim
