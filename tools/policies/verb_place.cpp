// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "models/moe_model.hpp"
#include "sim/placement/copies_by_gain.hpp"
#include "sim/placement/files/placement_file.hpp"
#include "sim/placement/placement.hpp"
#include "sim/placement/placement_score.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/policy_options.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/verbs.hpp"
#include "traces/expert_load.hpp"

namespace moesim {

namespace {

// Pairs of a slot and a GPU in a layer: a second or so, as on 16,384 GPUs with a slot each.
constexpr std::int64_t most_comparisons = 1 << 28;

struct PlaceOptions {
  PolicyOptions policy;
  std::string placement, load, trace, model, output, format = "sglang", copies = "uniform";
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
        "--slots {}: the slots of all {} GPUs together must hold {} experts and divide "
        "evenly; e.g. {}",
        options.slots, options.gpus, experts, fitting);
  }
  return options.slots / options.gpus;
}

struct Seen : ExpertStatistics {
  LayerNumbers layers;
};

std::optional<MoeModel> model_of(const PlaceOptions& options) {
  if (options.model.empty()) return std::nullopt;
  return read_model(named_model(options.model));
}

LayerNumbers numbers_in(const MoeModel& model) {
  return {.numbers = model.moe_layer_numbers(), .all = model.numbered_layers};
}

// Engines count slots where copies are on (vLLM's expert_load_window), which are no experts.
void require_experts(const std::string& file, std::size_t found, const MoeModel& model) {
  if (found != at(model.experts))
    throw ConfigError(
        fmt::format("{}: has {} experts; {} has {}{}", file, found, model.name, model.experts,
                    found > at(model.experts) ? ". Counts of slots are no load" : ""));
}

// Rows of a load that are of layers with experts: the model's, or those with tokens, because dense
// layers' rows are zeros in what engines dump.
Seen rows_with_experts(const PlaceOptions& options, std::vector<ExpertLoad> rows) {
  Seen seen;
  if (const std::optional<MoeModel> model = model_of(options)) {
    require_experts(options.load, rows.front().size(), *model);
    seen.layers = numbers_in(*model);
    seen.load = moe_rows(options.load, rows, *model);
    if (seen.load.empty())
      throw ConfigError("{}: has {} layers; {} has {}, {} of them with experts", options.load,
                        rows.size(), model->name, model->numbered_layers,
                        seen.layers.numbers.size());
  } else {
    const auto counted = [](const ExpertLoad& row) {
      return std::ranges::any_of(row, [](double tokens) { return tokens > 0; });
    };
    // If nothing was counted at all, no row tells a dense layer.
    const bool some_dense =
        !std::ranges::all_of(rows, counted) && std::ranges::any_of(rows, counted);
    for (std::size_t i = 0; some_dense && i < rows.size(); ++i) {
      if (!counted(rows[i])) continue;
      seen.layers.numbers.push_back(static_cast<int>(i));
      seen.load.push_back(std::move(rows[i]));
    }
    if (!some_dense) {
      seen.load = std::move(rows);
      seen.layers.first = options.first_layer;
      return seen;
    }
    const int first = seen.layers.numbers.front();
    if (options.first_layer != 0 && options.first_layer != first)
      throw ConfigError("--first-layer {}: the first layer of {} with tokens is {}",
                        options.first_layer, options.load, first);
    seen.layers.all = static_cast<int>(rows.size());
  }
  if (rows.size() > seen.load.size())
    Remarks().say(
        fmt::format("{}: {} of {} rows are taken; the others are of layers without experts",
                    options.load, seen.load.size(), rows.size()));
  return seen;
}

std::optional<Seen> what_was_seen(const PlaceOptions& options, const Observation& what) {
  if (!options.load.empty()) return rows_with_experts(options, read_load(options.load));
  if (options.trace.empty()) return std::nullopt;
  const RoutingTrace trace = RoutingTrace::open(options.trace);
  trace.check_ids();
  Remarks().say(trace.loops_remark("left out"));
  Seen seen{observe(std::array{&trace}, what), {.numbers = trace.meta().layer_ids}};
  if (const std::optional<MoeModel> model = model_of(options)) {
    require_experts(options.trace, at(trace.num_experts()), *model);
    if (model->moe_layers() != trace.layers())
      throw ConfigError("{}: has {} layers; {} has {} with experts", options.trace, trace.layers(),
                        model->name, model->moe_layers());
    seen.layers = numbers_in(*model);
  }
  return seen;
}

struct Placed {
  ExpertPlacement placement;
  LayerNumbers layers;
  std::vector<ExpertLoad> load;  // uniform where none was seen
};

// Makes a placement by --policy, from what was seen.
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
        "--gpus {}: {} slots in a layer; expected at most {} on that many GPUs: "
        "packing compares each slot with each GPU",
        options.gpus, slots, most_comparisons / problem.gpus);
  }
  problem.nodes = options.nodes;
  problem.groups = options.groups;
  problem.moe_layers = numbers_of(seen->load.size(), seen->layers);
  problem.model_layers = std::max(seen->layers.all, problem.moe_layers.back() + 1);
  Remarks().say(placer->remark(problem));
  ExpertPlacement placement = options.copies == "by_gain" ? place_by_gain(*placer, problem, *seen)
                                                          : place_all(*placer, problem, *seen);
  return {std::move(placement), std::move(seen->layers), std::move(seen->load)};
}

