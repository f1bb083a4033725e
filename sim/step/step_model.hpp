// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hardware/kernels/experts.hpp"
#include "models/memory.hpp"
#include "models/step_ops.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/expert_memory/rank_memory.hpp"
#include "sim/step/critical_path.hpp"
#include "sim/step/overlap.hpp"
#include "sim/step/shared_expert.hpp"
#include "sim/step/step_cost.hpp"
#include "sim/token_routing/charges.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// How the tokens of a step find replicas and travel: one rule for the whole group.
struct PhaseRule {
  std::string router_name;
  std::shared_ptr<const TokenRouter> router;
  std::shared_ptr<const Dispatch> dispatch;
  int keep = 0;  ///< experts of a token that always run, others if active: keep_active(); 0: all
};

/// Prices forward steps of one EP group. Per layer:
///   attention, gate -> barrier: slowest rank; [token routing] dispatch; expert FFN -> barrier:
///   slowest rank; combine
/// With memories below HBM [EP ranks], expert FFNs wait for the weights they miss; without any,
/// every expert stands in HBM. A shared expert that is a slot runs with the routed ones, on the EP
/// ranks of shared_tokens.
/// step = sum over layers + embedding, LM head, sampling, host overhead.
/// Overlap hides communication beside computation; parts and total then hold what is exposed.
/// With AFD a step is several micro-batches that alternate between attention's GPUs and those of
/// the experts: see join_afd(). With pipeline stages a step is one round of the batch, cut into as
/// many micro-batches as there are stages, in the steady state: see join_pipeline().
class StepModel {
 public:
  StepModel(const ClusterSpec&, const MoeModel&, const ParallelPlan&, const PrecisionPlan&, Charges,
            Overlap = {}, std::shared_ptr<const CapacityRule> = dropless(),
            std::vector<RankMemory> memories = {}, SharedExpert = {});
  ~StepModel();
  StepModel(StepModel&&) noexcept;

  /// The result is overwritten; its vectors keep their memory. `explain` collects operations when
  /// it is given.
  void price(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
             StepCost& result, std::vector<ExplainedOperation>* explain = nullptr);

  /// Prices exactly these MoE layers alone from now on, which stand for the others too, in turn.
  /// Not for memories below HBM.
  void price_only(LayerRange layers) { priced_ = layers; }

  /// Counts from now on whether selections are served near their tokens. Not with AFD.
  void count_locality() { counts_locality_ = true; }

  /// The MoE layers of a step, for others: of one micro-batch, every expert in HBM. Those of
  /// `priced` stand for the others too, in turn. Its `number` is the caller's.
  StepSample sample(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
                    LayerRange priced);

  /// A sample whose MoE layers stand for those of a batch; good until the step is priced.
  using Draw = std::function<const StepSample&(const StepBatch&)>;

  /// Prices a step whose MoE layers are those of samples, one for each micro-batch. Not for
  /// memories below HBM.
  void price(const StepBatch&, const Draw&, StepCost& result);

  /// Tokens per logical expert of the step that was priced last, [MoE layers, experts].
  std::span<const std::int32_t> tokens_of_expert() const;

  /// The experts of each EP rank in and below HBM; none if all are resident.
  std::span<RankMemory> expert_memories() { return memories_; }

  const Fabric& fabric() const { return fabric_; }
  const Charges& charges() const { return charges_; }

 private:
  struct Scratch;
  template <class PricePart>
  void price_two_batches(const StepBatch&, PricePart&&, StepCost& result);
  template <class PricePart>
  std::vector<StepCost> price_parts(std::span<const StepBatch>, PricePart&&);
  template <class PricePart>
  StepCost price_pipeline(const StepBatch&, PricePart&&);
  template <class PricePart>
  StepCost price_afd(const StepBatch&, PricePart&&);
  CollectiveCost hop(const StepBatch&, int stage) const;
  CollectiveCost logits_gather(const StepBatch&) const;
  void price_batch(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
                   std::uint64_t step, StepCost& result, std::vector<ExplainedOperation>* explain);
  void price_layers_of(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
                       std::uint64_t step, StepCost& result);
  void price_layers(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
                    std::uint64_t step, LayerRange, std::vector<LayerOutcome>&);
  void sum_up(StepSample&) const;
  void start_sum(StepCost& result) const;
  // What add_up() is given: a step, or a micro-batch of one.
  enum class Pass { step, first_part, later_part };
  void add_up(const StepBatch&, const ExpertPlacement*, StepCost& result,
              std::vector<ExplainedOperation>* explain, Pass = Pass::step);
  bool splits(const StepBatch&) const;
  template <class Wait>
  void pass_experts(const LayerOutcome&, const RankCosts& shared_experts, CriticalPath&, StepCost&,
                    Wait&&) const;
  void pass_other_side(const LayerOutcome&, const RankCosts& shared_experts, CriticalPath&,
                       StepCost&, Seconds& passed) const;
  void charge_host(const StepBatch&, int layers, bool begins, CriticalPath&,
                   const StepCost& result) const;
  void wait_for_experts(int moe_layer, Time now, const ExpertPlacement&, StepCost&);
  void price_moe_layer(int moe_layer, const PhaseRule&, const LayerPlacement&, std::uint64_t step,
                       LayerOutcome&);
  Seconds rank_load_gather() const;
  CollectiveCost bring(std::span<const StepCopy>, const LayerPlacement& standing) const;

  Fabric fabric_;
  GroupedGemm experts_;  // of one layer on one GPU
  // The same where tokens arrive by expert and a kernel for that was measured.
  std::optional<GroupedGemm> masked_experts_;
  MoeModel model_;
  ParallelPlan plan_;
  PrecisionPlan precision_;
  Charges charges_;
  Overlap overlap_;
  std::shared_ptr<const CapacityRule> capacity_;
  std::vector<RankMemory> memories_;  // [EP ranks], or none
  SharedExpert shared_;
  bool counts_locality_ = false;
  LayerRange priced_;
  std::unique_ptr<Scratch> scratch_;
  std::uint64_t steps_ = 0;
};

}  // namespace moesim
