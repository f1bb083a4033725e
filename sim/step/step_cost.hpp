// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/step_ops.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/expert_memory/rank_memory.hpp"
#include "sim/step/attention_ffn.hpp"
#include "sim/step/overlap.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Seconds of the critical path by part and by what bound them.
using Breakdown = std::array<std::array<double, resource_names.size()>, part_names.size()>;

/// Seconds of the critical path by part and by what their prediction rests on.
using SecondsByEvidence = std::array<std::array<double, evidence_names.size()>, part_names.size()>;

/// Some parts of a step.
class PartSet {
 public:
  static constexpr PartSet all() { return PartSet((1U << part_names.size()) - 1); }
  constexpr PartSet() = default;
  void insert(Part part) { bits_ |= 1U << static_cast<unsigned>(part); }
  /// Calls `each` with the number of every part, in their order.
  template <class Each>
  void for_each(Each&& each) const {
    for (std::uint32_t left = bits_; left != 0; left &= left - 1) each(at(std::countr_zero(left)));
  }

 private:
  constexpr explicit PartSet(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_ = 0;
};

/// Draw of GPUs for operations: all zero where the GPU's power is not known.
struct Energy {
  /// Joules by part: what GPUs draw while they compute, and what exchanges add to the draw of a GPU
  /// that waits.
  std::array<double, part_names.size()> joules{};
  /// GPU-seconds of computing. All other time of a GPU it draws as one that waits.
  double computing = 0;
  /// Share of experts in it: with AFD of other GPUs, which may draw otherwise.
  double computing_experts = 0;

  /// Some of `more`'s parts: the others are 0.
  void add(const Energy& more, double times = 1, PartSet some = PartSet::all());
  void add(Part part, const Cost& cost, double gpus = 1);
};

/// Work of one rank in a step. An idle rank runs one dummy token.
struct RankStep {
  std::vector<SequenceWork> sequences;
  /// New tokens over all sequences.
  std::int32_t tokens = 0;
  /// Sequences that emit a token.
  std::int32_t sampled = 0;
  /// Rows that a captured CUDA graph computes beside the tokens.
  std::int32_t padding = 0;
  bool dummy = false;
  /// RankSequences::decode_context of them.
  std::optional<std::int64_t> decode_context{};
  RankSequences work() const { return {sequences, decode_context}; }
};

/// A forward step of an EP group, all DP ranks in lockstep.
struct StepBatch {
  /// When the step begins: memories below HBM know by it what has arrived.
  Time start{};
  std::vector<RankStep> ranks;  ///< [dp]
  /// Trace rows in order of rank, as many of each rank as it has tokens.
  std::vector<RowRange> rows;
  /// True if its prompts find no others under way in a pipeline's stages.
  bool fills_pipeline = false;
};

/// Adds a sequence that emits a token to the last rank of a batch, its rows from `first_row` on of
/// what the request is bound to.
void add_sequence(StepBatch&, const RowSource&, const Binding&, Phase, SequenceWork,
                  std::int64_t first_row);

/// A kind of communication in one step.
struct Traffic {
  /// How long the links were busy.
  Seconds time{};
  /// The part of `time` that ran beside computation.
  Seconds hidden{};
  Bytes nvlink{}, network{};
  Traffic& operator+=(const Traffic&);
};

/// Counts of the tokens in one MoE layer.
struct LayerOutcome {
  /// Tokens and activated slots of every EP rank.
  LayerLoad load;
  /// Tokens whose shared expert each EP rank computes as one more slot; none where it is no slot.
  std::vector<std::int32_t> shared_tokens;
  /// Places where selections are served, if a step counts that.
  Locality locality;
  /// Logical experts with at least one token.
  std::int32_t active_experts = 0;
  /// Time that the token-routing policy itself takes on a GPU.
  Seconds routing{};
  /// Copies of experts that the step brings for this layer alone, and what bringing them takes.
  std::int32_t step_copies = 0;
  CollectiveCost bringing;
  Exchange exchange;
  /// Costs of the expert FFN for every EP rank; none in a sample whose sum tells.
  std::vector<Cost> experts;
  /// Cost of the slices of cut experts, on every GPU.
  Cost slices{};
  /// Rows of the grouped GEMM that hold a token, and all that are computed.
  std::int64_t useful_rows = 0, padded_rows = 0;
  /// Tally of a capacity rule; zero where none limits the layer.
  CapacityTally capacity;
  /// Tokens of every slot, kept only where experts stand in memories below HBM.
  std::vector<std::int32_t> tokens_of_slot;
  /// Tokens of the group that every rank holds; 0: only those of its own experts.
  std::int64_t tokens_held = 0;
};

/// Consecutive MoE layers: from `first` to before `end`.
struct LayerRange {
  int first = 0, end = 0;
  /// Returns the priced layer whose costs a layer takes: its own if it is one of them.
  int standing_for(int layer) const {
    return first <= layer && layer < end ? layer : first + layer % (end - first);
  }
};

/// Tokens of the busiest and of the mean EP rank, summed over layers.
struct TokenBalance {
  double max_tokens = 0, mean_tokens = 0;
};
TokenBalance token_balance(std::span<const LayerOutcome>);

struct StepSample;

/// A row of `explain`: an operation on the slowest rank, all its calls in a step. In a pipeline it
/// is that of the mean stage.
struct ExplainedOperation {
  std::string_view name;
  Part part;
  Resource bound;
  Evidence evidence;
  int calls = 0;
  double seconds = 0, flops = 0, hbm_bytes = 0, l2_bytes = 0, smem_bytes = 0, link_bytes = 0;
  /// Flops that its calls could have done in their time at the data sheet's peak.
  double peak_flops = 0;
  /// Joules that the slowest rank's GPU draws during this time.
  double joules = 0;
};

/// A forward step, taken apart.
struct StepCost {
  Seconds total{};
  Breakdown parts{};
  SecondsByEvidence by_evidence{};
  Traffic dispatch, combine, all_reduce;
  /// Seconds that every GPU waited at barriers, [gpus].
  std::vector<double> idle;
  /// Work of all GPUs.
  double flops = 0, hbm_bytes = 0;
  Energy energy{};
  /// MoE layers; the sums over micro-batches where there are several. Nothing where samples stand
  /// for them.
  std::vector<LayerOutcome> layers;
  /// Tokens of each logical expert, [MoE layers, experts]. Nothing where samples stand for them.
  std::vector<std::int32_t> tokens_of_expert;
  /// The samples whose layers stand for the step's own, one for each micro-batch; none where the
  /// step was priced exactly.
  std::vector<const StepSample*> samples;
  /// The stretches that `total` consists of, in order.
  std::vector<Segment> segments;
  /// The part of `total` that each pipeline stage takes; the rest is the host's.
  std::vector<Seconds> stages;
  /// Micro-batches that alternate within the step: 2 with two_batch, several with AFD.
  int micro_batches = 1;
  /// Micro-batches over which `layers` are sums: these, or those of a pipeline.
  int passes = 1;
  /// With AFD: of one micro-batch what it takes layer by layer; of a step how its micro-batches
  /// pass.
  AfdChain chain;
  std::optional<AfdTimes> afd;
  ExpertMemoryTally expert_memory;