// The layers that were seen, of a placement that has rows for others too.
void keep_seen(Placed& placed, const LayerNumbers& seen, std::size_t layers) {
  const std::vector<int> numbers = numbers_of(placed.placement.size(), placed.layers);
  if (numbers.size() == layers) return;
  ExpertPlacement kept;
  for (const int layer : numbers_of(layers, seen)) {
    const auto found = std::ranges::find(numbers, layer);
    if (found == numbers.end()) return;
    kept.push_back(placed.placement[at(found - numbers.begin())]);
  }
  placed.placement = std::move(kept);
  placed.layers = seen;
}

// From --placement.
Placed read_placed(const PlaceOptions& options) {
  PlacementRows rows = read_placement_rows(std::filesystem::path(options.placement),
                                           {options.gpus, options.first_layer});
  Placed placed{{}, {std::move(rows.numbers), options.first_layer, 0}, {}};
  rows.numbers = placed.layers.numbers;
  PlacementProblem problem;
  if (const std::optional<MoeModel> model = model_of(options)) {
    placed.layers = numbers_in(*model);
    problem.moe_layers = placed.layers.numbers;
    problem.model_layers = model->numbered_layers;
    problem.draft_layers = model->draft_layers;
    if (const int experts = rows.layers.front().experts(); experts != model->experts)
      throw ConfigError("{}: places {} experts; {} has {}", options.placement, experts, model->name,
                        model->experts);
  }
  const TakenRows taken = take_rows(options.placement, rows, problem);
  Remarks().say(taken.remark);
  for (const std::size_t row : taken.rows) placed.placement.push_back(rows.layers[row]);
  std::optional<Seen> seen = what_was_seen(options, {});
  if (seen) keep_seen(placed, seen->layers, seen->load.size());
  placed.load = seen ? std::move(seen->load) : uniform_load(placed.placement);
  return placed;
}

std::string to_text(const Placed& placed, const PlacementScore& score) {
  const ExpertPlacement& placement = placed.placement;
  double fewest = std::numeric_limits<double>::max(), most = 0;
  for (const LayerPlacement& layer : placement) {
    for (int gpu = 0; gpu < layer.gpus(); ++gpu) {
      const double slots = layer.whole_slots(gpu);
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
      score.imbalance_mean, score.imbalance_worst,
      numbers_of(placement.size(), placed.layers)[at(score.worst_layer)], score.same_gpu_copies,
      copies);
}

int place(const PlaceOptions& options) {
  const Placed placed = options.placement.empty() ? make_placement(options) : read_placed(options);
  const auto name = std::ranges::find(placement_format_names, std::string_view(options.format));
  const auto format = static_cast<PlacementFormat>(name - placement_format_names.begin());
  if (!options.output.empty()) {
    write_file(options.output, placement_bytes(placed.placement, format, placed.layers));
  }
  if (options.score) {
    const PlacementScore score = score_placement(placed.placement, placed.load);
    print(options.json ? to_json(score).dump() + "\n" : to_text(placed, score));
  } else if (options.output.empty()) {
    if (format == PlacementFormat::npy) throw ConfigError("--format npy needs a file: -o F.npy");
    print(placement_bytes(placed.placement, format, placed.layers));
  }
  return 0;
}

}  // namespace

Action setup_place(CLI::App& command) {
  const auto options = std::make_shared<PlaceOptions>();
  options->policy.add_to(command);
  auto* policy = command.get_option("--policy")->required(false);
  option(command, "--placement", options->placement,
         "a placement file to score or to write in another format, instead of --policy")
      ->excludes(policy);
  auto* load = command.add_option("--load", options->load,
                                  "observed tokens: {\"load\": [layers][experts]}, SGLang's "
                                  "{\"logical_count\": ..} or .npy ([steps,] layers, experts)");
  option(command, "--trace", options->trace, "routing trace, counted instead")->excludes(load);
  option(command, "--gpus", options->gpus,
         "expert-parallel ranks; with --placement only if the file does not say",
         CLI::Range(1, 1 << 16));
  auto* slots = option(command, "--slots", options->slots, "slots of all GPUs together, per layer",
                       CLI::Range(1, 1 << 24))
                    ->needs(policy);
  option(command, "--replication", options->replication, "slots per expert (default: 1)",
         a_number(1, 1e6))
      ->excludes(slots)
      ->needs(policy);
  option(command, "--copies", options->copies,
         "by_gain: more copies in layers where these gain more (default: uniform)",
         CLI::IsMember({"uniform", "by_gain"}))
      ->needs(policy);
  option(command, "--nodes", options->nodes, "nodes that hold the GPUs (default: 1)",
         CLI::Range(1, 1 << 16))
      ->needs(policy);
  option(command, "--groups", options->groups, "expert groups (default: 1)", CLI::Range(1, 1 << 16))
      ->needs(policy);
  option(command, "--format", options->format, "format of the written placement (default: sglang)",
         CLI::IsMember(std::vector<std::string>(placement_format_names.begin(),
                                                placement_format_names.end())));
  auto* first_layer =
      option(command, "--first-layer", options->first_layer,
             "the model's first MoE layer: sglang and trtllm count dense ones (default: 0)",
             CLI::Range(0, 9999));
  option(command, "--model", options->model,
         "model that says which layers have experts, and their numbers in files")
      ->excludes(first_layer);
  auto* score = command.add_flag(
      "--score", options->score,
      "print how even the placement is for the load (uniform if none), not itself");
  command.add_flag("--json", options->json, "print the score as JSON")->needs(score);
  command.add_option("-o,--output", options->output, "placement file to write (default: stdout)");
  return [options] { return place(*options); };
}

}  // namespace moesim
