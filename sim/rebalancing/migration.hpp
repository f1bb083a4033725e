// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "sim/rebalancing/popularity.hpp"

namespace moesim {

/// A change of one layer's map. No expert loses its last copy.
struct Migration {
  /// replicate: `expert` also on `target`; swap: `expert` from `source` to `target` and `partner`
  /// the other way; drop: `target` gives up its copy of `expert`.
  enum class Kind { replicate, swap, drop } kind = Kind::replicate;
  int layer = 0, expert = 0, target = 0;
  int source = -1, partner = -1;
  double net = 0;  ///< seconds gained over the horizon
};

struct MigrationLimits {
  int slots_per_gpu = 0;  ///< capacity of every layer
  int max_copies = 3;
};

/// True if a layer's map still allows it.
bool allows(const LayerPlacement&, const Migration&, const MigrationLimits&,
            std::span<const char> live);
/// The map after it.
LayerPlacement after(const LayerPlacement&, const Migration&);

/// Expected time of a layer per step:
///   max over ranks of max(weight_time E[active slots], token_time E[tokens])
///     + token_seconds * tokens whose copy stands elsewhere
/// Copies get equal shares; a slot with x tokens expected is active with 1 - exp(-x).
double expected_seconds(const LayerPlacement&, const LayerDemand&, RooflineTime expert,
                        double token_seconds);

/// A layer as it stands, and what ranks ask of it.
struct LayerSeen {
  int layer;
  const LayerPlacement& placement;
  const LayerDemand& demand;
  std::span<const char> live;  ///< by EP rank
};

/// Candidates of one layer for the ranks whose experts are elsewhere too often. A rank gets copies
/// of its `replicas` most wanted experts that it lacks. It swaps the 3 most wanted with its 3 least
/// wanted ones, and drops its `replicas` least wanted copies. Their nets are not set.
std::vector<Migration> candidates(const LayerSeen&, std::span<const char> ranks, int replicas,
                                  const MigrationLimits&);

}  // namespace moesim
