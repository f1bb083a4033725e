// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/live_ranks.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "hardware/at.hpp"

namespace moesim {

int slots_on_live(const PlacementProblem& problem, std::ptrdiff_t live) {
  check(live > 0, "no rank is left for experts");
  const auto ranks = static_cast<int>(live);
  return std::max(problem.slots_per_gpu, (problem.experts + ranks - 1) / ranks);
}

LayerPlacement place_on_live(const Placer& placer, const PlacementProblem& problem,
                             const LayerStatistics& seen, int layer, std::span<const char> live) {
  PlacementProblem rest = problem;
  rest.gpus =
      static_cast<int>(std::count_if(live.begin(), live.end(), [](char l) { return l != 0; }));
  if (rest.gpus == problem.gpus) return placer.place(problem, seen, layer);
  rest.nodes = rest.groups = 1;
  rest.slots_per_gpu = slots_on_live(problem, rest.gpus);
  const LayerPlacement placed = placer.place(rest, seen, layer);
  std::vector<std::vector<int>> experts_on_gpu(live.size());
  int gpu = 0;
  for (std::size_t rank = 0; rank < live.size(); ++rank) {
    if (live[rank] == 0) continue;
    for (int slot = placed.first_slot(gpu); slot < placed.first_slot(gpu + 1); ++slot) {
      experts_on_gpu[rank].push_back(placed.expert_of_slot(slot));
    }
    ++gpu;
  }
  return {problem.experts, experts_on_gpu};
}

namespace {

// `further` counts the slots that each rank was given beyond its own, over the layers before.
LayerPlacement layer_on_survivors(const LayerPlacement& placement, std::span<const char> live,
                                  std::vector<int>& further) {
  std::vector<std::vector<int>> experts_on_gpu(at(placement.gpus()));
  std::vector<int> copies(at(placement.experts()));
  for (int slot = 0; slot < placement.slots(); ++slot) {
    const int gpu = placement.gpu_of_slot(slot);
    if (live[at(gpu)] == 0) continue;
    experts_on_gpu[at(gpu)].push_back(placement.expert_of_slot(slot));
    ++copies[at(placement.expert_of_slot(slot))];
  }
  const auto add = [&](int expert) {
    std::size_t to = experts_on_gpu.size();
    for (std::size_t gpu = 0; gpu < experts_on_gpu.size(); ++gpu) {
      if (live[gpu] == 0) continue;
      const auto room = [&](std::size_t g) {
        return std::pair(experts_on_gpu[g].size(), further[g]);
      };
      if (to == experts_on_gpu.size() || room(gpu) < room(to)) to = gpu;
    }
    experts_on_gpu.at(to).push_back(expert);
    ++further[to];
  };
  for (std::size_t lost = 0; lost < copies.size(); ++lost) {
    if (copies[lost] > 0) continue;
    const auto most = std::max_element(copies.begin(), copies.end());
    const auto victim = static_cast<int>(most - copies.begin());
    ++copies[lost];
    if (*most < 2) {
      add(static_cast<int>(lost));
      continue;
    }
    const auto gpu = std::find_if(
        experts_on_gpu.rbegin(), experts_on_gpu.rend(), [&](const std::vector<int>& experts) {
          return std::find(experts.begin(), experts.end(), victim) != experts.end();
        });
    *std::find(gpu->rbegin(), gpu->rend(), victim) = static_cast<int>(lost);
    --*most;
  }
  return {placement.experts(), experts_on_gpu};
}

}  // namespace

ExpertPlacement on_survivors(const ExpertPlacement& placement, std::span<const char> live) {
  std::vector<int> further(live.size());
  ExpertPlacement all;
  for (const LayerPlacement& layer : placement)
    all.push_back(layer_on_survivors(layer, live, further));
  return all;
}

}  // namespace moesim