  /// `layers`, or the sums over those of the samples.
  std::vector<LayerOutcome> moe_layers() const;
  TokenBalance token_balance() const;
};

/// Adds what the tokens of another micro-batch did in the same layers. An expert that both activate
/// is read twice, hence counted twice.
void add_layers(std::vector<LayerOutcome>& sum, std::span<const LayerOutcome> more);

/// The MoE layers of a step that was priced exactly, for steps that are not.
struct StepSample {
  /// Counts samples in order of their first use.
  std::size_t number = 0;
  int moe_layers = 0;
  LayerRange priced;
  std::vector<LayerOutcome> layers_priced;     ///< [priced]
  std::vector<std::int32_t> tokens_of_priced;  ///< [priced, experts]
  /// Returns the place of a MoE layer in `layers_priced`.
  std::size_t place_of(int moe_layer) const {
    return at(priced.standing_for(moe_layer) - priced.first);
  }
  const LayerOutcome& layer(int moe_layer) const { return layers_priced[place_of(moe_layer)]; }
  /// Returns the outcomes of all MoE layers.
  std::vector<LayerOutcome> layers() const;
  std::vector<std::int32_t> tokens_of_expert() const;  ///< [MoE layers, experts]
  /// Costs of the layers of each pipeline stage, one after the other, where nothing overlaps them;
  /// idle times are of the stage's GPUs.
  std::vector<StepCost> stages;
  TokenBalance balance{};
};

/// Counts a cost that nothing hides as time of a part, by what bound it and what it rests on.
inline void charge(StepCost& step, Part part, const Cost& cost) {
  const auto row = at(part);
  step.parts[row][at(cost.bound)] += cost.time.count();
  step.by_evidence[row][at(cost.evidence)] += cost.time.count();
}

/// Adds `scale` times the parts and grounds of a step or micro-batch to a sum.
void add_times(StepCost& sum, const StepCost& more, double scale = 1);
/// Adds the communication of a step or micro-batch to a sum.
void add_traffic(StepCost& sum, const StepCost& more);
/// Adds the flops, HBM bytes, energy and idle times of a step or micro-batch to a sum.
void add_work(StepCost& sum, const StepCost& more);
/// Multiplies every time of a step by a factor: the total, its parts, grounds, segments and stages,
/// communication and idle times. The energy follows, as if GPUs drew the same for longer.
void scale_times(StepCost&, double factor);

}  // namespace moesim
