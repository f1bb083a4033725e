// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/placement_score.hpp"

#include <algorithm>
#include <numeric>

namespace moesim {

// load(g) = sum over slots of g of load(expert) / copies(expert).
double imbalance(const LayerPlacement& layer, std::span<const double> load) {
  std::vector<double> gpu_load(at(layer.gpus()));
  for (int slot = 0; slot < layer.slots(); ++slot) {
    const int expert = layer.expert_of_slot(slot);
    gpu_load[at(layer.gpu_of_slot(slot))] +=
        load[at(expert)] / double(layer.slots_of(expert).size());
  }
  const double total = std::accumulate(load.begin(), load.end(), 0.0);
  if (total == 0) return 1;
  return *std::max_element(gpu_load.begin(), gpu_load.end()) * layer.gpus() / total;
}

PlacementScore score_placement(const ExpertPlacement& placement, std::span<const ExpertLoad> load) {
  if (load.size() != placement.size()) {
    throw ConfigError("the load has {} layers; the placement has {}", load.size(),
                      placement.size());
  }
  PlacementScore score;
  double sum = 0;
  for (std::size_t i = 0; i < placement.size(); ++i) {
    const LayerPlacement& layer = placement[i];
    if (std::ssize(load[i]) != layer.experts()) {
      throw ConfigError("the load of layer {} has {} experts; the placement has {}", i,
                        load[i].size(), layer.experts());
    }
    PlacementScore::Layer& scored = score.layers.emplace_back();
    scored.imbalance = imbalance(layer, load[i]);
    for (int expert = 0; expert < layer.experts(); ++expert) {
      // Slices make up one copy.
      const std::int32_t last = layer.slots_of(expert).back();
      const bool is_cut = last >= layer.first_slice(layer.gpus() - 1);
      const std::size_t copies = is_cut ? 1 : layer.slots_of(expert).size();
      scored.same_gpu_copies +=
          static_cast<int>(layer.slots_of(expert).size() - layer.hosts_of(expert).size());
      score.experts_with_copies.resize(std::max(score.experts_with_copies.size(), copies + 1));
      ++score.experts_with_copies[copies];
    }
    sum += scored.imbalance;
    score.same_gpu_copies += scored.same_gpu_copies;
    if (scored.imbalance > score.layers[score.worst_layer].imbalance) score.worst_layer = i;
  }
  if (!placement.empty()) {
    score.imbalance_mean = sum / double(placement.size());
    score.imbalance_worst = score.layers[score.worst_layer].imbalance;
  }
  return score;
}

std::vector<ExpertLoad> uniform_load(const ExpertPlacement& placement) {
  std::vector<ExpertLoad> load;
  for (const LayerPlacement& layer : placement) {
    load.emplace_back(at(layer.experts()), 1.0);
  }
  return load;
}

OrderedJson to_json(const PlacementScore& score) {
  OrderedJson layers = OrderedJson::array();
  for (const PlacementScore::Layer& layer : score.layers) {
    layers.push_back({{"imbalance", layer.imbalance}, {"same_gpu_copies", layer.same_gpu_copies}});
  }
  return {{"imbalance_mean", score.imbalance_mean},
          {"imbalance_worst", score.imbalance_worst},
          {"worst_layer", score.worst_layer},
          {"same_gpu_copies", score.same_gpu_copies},
          {"experts_with_copies", score.experts_with_copies},
          {"layers", std::move(layers)}};
}

}  // namespace moesim
