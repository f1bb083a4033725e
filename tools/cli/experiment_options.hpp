// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "hardware/config.hpp"
#include "models/moe_model.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/experiment/shared_cluster.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/serving_options.hpp"

namespace moesim {

/// Throws ConfigError where a change on the command line is beside pools that both have their own.
inline void refuse_change_beside_pools(const Json& config, const std::string& change) {
  const std::string pointer = change.substr(0, change.find('='));
  const std::string key = pointer.substr(1, pointer.find('/', 1) - 1);
  if (!both_pools_have(config, key)) return;
  throw ConfigError(
      "--set {0}: has no effect, because both pools have their own \"{1}\"; set "
      "/pools/prefill{0} or /pools/decode{0}",
      pointer, key);
}

/// The options of every verb that reads one experiment: CONFIG, --set, --seed, --deployment.
struct ExperimentOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<std::int64_t> seed;
  std::string deployment;
  ServingOptions serving;  ///< the experiment where no file is named

  /// The same for verbs that also take a deployment as options.
  void add_with_deployment(CLI::App& command) {
    add_to(command);
    CLI::Option* file = command.get_option("CONFIG")->required(false);
    serving.add_to(command);
    for (CLI::Option* instead : command.get_options())
      if (instead->get_group() == "Instead of CONFIG") file->excludes(instead);
  }

  void add_to(CLI::App& command) {
    option(command, "CONFIG", config, "experiment, a JSON file", mandatory);
    option(command, "--set", overrides,
           "/json/pointer=value to set in the config; null takes the key away; repeatable",
           repeatable);
    command.footer(
        "CONFIG's keys, with units and defaults: moesim keys; for editors: moesim keys --schema");
    command.add_option("--seed", seed, "the same as --set /seed=N");
    command.add_option(
        "--deployment", deployment,
        "name of one of the config's deployments, to be looked at without the others");
  }

  /// The config with its overrides. Throws ConfigError.
  ConfigNode read() const {
    refuse_model_folder();
    const ConfigNode file =
        config.empty() ? serving.experiment() : ConfigNode::from_file(here_or_shipped(config));
    Json json = file.json();
    if ((is_hf_model(file) || json.contains("hidden")) && !json.contains("workload"))
      file.fail(not_an_experiment());
    if (json.contains("base") && !json.contains("workload"))
      file.fail("this is a sweep, not an experiment; run it with `moesim sweep`");
    if (!json.is_object()) file.fail("expected an object, the keys of an experiment");
    refuse_keys_beside_pools(file);
    for (const std::string& change : overrides) apply_override(json, change);
    for (const std::string& change : overrides) refuse_change_beside_pools(json, change);
    if (seed) json["seed"] = *seed;
    ConfigNode node(std::move(json), file.file());
    if (deployment.empty()) return node;
    if (!is_shared(node)) node.fail("has no \"deployments\"; leave out --deployment");
    return tenant_experiment(node, deployment);
  }

 private:
  std::string not_an_experiment() const {
    return fmt::format(
        "this is a model, not an experiment; run, explain and check take --model {} --gpu NAME "
        "--concurrency N, and check -o FILE writes that experiment",
        config);
  }
  void refuse_model_folder() const {
    std::error_code none;
    if (std::filesystem::is_regular_file(std::filesystem::path(config) / "config.json", none))
      throw ConfigError("{}: {}", config, not_an_experiment());
  }
};

}  // namespace moesim
