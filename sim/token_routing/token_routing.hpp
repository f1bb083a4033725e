// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// One decision: the tokens of one layer in one step. All of the EP group, every rank's.
struct RoutingProblem {
  const LayerPlacement& placement;
  std::span<const std::int32_t>
      tokens;  ///< T: (token, slot) selections per logical expert, [experts]
  int layer = 0;
  std::uint64_t step = 0;
};

/// Memory that a router may use and keep between calls; one per thread. What it holds never changes
/// a decision.
struct RoutingScratch {
  std::vector<std::int32_t> active_on_gpu;  ///< [gpus]
  std::vector<std::int32_t> order;          ///< [active experts]
  std::vector<std::int32_t> slot_of;        ///< [experts]
  /// A search for shorter loads: lists of movable experts by GPU, and a breadth-first tree.
  std::vector<std::int32_t> first_on_gpu, next_on_gpu, queue, reached_by, reached_from, seen;
};

/// Chooses replicas after top-k: which slots of each expert serve its tokens.
class TokenRouter {
 public:
  virtual ~TokenRouter() = default;
  /// Writes the tokens of every slot, [slots], summing to tokens[i] over the slots of each expert
  /// i. An expert without tokens activates nothing. Ties: lowest GPU id. Pure: same problem, same
  /// answer, from any thread.
  virtual void route(const RoutingProblem&, RoutingScratch&,
                     std::span<std::int32_t> tokens_of_slot) const = 0;
  /// Whether the decision needs T of the whole EP group (metro, optimal), which only some
  /// dispatches give.
  virtual bool needs_global_counts() const = 0;
};

/// Built for a placement, so that fixed choices are made once. The table: even, static_primary,
/// metro, optimal.
const Registry<TokenRouter, const ExpertPlacement&>& token_routers();

/// What a routing did to each GPU.
struct LayerLoad {
  std::vector<std::int32_t> activated;  ///< slots with at least one token, per GPU
  std::vector<std::int32_t> tokens;     ///< per GPU
  std::int32_t max_activated = 0;
  std::int32_t max_tokens = 0;
};
LayerLoad layer_load(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot);
/// The same into memory that is used again.
void layer_load(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot, LayerLoad&);

}  // namespace moesim
