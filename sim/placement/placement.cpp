// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/placement.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "sim/placement/placers.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<Placer>::Maker make_linear, make_round_robin, make_random, make_eplb, make_eplb_distinct,
    make_flat, make_coactivation, make_joint, make_cut_coldest, make_from_file;
Keys random_placement_keys, eplb_distinct_placement_keys, flat_placement_keys,
    coactivation_placement_keys, joint_placement_keys, cut_coldest_placement_keys,
    from_file_placement_keys;

namespace {

std::int32_t count(const std::vector<std::int32_t>& values) {
  return static_cast<std::int32_t>(values.size());
}

}  // namespace

LayerPlacement::LayerPlacement(int experts, const std::vector<std::vector<int>>& experts_on_gpu,
                               std::span<const int> cut)
    : cut_(static_cast<int>(cut.size())) {
  std::vector<std::vector<std::int32_t>> slots_of_expert(at(std::max(experts, 0)));
  first_slot_.push_back(0);
  for (std::size_t gpu = 0; gpu < experts_on_gpu.size(); ++gpu) {
    const auto add = [&](int expert) {
      if (expert < 0 || expert >= experts) {
        throw std::invalid_argument(
            fmt::format("GPU {} holds expert {}; expected 0 to {}", gpu, expert, experts - 1));
      }
      slots_of_expert[at(expert)].push_back(count(expert_of_slot_));
      expert_of_slot_.push_back(expert);
      gpu_of_slot_.push_back(static_cast<std::int32_t>(gpu));
    };
    for (const int expert : experts_on_gpu[gpu]) add(expert);
    for (const int expert : cut) add(expert);
    first_slot_.push_back(count(expert_of_slot_));
  }
  for (const int expert : cut) {
    if (slots_of_expert[at(expert)].size() != experts_on_gpu.size())
      throw std::invalid_argument(fmt::format("expert {} is whole and cut", expert));
  }

  slots_begin_.push_back(0);
  hosts_begin_.push_back(0);
  for (std::size_t expert = 0; expert < slots_of_expert.size(); ++expert) {
    if (slots_of_expert[expert].empty()) {
      throw std::invalid_argument(fmt::format("expert {} has no slot", expert));
    }
    std::int32_t last_gpu = -1;
    for (const std::int32_t slot : slots_of_expert[expert]) {
      slots_.push_back(slot);
      if (gpu_of_slot(slot) == last_gpu) continue;
      last_gpu = gpu_of_slot(slot);
      hosts_.push_back(slot);
      host_gpus_.push_back(last_gpu);
    }
    slots_begin_.push_back(count(slots_));
    hosts_begin_.push_back(count(hosts_));
  }
}

int slots_for_replication(int experts, int gpus, double ratio) {
  const double slots = ratio * experts / gpus;
  if (!(ratio >= 1) || !(slots < 1e6)) {
    throw ConfigError(
        "replication {} is out of range; expected at least 1 (one slot per expert) "
        "and at most {} (every expert on every GPU)",
        ratio, gpus);
  }
  // 1.1 * 160 is 176.00000000000003 in binary: not a slot more.
  return static_cast<int>(std::ceil(slots * (1 - 1e-12)));
}

void require_sound(const PlacementProblem& problem, std::span<const double> load) {
  if (problem.experts < 1 || problem.gpus < 1) {
    throw ConfigError("placement of {} experts on {} GPUs; expected at least 1 of each",
                      problem.experts, problem.gpus);
  }
  if (problem.nodes < 1 || problem.groups < 1) {
    throw ConfigError(
        "placement over {} nodes and {} expert groups; expected at least "
        "1 of each",
        problem.nodes, problem.groups);
  }
  if (std::int64_t{problem.slots_per_gpu} * problem.gpus < problem.experts) {
    throw ConfigError(
        "{} slots on each of {} GPUs cannot hold {} experts; expected at least {} slots per GPU",
        problem.slots_per_gpu, problem.gpus, problem.experts,
        (problem.experts + problem.gpus - 1) / problem.gpus);
  }
  if (load.size() != at(problem.experts)) {
    throw ConfigError("the load has {} experts; expected {}", load.size(), problem.experts);
  }
  for (std::size_t i = 0; i < load.size(); ++i) {
    if (!std::isfinite(load[i]) || load[i] < 0) {
      throw ConfigError("the load of expert {} is {}; expected a finite number >= 0", i, load[i]);
    }
  }
}

