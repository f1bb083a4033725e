// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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

/// A step to price: what it computes, and by which rule its tokens find experts. It refers to what
/// its maker keeps.
struct StepInput {
  const StepBatch& batch;
  const PhaseRule& rule;
  const ExpertPlacement& placement;
  const RowSource& rows;
  /// MoE layers that are priced, and stand for the others in turn. None: each is priced by itself.
  /// Not for memories below HBM.
  std::optional<LayerRange> layers{};

  /// The same for a part of the batch.
  StepInput of(const StepBatch& part) const { return {part, rule, placement, rows, layers}; }
};

/// The EP group whose steps are priced.
struct StepModelSpec {
  ClusterSpec cluster;
  std::optional<ClusterSpec> ffn_cluster{};  ///< of the experts' GPUs (AFD); none: `cluster`
  MoeModel model;
  ParallelPlan plan;
  PrecisionPlan precision;
  Charges charges;
  Overlap overlap{};
  std::shared_ptr<const CapacityRule> capacity = dropless();
  SharedExpert shared_expert{};
  /// True if steps count the selections that are served near their tokens. Not with AFD.
  bool counts_locality = false;
  /// True if some dispatch fuses_experts().
  bool mega_moe = false;
  /// Experts of each layer that are cut over all GPUs.
  int cut_experts = 0;

  const GpuSpec& expert_gpu() const { return ffn_cluster ? ffn_cluster->gpu : cluster.gpu; }
};

/// True if a table has mega_moe_kernel for such experts: nothing else prices it.
bool has_mega_moe(const StepModelSpec&);

enum class KeptRows;

/// Prices forward steps of one EP group. Per layer:
///   attention, gate -> barrier: slowest rank; [token routing] dispatch; expert FFN -> barrier:
///   slowest rank; combine
/// With memories below HBM [EP ranks], expert FFNs wait for the weights they miss. Without any, all
/// experts are in HBM. A shared expert that is a slot runs with the routed ones, on the EP ranks of
/// shared_tokens.
/// Step = sum over layers + embedding, LM head, sampling, host overhead.
/// Overlap hides communication behind computation; parts and total then hold what is exposed. With
/// AFD a step is several micro-batches that alternate between attention's GPUs and those of the
/// experts: see join_afd(). With pipeline stages a step is one round of the batch in the steady
/// state, cut into as many micro-batches as there are stages: see join_pipeline().
class StepModel {
 public:
  explicit StepModel(StepModelSpec, std::vector<RankMemory> memories = {});
  ~StepModel();
  StepModel(StepModel&&) noexcept;

  /// The result is overwritten; its vectors keep their memory. `explain` collects operations when
  /// it is given.
  void price(const StepInput&, StepCost& result,
             std::vector<ExplainedOperation>* explain = nullptr);

  /// The MoE layers of a step, for others: of one micro-batch, every expert in HBM. Its `number` is
  /// the caller's.
  StepSample sample(const StepInput&);

  /// A sample whose MoE layers stand for those of a batch; good until the step is priced.
  using Draw = std::function<const StepSample&(const StepBatch&)>;

  /// Prices a step whose MoE layers are those of samples, one for each micro-batch. Not for
  /// memories below HBM.
  void price(const StepBatch&, const Draw&, StepCost& result);

  /// The experts of each EP rank in and below HBM; none if all are resident.
  std::span<RankMemory> expert_memories() { return memories_; }

 private:
  struct Scratch;
  struct Worker;
  struct LayerRouting;
  // Which part of a step a batch is: all of it, or one of its micro-batches. With the one that
  // `begins` the host's start of a step is charged.
  struct Pass {
    int number = 0;
    bool whole = true, begins = true;
  };
  // Prices a micro-batch, or the whole step.
  using PricePass = std::function<void(const StepBatch&, Pass, StepCost&)>;
  void price_passes(const StepBatch&, const PricePass&, StepCost& result);
  StepCost price_pipeline(const StepBatch&, const PricePass&) const;
  StepCost price_afd(const StepBatch&, const PricePass&) const;
  bool splits(const StepBatch&) const;
  CollectiveCost hop(const StepBatch&, int stage) const;

  void price_layers(const StepInput&, std::uint64_t step, StepCost& result);
  void price_layer(int moe_layer, const StepInput&, std::uint64_t step, LayerOutcome&);
  LayerRouting route(int moe_layer, const StepInput&, std::uint64_t step, Worker&, LayerOutcome&);
  void place_shared(const LayerRouting&, Worker&, LayerOutcome&) const;
  Exchange exchange(int moe_layer, const PhaseRule&, const LayerRouting&, Worker&,
                    std::int32_t active) const;
  KeptRows kept_rows(const PhaseRule&) const;
  void price_experts(const LayerRouting&, double padding, Worker&, LayerOutcome&) const;
  Seconds rank_load_gather() const;
  bool shared_experts_travel() const;
  CollectiveCost bring(std::span<const StepCopy>, const LayerPlacement& standing) const;
  bool layers_add_up() const;
  void sum_up(StepSample&) const;

  void start_sum(StepCost& result) const;
  // A MoE layer's tokens have arrived: called with its number and the time.
  using WaitForExperts = std::function<void(int moe_layer, Time now)>;
  void add_up(const StepBatch&, Pass, StepCost& result, std::vector<ExplainedOperation>* explain,
              const WaitForExperts& wait = {});
  void send_tokens(const Exchange&, const RankCosts& shared_experts, CriticalPath&,
                   StepCost&) const;
  void run_experts(const LayerOutcome&, CriticalPath&, StepCost&) const;
  void pass_other_side(const LayerOutcome&, const RankCosts& shared_experts, CriticalPath&,
                       StepCost&, Seconds& passed) const;
  void charge_host(const StepBatch&, int layers, bool begins, CriticalPath&,
                   const StepCost& result) const;
  void wait_for_experts(int moe_layer, Time now, const ExpertPlacement&, StepCost&);

  StepModelSpec spec_;
  Fabric fabric_;
  Fabric between_sides_;  // for tokens; with one cluster the same
  // Kernels of one layer on one GPU, by ExpertKernel: grouped_gemm, and what else was measured.
  using Experts = std::array<std::optional<GroupedGemm>, expert_kernels>;
  static Experts experts_of(const StepModelSpec&);
  Experts experts_;
  std::optional<GroupedGemm> slices_;  // of experts that are cut over all GPUs
  std::vector<RankMemory> memories_;   // [EP ranks], or none
  std::unique_ptr<Scratch> scratch_;
  std::uint64_t steps_ = 0;
};

}  // namespace moesim
