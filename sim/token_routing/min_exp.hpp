// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// Solves METRO's MIN-EXP-ROUTING exactly, for one layer of a placement:
///
///   min lambda  s.t.  sum_g y[i][g] >= 1 for each active expert i,  sum_i y[i][g] <= lambda for
///                     each GPU g,  y[i][g] in {0, 1},  y[i][g] <= A[i][g]
///
/// Lemma 1: one replica per active expert suffices. What remains is a semi-matching of experts to
/// GPUs; one without a cost-reducing path is optimal (Harvey, Ladner, Lovasz and Tamir,
/// Semi-matchings for bipartite graphs and load balancing, 2006): lambda is minimal, the sorted
/// load vector is lexicographically minimal, and so is every convex sum over it. That vector is
/// unique.
class MinExp {
 public:
  explicit MinExp(const LayerPlacement&);

  /// Chooses the slot that serves each expert with tokens: scratch.slot_of[i], the first slot of
  /// expert i on the chosen GPU, or -1 for an expert without tokens. `placement` is the one this
  /// was made for. Allocates nothing once scratch has grown.
  void assign(const LayerPlacement& placement, std::span<const std::int32_t> tokens,
              RoutingScratch& scratch) const;

  /// The same as a routing: all tokens of an expert on the slot that serves it, [slots].
  void serve(const LayerPlacement& placement, std::span<const std::int32_t> tokens,
             RoutingScratch& scratch, std::span<std::int32_t> tokens_of_slot) const;

 private:
  std::vector<std::int32_t> fixed_;    // experts on one GPU, ascending
  std::vector<std::int32_t> movable_;  // the others, by (number of hosts, id)
};

}  // namespace moesim
