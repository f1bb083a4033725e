// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Solves METRO's MIN-EXP-ROUTING exactly, for one layer of a placement:
///
///   min lambda  s.t.  sum_g y[i][g] >= 1 for each active expert i,  sum_i y[i][g] <= lambda for
///                     each GPU g,  y[i][g] in {0, 1},  y[i][g] <= A[i][g]
///
/// Lemma 1: one replica per active expert suffices. A semi-matching of experts to GPUs remains. A
/// semi-matching without a cost-reducing path is optimal (Harvey, Ladner, Lovasz and Tamir,
/// Semi-matchings for bipartite graphs and load balancing, 2006). So lambda is minimal, the sorted
/// load vector is lexicographically minimal, and so is every convex sum over it. That vector is
/// unique.
class MinExp {
 public:
  /// The answer, and memory that is used again; one per thread.
  struct Workspace {
    /// The slot that serves each expert: its first one on the chosen GPU, -1 for an expert without
    /// tokens, [experts].
    std::vector<std::int32_t> slot_of;
    /// The experts that each GPU serves, [gpus].
    std::vector<std::int32_t> active_on_gpu;
    /// Active experts with more than one host.
    std::vector<std::int32_t> movable;
    /// The search for shorter loads: movable experts as a list per GPU, and a breadth-first tree.
    std::vector<std::int32_t> first_on_gpu, next_on_gpu, queue, reached_by, reached_from, seen;
  };

  explicit MinExp(const LayerPlacement&);

  /// Chooses the slot that serves each expert with tokens. `placement` is the one this was made
  /// for. Allocates nothing once the workspace has grown.
  void assign(const LayerPlacement& placement, std::span<const std::int32_t> tokens,
              Workspace&) const;

  /// Assigns, and writes it as a routing: all tokens of an expert on the slot that serves it,
  /// [slots].
  void serve(const LayerPlacement& placement, std::span<const std::int32_t> tokens, Workspace&,
             std::span<std::int32_t> tokens_of_slot) const;

 private:
  std::vector<std::int32_t> fixed_;    // experts on one GPU, ascending
  std::vector<std::int32_t> movable_;  // the others, by (number of hosts, id)
};

}  // namespace moesim
