// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "sim/placement/copies_by_gain.hpp"
#include "sim/placement/files/placement_file.hpp"
#include "sim/placement/placement.hpp"
#include "sim/placement/placement_score.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/policy_options.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

namespace {

// Pairs of a slot and a GPU in a layer: a second or so, as on 16,384 GPUs with a slot each.
constexpr std::int64_t most_comparisons = 1 << 28;

struct PlaceOptions {
  PolicyOptions policy;
  std::string placement, load, trace, output, format = "sglang", copies = "uniform";
  int gpus = 0, slots = 0, nodes = 1, groups = 1, first_layer = 0;
  double replication = 1;
  bool score = false, json = false;
};

// Slots per GPU from the total (--slots) or from a ratio (--replication).
int slots_per_gpu(const PlaceOptions& options, int experts) {
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

struct Seen : ExpertStatistics {
  std::vector<int> layers;  // the model's, by number
};

std::optional<Seen> what_was_seen(const PlaceOptions& options, const Observation& what) {
  if (!options.load.empty()) {
    Seen seen{{read_load(options.load)}, {}};
    seen.layers.resize(seen.load.size());
    std::iota(seen.layers.begin(), seen.layers.end(), 0);
    return seen;
  }
  if (options.trace.empty()) return std::nullopt;
  const RoutingTrace trace = RoutingTrace::open(options.trace);
  trace.check_ids();
  return Seen{observe(std::array{&trace}, what), trace.meta().layer_ids};
}

struct Placed {
  ExpertPlacement placement;
  std::vector<ExpertLoad> load;  // uniform where none was seen
};

// By --policy, from what was seen.
Placed make_placement(const PlaceOptions& options) {
  if (options.policy.name.empty()) throw ConfigError("place needs --policy or --placement");
  const auto placer = placers().make(options.policy.node());
  std::optional<Seen> seen = what_was_seen(options, placer->needs());
  if (!seen) throw ConfigError("--policy needs --load FILE or --trace DIR");
  if (options.gpus == 0) throw ConfigError("--policy needs --gpus");
  PlacementProblem problem;
  problem.experts = static_cast<int>(seen->load.front().size());
  problem.gpus = options.gpus;
  problem.slots_per_gpu = slots_per_gpu(options, problem.experts);
  const std::int64_t slots = std::int64_t{problem.slots_per_gpu} * problem.gpus;
  if (slots * problem.gpus > most_comparisons) {
    throw ConfigError(
        fmt::format("--gpus {}: {} slots in a layer; expected at most {} on that many "
                    "GPUs: packing compares each slot with each GPU",
                    options.gpus, slots, most_comparisons / problem.gpus));
  }
  problem.nodes = options.nodes;
  problem.groups = options.groups;
  problem.moe_layers = seen->layers;
  problem.model_layers = *std::ranges::max_element(seen->layers) + 1;
  Remarks().say(placer->remark(problem));
  ExpertPlacement placement = options.copies == "by_gain" ? place_by_gain(*placer, problem, *seen)
                                                          : place_all(*placer, problem, *seen);
  return {std::move(placement), std::move(seen->load)};
}

// From --placement.
Placed read_placed(const PlaceOptions& options) {
  Placed placed;
  placed.placement =
      read_placement(std::filesystem::path(options.placement), {options.gpus, options.first_layer});
  std::optional<Seen> seen = what_was_seen(options, {});
  placed.load = seen ? std::move(seen->load) : uniform_load(placed.placement);
  return placed;
}

std::string to_text(const ExpertPlacement& placement, const PlacementScore& score) {
  int fewest = std::numeric_limits<int>::max(), most = 0;
  for (const LayerPlacement& layer : placement) {
    for (int gpu = 0; gpu < layer.gpus(); ++gpu) {
      const int slots = layer.first_slot(gpu + 1) - layer.first_slot(gpu);
      fewest = std::min(fewest, slots);
      most = std::max(most, slots);
    }
  }
  std::string copies;
  for (std::size_t n = 1; n < score.experts_with_copies.size(); ++n) {
    if (score.experts_with_copies[n] == 0) continue;
    copies += fmt::format("{}{} x {}", copies.empty() ? "" : ", ", n, score.experts_with_copies[n]);
  }
  return fmt::format(
      "{} layers of {} experts on {} GPUs with {} slots each\n"
      "tokens, fullest over mean GPU   mean {:.3f}, worst {:.3f} (layer {})\n"
      "copies useless beside another   {}\n"
      "copies x experts, all layers    {}\n",
      placement.size(), placement.front().experts(), placement.front().gpus(),
      fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most),
      score.imbalance_mean, score.imbalance_worst, score.worst_layer, score.same_gpu_copies,
      copies);
}

int place(const PlaceOptions& options) {
  const Placed placed = options.placement.empty() ? make_placement(options) : read_placed(options);
  const auto name = std::find(placement_format_names.begin(), placement_format_names.end(),
                              std::string_view(options.format));
  const auto format = static_cast<PlacementFormat>(name - placement_format_names.begin());
  if (!options.output.empty()) {
    write_file(options.output, placement_bytes(placed.placement, format, options.first_layer));
  }
  if (options.score) {
    const PlacementScore score = score_placement(placed.placement, placed.load);
    print(options.json ? to_json(score).dump() + "\n" : to_text(placed.placement, score));
  } else if (options.output.empty()) {
    if (format == PlacementFormat::npy) throw ConfigError("--format npy needs a file: -o F.npy");
    print(placement_bytes(placed.placement, format, options.first_layer));
  }
  return 0;
}

}  // namespace

