// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Tokens of the fullest GPU over those of the mean GPU if the copies of an expert get equal shares
/// of its load; 1 without any.
double imbalance(const LayerPlacement&, std::span<const double> load);

/// How good a placement is for a load, if the copies of an expert get equal shares of its tokens.
struct PlacementScore {
  struct Layer {
    double imbalance = 1;     ///< tokens of the fullest GPU over those of the mean GPU; 1 if none
    int same_gpu_copies = 0;  ///< slots whose expert has another slot before it on the same GPU
  };
  std::vector<Layer> layers;
  double imbalance_mean = 1;   ///< over layers
  double imbalance_worst = 1;  ///< of all layers
  std::size_t worst_layer = 0;
  std::int64_t same_gpu_copies = 0;               ///< of all layers
  std::vector<std::int64_t> experts_with_copies;  ///< [copies]: experts, over all layers
};

/// load: [layers][experts]. Throws ConfigError if it is of other layers or experts.
PlacementScore score_placement(const ExpertPlacement&, std::span<const ExpertLoad> load);

/// Equal tokens for every expert: what a placement is scored on when no load is known.
std::vector<ExpertLoad> uniform_load(const ExpertPlacement&);

/// Keys named as the fields.
OrderedJson to_json(const PlacementScore&);

}  // namespace moesim
