// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// The tokens behind the counts, one row each.
struct TokenRows {
  std::span<const std::uint16_t> ids;         ///< top-k choices, [tokens, k]
  std::span<const std::int32_t> source_rank;  ///< EP rank that holds the token, [tokens]; never
                                              ///< decreases, and rows are counted anew on each
  /// Selections that do not run, [tokens, k]; empty when all do. They count in nobody's tokens, but
  /// a routing of rows numbers them like the others.
  std::span<const std::uint8_t> dropped{};
  std::size_t k() const { return source_rank.empty() ? 0 : ids.size() / source_rank.size(); }
};

/// One decision: the tokens of one layer in one step. All of the EP group, every rank's.
struct RoutingProblem {
  const LayerPlacement& placement;
  std::span<const std::int32_t>
      tokens;  ///< T: (token, slot) selections per logical expert, [experts]
  int layer = 0;
  std::uint64_t step = 0;
  TokenRows rows{};  ///< only when needs_token_rows()
};

/// Memory that a router may use and keep between calls; one per thread. What it holds never changes
/// a decision.
struct RoutingScratch {
  std::vector<std::int32_t> active_on_gpu;  ///< [gpus]
  std::vector<std::int32_t> order;          ///< [active experts]
  std::vector<std::int32_t> slot_of;        ///< [experts]
  /// A search for shorter loads: lists of movable experts by GPU, and a breadth-first tree.
  std::vector<std::int32_t> first_on_gpu, next_on_gpu, queue, reached_by, reached_from, seen;
  std::vector<std::int32_t> tokens_on_gpu;                ///< [gpus]
  std::vector<std::int32_t> candidate, saved, is_usable;  ///< [slots]
  std::vector<std::int32_t> seen_of_expert;               ///< [experts]
  /// Written by routers that need token rows: the slot of every selection, [tokens, k]; -1
  /// for those that do not run.
  std::vector<std::int32_t> slot_of_selection;
};

/// What a GPU's experts take in one layer if it either waits for weights or computes:
/// max(weight_time * active slots, token_time * tokens). Any unit of time; the default is that of
/// one weight read, of which 206 tokens are worth one where weights and activations are bf16 and
/// the GPU is an H200 (989.5 TFLOP/s over 4.8 TB/s).
struct RooflineTime {
  double weight_time = 1;
  double token_time = 1 / 206.0;

  double of(std::int32_t active, std::int32_t tokens) const {
    return std::max(weight_time * active, token_time * tokens);
  }
  /// Of the GPU that takes longest.
  double busiest(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot) const;
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
  /// Whether the decision needs T of the whole EP group (metro, optimal, token_balanced, hybrid),
  /// which only some dispatches give.
  virtual bool needs_global_counts() const = 0;
  /// Whether every selection is given a slot of its own, as engines' kernels do: then the problem
  /// must have rows, and scratch.slot_of_selection says which.
  virtual bool needs_token_rows() const { return false; }
  /// What it minimises, if it weighs weights against tokens.
  virtual std::optional<RooflineTime> objective() const { return std::nullopt; }
};

/// What routers are built for.
struct RoutingContext {
  const ExpertPlacement& placement;  ///< fixed choices are made once
  RooflineTime time{};               ///< of the GPU and model, where no option says otherwise
  /// Tokens per expert that the placement was made by, [layers][experts]; empty when none were.
  std::span<const ExpertLoad> load{};
};

/// The table: even, random, vllm, vllm_legacy, trtllm, sglang_static, static_primary, metro,
/// optimal, token_balanced, hybrid.
const Registry<TokenRouter, const RoutingContext&>& token_routers();

/// The GPU time of a decision per layer: fixed + per_128_active * active/128.
struct RoutingCharge {
  Seconds fixed{};
  Seconds per_128_active{};
};

/// What deciding takes by one policy of the table, and where that comes from.
struct MeasuredCharge {
  std::string_view policy;
  std::optional<RoutingCharge> charge;  ///< none: it is part of a kernel that is timed as a whole
  std::string_view source;
};
/// What each row of token_routers() takes.
std::span<const MeasuredCharge> measured_charges();

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
