// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "models/step_ops.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/expert_memory/rank_memory.hpp"
#include "sim/step/overlap.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Seconds of the critical path by part and by what bound them.
using Breakdown = std::array<std::array<double, resource_names.size()>, part_names.size()>;

/// Seconds of the critical path by part and by what their prediction rests on.
using Grounds = std::array<std::array<double, evidence_names.size()>, part_names.size()>;

/// What one rank computes in a step. An idle rank runs one dummy token.
struct RankStep {
  std::vector<SequenceWork> sequences;
  std::int32_t tokens = 0;   ///< new tokens over all sequences
  std::int32_t sampled = 0;  ///< sequences that emit a token
  std::int32_t padding = 0;  ///< rows that a captured CUDA graph computes beside the tokens
  bool dummy = false;
};

/// One forward step of an EP group, all DP ranks in lockstep.
struct StepBatch {
  Seconds start{};              ///< on the simulated clock: memories below HBM know no other
  std::vector<RankStep> ranks;  ///< [dp]
  std::vector<RowRange> rows;   ///< in order of rank, as many rows as the rank has tokens
};

/// Adds a sequence that emits a token to the last rank of a batch, its rows from `first_row` on of
/// what the request is bound to.
void add_sequence(StepBatch&, const RowSource&, const Binding&, Phase, SequenceWork,
                  std::int64_t first_row);

/// One kind of communication in one step.
struct Traffic {
  double seconds = 0;  ///< that the links were busy
  double hidden = 0;   ///< of these, beside computation
  double nvlink_bytes = 0;
  double network_bytes = 0;
  Traffic& operator+=(const Traffic&);
};

/// What the tokens did in one MoE layer.
struct LayerOutcome {
  LayerLoad load;                   ///< per EP rank
  std::int32_t active_experts = 0;  ///< logical
  Seconds routing{};                ///< the policy's own time
  Exchange exchange;
  std::vector<Cost> experts;                      ///< per EP rank
  std::int64_t useful_rows = 0, padded_rows = 0;  ///< of the grouped GEMM
  CapacityTally capacity;                         ///< where a rule limits it
  std::vector<std::int32_t> tokens_of_slot;       ///< where experts stand in memories below HBM
};

/// Tokens of the busiest and of the mean EP rank, summed over layers.
struct TokenBalance {
  double max_tokens = 0, mean_tokens = 0;
};
TokenBalance token_balance(std::span<const LayerOutcome>);

struct StepSample;

/// One row of `explain`: an operation on the slowest rank, all its calls in a step. Of a pipeline:
/// on the mean stage.
struct ExplainedOperation {
  std::string_view name;
  Part part;
  Resource bound;
  Evidence evidence;
  int calls = 0;
  double seconds = 0, flops = 0, hbm_bytes = 0, l2_bytes = 0, smem_bytes = 0, link_bytes = 0;
  double peak_flops = 0;  ///< what its calls could have done in their time at the data sheet's peak
};

/// One forward step, taken apart.
struct StepCost {
  Seconds total{};
  Breakdown parts{};
  Grounds grounds{};
  Traffic dispatch, combine, all_reduce;
  std::vector<double> idle;            ///< seconds every GPU waited at barriers, [gpus]
  double flops = 0;                    ///< all GPUs
  double hbm_bytes = 0;                ///< all GPUs
  std::vector<LayerOutcome> layers;    ///< MoE layers; of several micro-batches the sums
  const StepSample* sample = nullptr;  ///< whose layers stand for the step's own, or none
  std::vector<Segment> segments;       ///< what `total` consists of, in order
  std::vector<Seconds> stages;         ///< of it, by pipeline stage; the rest is the host's
  bool two_batches = false;
  ExpertMemoryTally expert_memory;

  const std::vector<LayerOutcome>& moe_layers() const;
  TokenBalance token_balance() const;
};

/// The MoE layers of a step that was priced exactly, for steps that are not.
struct StepSample {
  std::size_t number = 0;  ///< in order of their first use
  std::vector<LayerOutcome> layers;
  std::vector<std::int32_t> tokens_of_expert;  ///< [MoE layers, experts]
  StepCost sum{};  ///< what `layers` take one after the other, where nothing runs beside them
  TokenBalance balance{};
};

inline const std::vector<LayerOutcome>& StepCost::moe_layers() const {
  return sample ? sample->layers : layers;
}
inline TokenBalance StepCost::token_balance() const {
  return sample ? sample->balance : moesim::token_balance(layers);
}

/// Counts a cost that nothing hides as time of a part, by what bound it and what it rests on.
inline void charge(StepCost& step, Part part, const Cost& cost) {
  const auto row = static_cast<std::size_t>(part);
  step.parts[row][static_cast<std::size_t>(cost.bound)] += cost.time.count();
  step.grounds[row][static_cast<std::size_t>(cost.evidence)] += cost.time.count();
}

/// Sums over steps or micro-batches, each of some fields: parts and grounds, `scale` times ...
void add_times(StepCost& sum, const StepCost& more, double scale = 1);
/// ... communication ...
void add_traffic(StepCost& sum, const StepCost& more);
/// ... flops, HBM bytes and idle times.
void add_work(StepCost& sum, const StepCost& more);
/// All times of a step, what they are of and rest on included, times a factor.
void scale_times(StepCost&, double factor);

}  // namespace moesim
