// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "sim/placement/placement.hpp"
#include "sim/placement/placement_file.hpp"
#include "tools/output.hpp"
#include "tools/policy_options.hpp"
#include "tools/verbs.hpp"

namespace moesim {

namespace {

struct Options {
  PolicyOptions policy;
  std::string load, output;
  int gpus = 0, slots = 0, nodes = 1, groups = 1;
  double replication = 1;
};

// Slots per GPU from the total (--slots) or from a ratio (--replication).
int slots_per_gpu(const Options& options, int experts) {
  if (options.slots == 0) return slots_for_replication(experts, options.gpus, options.replication);
  if (options.slots < experts || options.slots % options.gpus != 0) {
    const int fitting =
        options.gpus * ((std::max(options.slots, experts) + options.gpus - 1) / options.gpus);
    throw ConfigError(
        fmt::format("--slots {}: the slots of all {} GPUs together must hold {} experts and divide "
                    "evenly; e.g. {}",
                    options.slots, options.gpus, experts, fitting));
  }
  return options.slots / options.gpus;
}

int place(const Options& options) {
  const auto placer = placers().make(options.policy.node());
  const std::vector<ExpertLoad> load = read_load(options.load);
  PlacementProblem problem;
  problem.experts = static_cast<int>(load.front().size());
  problem.gpus = options.gpus;
  problem.slots_per_gpu = slots_per_gpu(options, problem.experts);
  problem.nodes = options.nodes;
  problem.groups = options.groups;
  const std::string text = placement_json(place_all(*placer, problem, load)).dump() + "\n";
  if (options.output.empty()) {
    print(text);
  } else {
    write_file(options.output, text);
  }
  return 0;
}

}  // namespace

Action setup_place(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  options->policy.add_to(command);
  command
      .add_option(
          "--load", options->load,
          "observed tokens: {\"load\": [layers][experts]} or .npy ([steps,] layers, experts)")
      ->required();
  command.add_option("--gpus", options->gpus, "expert-parallel ranks")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  auto* slots =
      command.add_option("--slots", options->slots, "slots of all GPUs together, per layer")
          ->check(CLI::PositiveNumber);
  command.add_option("--replication", options->replication, "slots per expert (default: 1)")
      ->check(CLI::Range(1.0, 1e6))
      ->excludes(slots);
  command.add_option("--nodes", options->nodes, "nodes the GPUs stand in (default: 1)")
      ->check(CLI::PositiveNumber);
  command.add_option("--groups", options->groups, "expert groups (default: 1)")
      ->check(CLI::PositiveNumber);
  command.add_option("-o,--output", options->output, "placement file to write (default: stdout)");
  return [options] { return place(*options); };
}

}  // namespace moesim
