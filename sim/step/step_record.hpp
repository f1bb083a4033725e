// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "hardware/sums.hpp"
#include "hardware/units.hpp"
#include "models/step_ops.hpp"
#include "sim/kv_tiers/kv_tiers.hpp"
#include "sim/step/step_cost.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Phases that a step can hold, and the rule it runs under (mixed = a policy of its own).
enum class StepKind { prefill, decode, mixed };
inline constexpr std::array<std::string_view, 3> step_kind_names{"prefill", "decode", "mixed"};

/// Prompts that a step could have computed tokens of, and that were held back.
struct HeldPrompts {
  std::int32_t prompts = 0;
  std::int64_t tokens = 0;
};

/// Contents of a step, and what it did to the KV cache.
struct StepSummary {
  StepKind kind = StepKind::decode;  ///< what it held
  StepKind rule = StepKind::decode;  ///< the rule it ran under; mixed = a policy of its own
  Time start{};
  std::int32_t prefill_tokens = 0;
  std::int32_t decode_tokens = 0;
  std::int32_t dummy_ranks = 0;
  std::int32_t preemptions = 0;
  /// Tokens that preempted requests had computed, and that are not cached as these come back.
  std::int64_t recomputed = 0;
  /// Prompt tokens of requests that were admitted for the first time.
  std::int64_t prefix_queried = 0;
  /// Tokens of `prefix_queried` that were cached.
  std::int64_t prefix_hit = 0;
  /// Tokens of `prefix_hit` that were loaded from tiers below HBM.
  std::int64_t prefix_loaded = 0;
  /// Tokens of `prefix_loaded` that no nearer tier had.
  OfLowerTiers<std::int64_t> prefix_of_lower{};
  HeldPrompts held{};
  /// Ranks that run fewer tokens because expert buffers are full.
  std::int32_t cut_ranks = 0;
  /// KV blocks held over all ranks while the step runs.
  std::int64_t kv_blocks_used = 0;
  /// Sources of the step's rows, by phase.
  std::array<RoutingCoverage, 2> coverage{};
};

/// Counts over the verifications of single sequences, as vLLM counts them.
struct SpeculationTally {
  /// Steps of a sequence that verified drafts.
  std::int64_t verifications = 0;
  /// Draft tokens that were verified.
  std::int64_t drafted = 0;
  /// Draft tokens that held.
  std::int64_t accepted = 0;
  double draft_seconds = 0;
  SpeculationTally& operator+=(const SpeculationTally& more) {
    using T = SpeculationTally;
    return add_members<&T::verifications, &T::drafted, &T::accepted, &T::draft_seconds>(*this,
                                                                                        more);
  }
};

/// A token after which something becomes of its request: the first, the last, and each that a pool
/// for prefill emits.
struct Milestone {
  std::uint32_t request;
  bool first, last;
};

/// Tokens that came so long after the previous one of their request.
struct TokenGap {
  Duration length;
  std::uint32_t tokens;
};

/// A step of an EP group when it has ended: all that measurement and observers see of it. What it
/// refers to is valid until the group's next step begins.
struct StepRecord {
  int instance = 0;
  const StepSummary& step;
  const StepCost& cost;
  const StepBatch& batch;
  const SpeculationTally& speculation;
  /// Tokens that the step emitted.
  std::int64_t tokens = 0;
  std::span<const Milestone> milestones;
  /// Gaps of all tokens but first ones, in order; equal ones that follow each other are one.
  std::span<const TokenGap> gaps;
  /// KV blocks held over all ranks when what left with the step has freed its own.
  std::int64_t kv_blocks_held = 0;
};

}  // namespace moesim
