// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/memory.hpp"
#include "models/step_ops.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/charges.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/expert_memory/rank_memory.hpp"
#include "sim/overlap.hpp"
#include "sim/row_source.hpp"
#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// Seconds of the critical path by part and by what bound them.
using Breakdown = std::array<std::array<double, resource_names.size()>, part_names.size()>;

/// Seconds of the critical path by part and by what their prediction rests on.
using Grounds = std::array<std::array<double, evidence_names.size()>, part_names.size()>;

/// How the tokens of a step find replicas and travel: one rule for the whole group.
struct PhaseRule {
  ConfigNode routing;  ///< what `router` was made from
  std::string router_name;
  std::shared_ptr<const TokenRouter> router;
  std::shared_ptr<const Dispatch> dispatch;
};

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

/// One kind of communication in one step.
struct Traffic {
  double seconds = 0;  ///< that the links were busy
  double hidden = 0;   ///< of these, beside computation
  double nvlink_bytes = 0;
  double network_bytes = 0;
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

/// One row of `explain`: an operation on the slowest rank, all its calls in a step.
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
  std::vector<double> idle;          ///< seconds every GPU waited at barriers, [gpus]
  double flops = 0;                  ///< all GPUs
  double hbm_bytes = 0;              ///< all GPUs
  std::vector<LayerOutcome> layers;  ///< MoE layers; of two micro-batches the sums
  std::vector<Segment> segments;     ///< what `total` consists of, in order
  bool two_batches = false;
  ExpertMemoryTally expert_memory;
};

/// Prices forward steps of one EP group. Per layer:
///   attention, gate -> barrier: slowest rank; [token routing] dispatch; expert FFN -> barrier:
///   slowest rank; combine
/// With memories below HBM [EP ranks], expert FFNs wait for the weights they miss; without any,
/// every expert stands in HBM. No capacity rule is dropless.
/// step = sum over layers + embedding, LM head, sampling, host overhead.
/// Overlap hides communication beside computation; parts and total then hold what is exposed.
class StepModel {
 public:
  StepModel(const ClusterSpec&, const MoeModel&, const ParallelPlan&, const PrecisionPlan&, Charges,
            Overlap = {}, std::shared_ptr<const CapacityRule> = nullptr,
            std::vector<RankMemory> memories = {});
  ~StepModel();
  StepModel(StepModel&&) noexcept;

  /// The result is overwritten; its vectors keep their memory. `explain` collects operations when
  /// it is given.
  void price(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
             StepCost& result, std::vector<ExplainedOperation>* explain = nullptr);

  /// Tokens per logical expert of the step that was priced last, [MoE layers, experts].
  std::span<const std::int32_t> tokens_of_expert() const;

  const Fabric& fabric() const { return fabric_; }
  const Charges& charges() const { return charges_; }

 private:
  struct Scratch;
  struct LayerClass {
    LayerSpec spec;
    int layers = 0;
  };

  void price_batch(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
                   std::uint64_t step, StepCost& result, std::vector<ExplainedOperation>* explain);
  Cost expert_ffn(std::span<const std::int32_t> tokens_of_slot) const;
  void wait_for_experts(int moe_layer, Seconds now, const ExpertPlacement&, StepCost&);
  void gather(const StepBatch&, const RowSource&, bool keep_ids);
  void price_moe_layer(int moe_layer, const PhaseRule&, const LayerPlacement&, std::uint64_t step,
                       LayerOutcome&);

  Fabric fabric_;
  MoeModel model_;
  ParallelPlan plan_;
  PrecisionPlan precision_;
  Charges charges_;
  Overlap overlap_;
  std::shared_ptr<const CapacityRule> capacity_;  // null: dropless
  std::vector<RankMemory> memories_;              // [EP ranks], or none
  std::vector<LayerClass> classes_;
  std::vector<std::size_t> class_of_layer_;
  std::unique_ptr<Scratch> scratch_;
  std::uint64_t steps_ = 0;
};

}  // namespace moesim
