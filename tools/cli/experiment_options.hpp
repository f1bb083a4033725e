// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "hardware/config.hpp"
#include "sim/experiment/shared_cluster.hpp"

namespace moesim {

/// The options of every verb that reads one experiment: CONFIG, --set, --seed, --deployment.
struct ExperimentOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<std::int64_t> seed;
  std::string deployment;

  void add_to(CLI::App& command) {
    command.add_option("CONFIG", config, "experiment, a JSON file")->required();
    command.add_option("--set", overrides, "/json/pointer=value to set in the config; repeatable")
        ->allow_extra_args(false);
    command.footer(
        "CONFIG's keys, with units and defaults: moesim keys; for editors: moesim keys --schema");
    command.add_option("--seed", seed, "the same as --set /seed=N");
    command.add_option(
        "--deployment", deployment,
        "name of one of the config's deployments, to be looked at without the others");
  }

  /// The config with its overrides. Throws ConfigError.
  ConfigNode read() const {
    const ConfigNode file = ConfigNode::from_file(config);
    Json json = file.json();
    if (json.contains("base") && !json.contains("workload")) {
      file.fail("this is a sweep, not an experiment; run it with `moesim sweep`");
    }
    for (const std::string& change : overrides) apply_override(json, change);
    if (seed) json["seed"] = *seed;
    ConfigNode node(std::move(json), file.file());
    if (deployment.empty()) return node;
    if (!is_shared(node)) node.fail("has no \"deployments\"; leave out --deployment");
    return tenant_experiment(node, deployment);
  }
};

}  // namespace moesim