Action setup_place(CLI::App& command) {
  const auto options = std::make_shared<PlaceOptions>();
  options->policy.add_to(command);
  auto* policy = command.get_option("--policy")->required(false);
  command
      .add_option("--placement", options->placement,
                  "a placement file to score or to write in another format, instead of --policy")
      ->excludes(policy);
  auto* load = command.add_option(
      "--load", options->load,
      "observed tokens: {\"load\": [layers][experts]}, SGLang's {\"logical_count\": ..} or .npy "
      "([steps,] layers, experts)");
  command.add_option("--trace", options->trace, "routing trace, counted instead")->excludes(load);
  command
      .add_option("--gpus", options->gpus,
                  "expert-parallel ranks; with --placement only if the file does not say")
      ->check(CLI::Range(1, 1 << 16));
  auto* slots =
      command.add_option("--slots", options->slots, "slots of all GPUs together, per layer")
          ->check(CLI::Range(1, 1 << 24));
  command.add_option("--replication", options->replication, "slots per expert (default: 1)")
      ->check(a_number(1, 1e6))
      ->excludes(slots);
  command
      .add_option("--copies", options->copies,
                  "by_gain: more copies in layers where these gain more (default: uniform)")
      ->check(CLI::IsMember({"uniform", "by_gain"}))
      ->needs(policy);
  command.add_option("--nodes", options->nodes, "nodes that hold the GPUs (default: 1)")
      ->check(CLI::Range(1, 1 << 16));
  command.add_option("--groups", options->groups, "expert groups (default: 1)")
      ->check(CLI::Range(1, 1 << 16));
  command
      .add_option("--format", options->format, "format of the written placement (default: sglang)")
      ->check(CLI::IsMember(
          std::vector<std::string>(placement_format_names.begin(), placement_format_names.end())));
  command
      .add_option("--first-layer", options->first_layer,
                  "the model's first MoE layer: sglang and trtllm count dense ones (default: 0)")
      ->check(CLI::Range(0, 1 << 20));
  auto* score = command.add_flag(
      "--score", options->score,
      "print how even the placement is for the load (uniform if none), not itself");
  command.add_flag("--json", options->json, "print the score as JSON")->needs(score);
  command.add_option("-o,--output", options->output, "placement file to write (default: stdout)");
  return [options] { return place(*options); };
}

}  // namespace moesim