LayerPlacement placement_of_slots(const PlacementProblem& problem,
                                  std::span<const int> expert_of_slot) {
  check(expert_of_slot.size() == at(problem.gpus) * at(problem.slots_per_gpu),
        "a placer filled another number of slots than there are");
  std::vector<std::vector<int>> experts_on_gpu;
  for (int gpu = 0; gpu < problem.gpus; ++gpu) {
    const auto slots =
        expert_of_slot.subspan(at(gpu) * at(problem.slots_per_gpu), at(problem.slots_per_gpu));
    experts_on_gpu.emplace_back(slots.begin(), slots.end());
  }
  return {problem.experts, experts_on_gpu};
}

const Registry<Placer>& placers() {
  static const Registry<Placer> table(
      "placement",
      {{"linear", "consecutive experts in blocks, redundant slots from expert 0 on (vLLM's start)",
        make_linear},
       {"round_robin", "expert e on GPU e mod G, redundant slots onward round the GPUs",
        make_round_robin},
       {"random", "experts dealt out in random order, copies of one on distinct GPUs", make_random,
        random_placement_keys},
       {"eplb", "DeepSeek's EPLB: replicate the hottest experts, pack by load, by node and by GPU",
        make_eplb},
       {"eplb_distinct", "EPLB's rules, but never two copies on a GPU; may spread them over nodes",
        make_eplb_distinct, eplb_distinct_placement_keys},
       {"flat", "one more copy of each of the hottest experts before any gets a third", make_flat,
        flat_placement_keys},
       {"coactivation", "experts that tokens pick together on one GPU, loads balanced within slack",
        make_coactivation, coactivation_placement_keys},
       {"joint", "fewest experts activated in sampled batches by exact routing, tokens even too",
        make_joint, joint_placement_keys},
       {"cut_coldest",
        "the experts of least load cut over all GPUs, the others whole, packed by EPLB",
        make_cut_coldest, cut_coldest_placement_keys},
       {"from_file", "a placement made elsewhere, in any format that `place` writes",
        make_from_file, from_file_placement_keys}});
  return table;
}

ExpertPlacement place_all(const Placer& placer, const PlacementProblem& problem,
                          const ExpertStatistics& seen) {
  std::vector<std::optional<LayerPlacement>> layers(seen.load.size());
  std::vector<std::exception_ptr> errors(layers.size());
  tbb::parallel_for(std::size_t{0}, layers.size(), [&](std::size_t layer) {
    try {
      layers[layer] = placer.place(problem, seen.layer(layer), static_cast<int>(layer));
    } catch (...) {
      errors[layer] = std::current_exception();
    }
  });
  ExpertPlacement placement;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (errors[layer]) std::rethrow_exception(errors[layer]);  // the first layer's, on any thread
    placement.push_back(std::move(*layers[layer]));
  }
  return placement;
}

ExpertPlacement place_all(const Placer& placer, const PlacementProblem& problem,
                          std::span<const ExpertLoad> load) {
  return place_all(placer, problem, ExpertStatistics{{load.begin(), load.end()}});
}

ExpertPlacement place_unseen(const Placer& placer, const PlacementProblem& problem, int layers) {
  const std::vector<ExpertLoad> nothing(at(layers), ExpertLoad(at(problem.experts)));
  if (!placer.uses_load()) return place_all(placer, problem, nothing);
  return place_all(*placers().make(ConfigNode("linear", "placement")), problem, nothing);
}

}  // namespace moesim
