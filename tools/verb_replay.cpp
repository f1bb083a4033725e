// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "sim/replay.hpp"
#include "tools/output.hpp"
#include "tools/table.hpp"
#include "tools/verbs.hpp"

namespace moesim {

namespace {

struct Options {
  std::string trace;
  std::vector<std::string> placements{"eplb"};
  std::vector<std::string> routings{"even", "metro", "optimal"};
  std::string sample = "distinct", fit = "self";
  ReplayConfig config;
  bool json = false;
};

// Names, comma-separated, or one JSON object with options: {"type": "random", "seed": 2}.
std::vector<ConfigNode> policies(const std::vector<std::string>& arguments, const char* flag) {
  std::vector<ConfigNode> nodes;
  for (const std::string& argument : arguments) {
    if (argument.starts_with('{')) {
      Json policy = Json::parse(argument, nullptr, false);
      if (policy.is_discarded()) {
        throw ConfigError(fmt::format(
            "{} {}: not JSON; expected names or {{\"type\": NAME, options}}", flag, argument));
      }
      nodes.emplace_back(std::move(policy), flag);
      continue;
    }
    for (const std::string& name : CLI::detail::split(argument, ',')) {
      nodes.emplace_back(Json(name), flag);
    }
  }
  return nodes;
}

std::string to_text(const std::vector<ReplayRow>& rows) {
  Table table({"placement", "replication", "batch", "routing", "max activated", "max tokens",
               "vs optimal", "vs even", "inversions"});
  for (const ReplayRow& row : rows) {
    table.add({row.placement, fmt::format("{:.4g}x", row.replication_effective),
               fmt::format("{}", row.batch), row.routing,
               fmt::format("{:.3f}", row.max_activated_mean),
               fmt::format("{:.2f}", row.max_tokens_mean),
               fmt::format("{:.4f}", row.activated_vs_optimal),
               fmt::format("{:.4f}", row.activated_vs_even),
               fmt::format("{:.2f} %", 100.0 * double(row.above_even) / double(row.cases))});
  }
  return table.text() +
         "max: slots with tokens (tokens) on the busiest GPU, mean over layers and batches; "
         "inversions: layers of\nbatches where a routing activates more than the even split\n";
}

}  // namespace

Action setup_replay(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  ReplayConfig& config = options->config;
  config.replications = {1.0};
  config.batches = {32};
  config.seed = 1;
  command.add_option("--trace", options->trace, "routing trace, a directory")->required();
  command.add_option("--gpus", config.gpus, "expert-parallel ranks")
      ->required()
      ->check(CLI::Range(1, 1 << 16));
  command.add_option(
      "--placement", options->placements,
      "policies, comma-separated, or one as JSON with its options; repeatable (eplb)");
  command.add_option("--replication", config.replications, "slots per expert (1.0)")
      ->delimiter(',');
  command.add_option("--routing", options->routings,
                     "the same for routing policies (even,metro,optimal)");
  command.add_option("--batch", config.batches, "tokens per batch (32)")->delimiter(',');
  command
      .add_option("--sample", options->sample,
                  "distinct: one token of each of B requests; consecutive: B tokens of one")
      ->check(CLI::IsMember(
          std::vector<std::string>(replay_sample_names.begin(), replay_sample_names.end())));
  command
      .add_option("--fit", options->fit,
                  "placement fitted on the whole trace (self) or on even requests, scored on odd "
                  "ones (half)")
      ->check(CLI::IsMember(
          std::vector<std::string>(replay_fit_names.begin(), replay_fit_names.end())));
  command.add_option("--batches", config.sampled_batches, "sampled batches (200)")
      ->check(CLI::PositiveNumber);
  command.add_option("--nodes", config.nodes, "nodes the GPUs stand in (1)")
      ->check(CLI::PositiveNumber);
  command.add_option("--groups", config.groups, "expert groups (1)")->check(CLI::PositiveNumber);
  command.add_option("--seed", config.seed, "of the sampled batches (1)");
  command.add_flag("--json", options->json, "print JSON instead of a table");
  return [options] {
    ReplayConfig asked = options->config;
    asked.placements = policies(options->placements, "--placement");
    asked.routings = policies(options->routings, "--routing");
    asked.sample =
        options->sample == "distinct" ? ReplaySample::distinct : ReplaySample::consecutive;
    asked.fit = options->fit == "self" ? ReplayFit::self : ReplayFit::half;
    const std::vector<ReplayRow> rows = replay(RoutingTrace::open(options->trace), asked);
    print(options->json ? to_json(rows).dump(1) + "\n" : to_text(rows));
    return 0;
  };
}

}  // namespace moesim
