// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/read_placement.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/choice.hpp"

namespace moesim {

namespace {

enum class LoadSource { trace, none };
constexpr std::array<std::string_view, 2> load_source_names{"trace", "none"};
enum class CopiesPerLayer { uniform, by_gain };
constexpr std::array<std::string_view, 2> copies_names{"uniform", "by_gain"};

std::span<const Key> load_keys() {
  static constexpr Key keys[] = {
      {"from", form::choice(load_source_names), "trace", "what the placement has seen"},
      {"disjoint", form::flag, "false",
       "the fit sees one half of each workload's requests; the rest runs"},
      {"workloads", form::list(form::text), unset("all"),
       "tags of the requests that the fit sees"}};
  return keys;
}

struct Load {
  bool from_trace, disjoint;
  std::vector<std::string> workloads{};
};

Load read_load(const ConfigNode& node) {
  return read_object(node, load_keys, [](ConfigReader& reader) {
    const auto source = choice<LoadSource>(reader, "from", load_source_names);
    Load load{source == LoadSource::trace, reader.flag("disjoint")};
    if (!reader.optional("workloads")) return load;
    for (const ConfigNode& tag : reader.child("workloads").list()) {
      load.workloads.push_back(tag.text());
    }
    return load;
  });
}

// Only a placement from loads, which stands, knows what copies gain.
bool read_by_gain(ConfigReader& reader, const Load& load) {
  if (choice<CopiesPerLayer>(reader, "copies", copies_names) == CopiesPerLayer::uniform)
    return false;
  if (!load.from_trace)
    reader.child("copies").fail(
        "\"by_gain\" goes by a load that was seen; use \"load\": {\"from\": \"trace\"}");
  return true;
}

// A dense model has no experts to place; the options are held to their tables all the same.
void place_nothing(ConfigReader& reader, const Registry<Placer>& placers) {
  reader.number("replication", {1, 1});
  reader.flag("strict");
  choice<CopiesPerLayer>(reader, "copies", copies_names);
  read_load(reader.child("load"));
  placers.make_from(reader);
}

// The slots that there are to fill.
PlacementProblem problem_of(const PoolSpec& spec) {
  PlacementProblem problem;
  problem.experts = spec.model.experts;
  problem.gpus = spec.parallel.ep;
  problem.slots_per_gpu = slots_for_replication(problem.experts, problem.gpus, spec.replication);
  problem.groups = spec.model.expert_groups;
  problem.model_layers = spec.model.numbered_layers;
  problem.draft_layers = spec.model.draft_layers;
  problem.moe_layers = spec.model.moe_layer_numbers();
  const int domain = spec.expert_cluster().scale_up_domain;
  problem.nodes = (spec.parallel.expert_gpus() + domain - 1) / domain;
  return problem;
}

// Text of all that a placer goes by apart from what was seen of the traces: its name, its options,
// the slots.
std::string key_of(const ConfigReader& reader, const ChosenPolicies& spec) {
  const Registry<Placer>& placers = spec.policies->placement;
  const Json& json = reader.node().json();
  const auto row = std::ranges::find(placers.entries(), json.at("type").get<std::string>(),
                                     &Registry<Placer>::Entry::name);
  const PlacementProblem& problem = spec.placement_problem;
  return fmt::format("{} {} {} {} {} {} {} {}", fmt::ptr(row->make), json.dump(), problem.gpus,
                     problem.slots_per_gpu, problem.nodes, problem.groups, problem.model_layers,
                     problem.moe_layers);
}

}  // namespace

std::span<const Key> placement_keys() {
  static constexpr Key keys[] = {
      {"replication", form::number(non_negative), "1", "expert slots over experts, 1 to the GPUs"},
      {"copies", form::choice(copies_names), "uniform",
       "by_gain: more copies in layers where these gain more (CRAFT)"},
      {"strict", form::flag, "false", "refuse a replication that does not fill GPUs evenly"},
      {"load", form::object(load_keys), "{}", "load that the placement is fitted to"}};
  return keys;
}

void read_placement(const ConfigNode& node, PoolSpec& spec) {
  read_object(node.as_policy(), placement_keys, [&](ConfigReader& reader) {
    const int experts = spec.model.experts;
    const int ranks = spec.parallel.ep;
    if (experts == 0) return place_nothing(reader, spec.policies->placement);
    spec.replication = reader.number("replication", {1.0, double(ranks)});
    if (spec.replication * experts < ranks)
      reader.node().fail(
          "ep {} is more than the model's {} experts; give a \"replication\" of at least {:.4g}, "
          "so that every GPU has a slot",
          ranks, experts, double(ranks) / experts);
    spec.placement_problem = problem_of(spec);
    spec.replication_effective = double(spec.placement_problem.slots_per_gpu) * ranks / experts;
    const bool strict = reader.flag("strict");
    if (strict && std::abs(spec.replication_effective - spec.replication) > 1e-9) {
      reader.child("replication")
          .fail(
              "{} x {} experts does not fill {} GPUs evenly; the next ratio that does "
              "is {}, or leave \"strict\" out",
              spec.replication, experts, ranks, spec.replication_effective);
    }
    if (spec.replication == 1 && experts % ranks != 0)
      spec.remarks.push_back(
          fmt::format("\"placement\": {} experts do not fill {} GPUs evenly; slots of a layer "
                      "that hold copies: {}. vLLM leaves the last GPUs one expert less, SGLang "
                      "refuses",
                      experts, ranks, spec.placement_problem.slots_per_gpu * ranks - experts));
    Load load = read_load(reader.child("load"));
    spec.bind_odd_only = load.disjoint;
    const bool by_gain = read_by_gain(reader, load);
    spec.placed = {spec.policies->placement.make_from(reader), load.from_trace,
                   std::move(load.workloads), by_gain};
    if (spec.placed.placer->uses_load()) spec.placed.key = key_of(reader, spec);
    std::string remark = spec.placed.placer->remark(spec.placement_problem);
    if (!remark.empty()) spec.remarks.push_back(std::move(remark));
    if (!spec.placed.placer->cuts()) return;
    ParallelPlan cut = spec.parallel;
    cut.ep = 1;
    if (std::string warning = slice_warning(spec.model, cut, spec.precision); !warning.empty())
      spec.remarks.push_back("of cut experts: " + warning);
  });
}

}  // namespace moesim
