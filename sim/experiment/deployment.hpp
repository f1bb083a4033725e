// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "sim/experiment/memory_budget.hpp"
#include "sim/experiment/spec.hpp"
#include "sim/experiment/trace_library.hpp"
#include "sim/step/step_model.hpp"

namespace moesim {

/// The rules of steps by the StepKind they run under. Mixed steps have one if MixedRule::Kind::own.
struct PhaseRules {
  std::vector<PhaseRule> by_kind;  ///< [2] or [3]
  const PhaseRule& of(StepKind kind) const { return by_kind.at(at(kind)); }
};

/// A pool as it is simulated: what was said of it, and what follows for the traces that it serves.
struct Deployment : PoolSpec {
  RoutingTrace trace;                           ///< of both phases, unless prefill has its own
  std::optional<RoutingTrace> prefill_trace{};  ///< if prefill has its own
  ExpertPlacement placement{};                  ///< as the run starts
  std::vector<ExpertLoad> seen{};  ///< what it was fitted on, [MoE layers][experts]; or empty
  PhaseRules rules{};
  RebalancerFactory rebalancer{};         ///< one for every EP group of a run
  RequestRouterFactory request_router{};  ///< one for every run
  KvLayout kv_layout{};
  KvLayout kv_held{};                        ///< of what a transfer moves
  MemoryBudget memory{};                     ///< of a GPU that holds the KV cache
  std::optional<MemoryBudget> ffn_memory{};  ///< of a GPU of the experts, with AFD
  /// Plan, placement and rules of decode steps, where these cut experts otherwise.
  std::shared_ptr<const Deployment> in_decode{};

  /// Returns the deployment whose plan, placement and rules steps under a rule have.
  const Deployment& of_steps(StepKind rule) const {
    return in_decode && rule == StepKind::decode ? *in_decode : *this;
  }
};

/// Returns what follows from a spec: placement of experts, rules of steps over that placement, and
/// memory left for the KV cache. No config is read after it. Throws ConfigError where a policy
/// refuses its options, and DoesNotFit.
Deployment deploy(const PoolSpec&, const Traces&);

/// Sequences of so many tokens that a rank runs at most: by its scheduler's limit and its KV
/// cache; at least 1.
int most_sequences(const Deployment&, int tokens);

/// True if KV caches keep what agents of sessions had, for the time until these are back.
bool remembers_agents(const EngineSettings&);

/// Rows for steps that belong to no run, drawn by the deployment's seed.
RowSource typical_rows(const Deployment&);

/// The times of its steps, as a run starts; of decode steps by of_steps().
StepModel step_model(const Deployment&);

/// A step under a rule, for StepModels::of() that rule: experts where they stand as a run starts.
StepInput step_input(const Deployment&, StepKind rule, const StepBatch&, const RowSource&,
                     std::optional<LayerRange> layers = {});

/// The times of all its steps.
class StepModels {
 public:
  explicit StepModels(const Deployment&);
  StepModel& of(StepKind rule) { return decode_ && rule == StepKind::decode ? *decode_ : all_; }

 private:
  StepModel all_;
  std::optional<StepModel> decode_;
};

/// The rules over another placement than its first: routers make their fixed choices anew.
PhaseRules rules_over(const Deployment&, const ExpertPlacement&);

}  // namespace moesim
