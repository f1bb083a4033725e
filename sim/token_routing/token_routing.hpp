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
  /// Top-k choices, [tokens, k].
  std::span<const std::uint16_t> ids;
  /// EP rank that holds the token, [tokens]; never decreases, and rows are counted anew on each.
  std::span<const std::int32_t> source_rank;
  /// Selections that do not run, [tokens, k]; empty when all do. They count in no expert's tokens,
  /// but a routing of rows numbers them like the others.
  std::span<const std::uint8_t> dropped{};
  std::size_t k() const { return source_rank.empty() ? 0 : ids.size() / source_rank.size(); }
};

/// Input of one decision: the tokens of one layer in one step, those of every rank of the EP group.
struct RoutingProblem {
  const LayerPlacement& placement;
  /// T: (token, slot) selections per logical expert, [experts].
  std::span<const std::int32_t> tokens;
  int layer = 0;
  std::uint64_t step = 0;
  /// Given to routers with needs_token_rows(), and under a capacity.
  TokenRows rows{};
};

/// A copy of an expert that one layer of one step brings to a GPU for some of its tokens, and that
/// is forgotten afterwards.
struct StepCopy {
  std::int32_t expert = 0, gpu = 0, tokens = 0;
};

/// Output of a router's decision: memory of the caller, of the right size, with anything in it.
struct SlotChoice {
  /// Tokens of every slot, [slots]. Those of an expert's slots, and of the copies that this step
  /// brings of it, add up to its tokens.
  std::span<std::int32_t> tokens_of_slot;
  /// The slot of every selection, -1 for those that do not run: [tokens, k] for routers with
  /// needs_token_rows(), else empty.
  std::span<std::int32_t> slot_of_selection{};
  /// Copies that routers with step_slots() add to: at most so many of a GPU. Each is of an expert
  /// that the GPU does not hold, and has a token. Empty when a router is asked; null for other
  /// routers.
  std::vector<StepCopy>* copies = nullptr;
};

/// Time of a GPU's experts in one layer if it either waits for weights or computes: max(weight_time
/// * active slots, token_time * tokens). Any unit of time. The default is that of one weight read,
/// worth 206 tokens in bf16 on an H200 (989.5 TFLOP/s over 4.8 TB/s).
struct RooflineTime {
  double weight_time = 1;
  double token_time = 1 / 206.0;

  double of(double active, double tokens) const {
    return std::max(weight_time * active, token_time * tokens);
  }
  /// The time of the GPU that takes longest.
  double busiest(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot) const;
};

/// Chooses replicas after top-k: which slots of each expert serve its tokens.
class TokenRouter {
 public:
  virtual ~TokenRouter() = default;
  /// Writes how many of an expert's tokens each of its slots computes. An expert without tokens
  /// activates nothing. Ties: lowest GPU id. Pure: same problem, same answer, from any thread, with
  /// memory that is kept between calls in a PerThread (per_thread.hpp).
  virtual void route(const RoutingProblem&, SlotChoice) const = 0;
  /// True if the decision needs T of the whole EP group, which only some dispatches give.
  virtual bool needs_global_counts() const = 0;
  /// True if every selection is given a slot of its own, as engines' kernels do. Then the problem
  /// must have rows, and the choice says which slot.
  virtual bool needs_token_rows() const { return false; }
  /// Room that every GPU keeps for copies of one layer and step, in slots. All layers use the same
  /// room, one after the other: it is counted once, not per layer. Bytes that travel and the time
  /// to decide are charged by the step. Not for routers with needs_token_rows().
  virtual int step_slots() const { return 0; }
  /// True if copies were sent during what computes before the layer, so that no step waits for
  /// them.
  virtual bool hides_copies() const { return false; }
  /// Returns what it minimises, if it weighs weights against tokens.
  virtual std::optional<RooflineTime> objective() const { return std::nullopt; }
};

/// Facts that routers are built for.
struct RoutingContext {
  /// Placement of the experts: fixed choices are made once.
  const ExpertPlacement& placement;
  /// Times of the model's experts on the GPU, where no option says otherwise.
  RooflineTime time{};
  /// Tokens per expert that the placement was made by, [layers][experts]; empty when none were.
  std::span<const ExpertLoad> load{};
  /// GPUs (EP ranks) next to each other that reach each other over NVLink; 0: all do.
  int ranks_per_domain = 0;
  /// Time of an expert's weights on a GPU's NVLink; 0: no GPU is known.
  Seconds time_of_copy{};
};

/// Makes routers of one policy and its options, one for each placement.
using TokenRouterFactory = Factory<TokenRouter, const RoutingContext&>;

/// The table: `moesim list token_routing` prints it.
const Registry<TokenRouterFactory>& token_routers();

/// The GPU time of a decision per layer, in parts: once, for each 128 active experts, and for each
/// 128 of their replicas (the pairs A of METRO's O(|A|)).
struct RoutingCharge {
  Seconds fixed{};
  Seconds per_128_active{};
  Seconds per_128_candidates{};
};

/// Time of deciding by one policy of the table, and its source.
struct MeasuredCharge {
  std::string_view policy;
  std::optional<RoutingCharge> charge;  ///< none: it is part of a kernel that is timed as a whole
  /// The same as a kernel of today may take, by the fastest comparable one that was measured.
  std::optional<RoutingCharge> fast;
  std::string_view source;
};
/// Times of each row of token_routers().
std::span<const MeasuredCharge> measured_charges();

/// Load of each GPU by a routing.
struct LayerLoad {
  std::vector<std::int32_t> activated;  ///< whole slots with at least one token, per GPU
  std::vector<std::int32_t> tokens;     ///< of whole slots, per GPU
  std::int32_t max_activated = 0;
  std::int32_t max_tokens = 0;
  /// Parts of slots and of tokens that slices of cut experts add on every GPU.
  double sliced = 0, sliced_tokens = 0;
  /// The largest of the GPUs, slices included.
  double most_activated() const { return max_activated + sliced; }
  double most_tokens() const { return max_tokens + sliced_tokens; }
};
LayerLoad layer_load(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot);
/// Writes the load into memory that is used again.
void layer_load(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot, LayerLoad&);

}  // namespace moesim
