// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "hardware/fabric.hpp"
#include "models/memory.hpp"
#include "models/step_ops.hpp"
#include "sim/experiment/anchor.hpp"
#include "sim/experiment/policies.hpp"
#include "sim/failures/failures.hpp"
#include "sim/step/step_model.hpp"
#include "sim/step/step_record.hpp"
#include "sim/token_routing/charges.hpp"
#include "traces/gating/gating.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// Routing traces that several experiments share: a sweep opens or generates each one once.
/// Thread-safe.
class TraceLibrary {
 public:
  RoutingTrace get(const ConfigNode& gating, const MoeModel& model, std::uint64_t seed);

 private:
  struct Entry {
    std::once_flag made;
    std::optional<RoutingTrace> trace;
  };
  std::mutex mutex_;  // of the map alone: different traces are made side by side
  std::map<std::string, Entry> traces_;
};

/// What one GPU's memory is spent on.
struct MemoryBudget {
  Bytes capacity;              ///< of the GPU
  Bytes usable;                ///< capacity * gpu_memory_utilization
  Bytes weights;               ///< everything but routed experts
  Bytes experts;               ///< routed experts, one copy of each over the group
  Bytes replicas;              ///< redundant slots
  Bytes buffers;               ///< exchange buffers, activations, logits, rebalance buffer
  Bytes rebalance_buffer;      ///< of them
  Bytes kv;                    ///< what is left
  std::int64_t kv_blocks = 0;  ///< per DP rank
};

/// What a step does that holds prefill and decode tokens.
struct MixedRule {
  enum class Kind { prefill, decode, decode_if_few, own } kind = Kind::prefill;
  std::int64_t prefill_tokens_at_most = 0;  ///< decode_if_few
};

/// Speculative decoding: every sequence that decodes has `tokens` drafts verified with its last
/// token, and emits those up to the first that is rejected and one more.
struct SpeculationPlan {
  std::int32_t tokens = 0;  ///< 0: none
  double acceptance = 0;    ///< of a draft when all before it were accepted
  bool mtp = true;          ///< a layer of the model drafts them, one pass for each; or ...
  Seconds draft_time{};     ///< ... a pass takes this long
  bool has_module() const { return tokens > 0 && mtp; }
};

/// The rules of steps by the StepKind they run under. Mixed steps have one if MixedRule::Kind::own.
struct PhaseRules {
  std::vector<PhaseRule> by_kind;  ///< [2] or [3]
  const PhaseRule& of(StepKind kind) const { return by_kind.at(static_cast<std::size_t>(kind)); }
};

/// The rule of a step that holds `kind` with that many prompt tokens over the group.
StepKind rule_kind(const MixedRule&, StepKind kind, std::int64_t prefill_tokens);

struct Pools;

/// How clients and the engine's front meet.
struct ApiServer {
  /// A request's way to the engine and back: HTTP, tokenizer, queues between processes.
  Seconds latency{};
  std::int32_t first_chunk = 1;  ///< tokens that a client is first shown
  /// Decode steps after which an engine looks for new requests. It also does so when it has nothing
  /// to do and, if prompts have steps of their own, after such a step.
  std::int32_t receive_interval = 1;
  /// Steps from then on until the scheduler takes a request: the API server shares a process with
  /// what is streamed of every step, and steps are scheduled ahead.
  std::int32_t admission_steps = 0;
};

struct Slo {
  std::optional<Seconds> ttft, tpot, e2el;
};

/// Everything a run needs, read and checked: values, and policies that hold no state.
struct Experiment {
  ClusterSpec cluster;
  MoeModel model;
  PrecisionPlan precision;
  ParallelPlan parallel{};  ///< of one EP group
  int instances = 1;        ///< EP groups alike behind one router, each with its own clock
  std::shared_ptr<const Scheduler> scheduler{};
  RequestWorkload workload;
  RoutingTrace trace;                           ///< of both phases, unless ...
  std::optional<RoutingTrace> prefill_trace{};  ///< ... prefill has its own
  bool bind_odd_only = false;                   ///< the placement was fitted on even requests
  BindingOrder binding{};
  PlacementProblem placement_problem{};
  ExpertPlacement placement{};  ///< as the run starts
  double replication = 1, replication_effective = 1;
  std::vector<ExpertLoad> seen{};  ///< what it was fitted on, [MoE layers][experts]; or empty
  PhaseRules rules{};
  MixedRule mixed{};
  Charges charges{};
  Overlap overlap{};
  std::vector<std::int32_t> graph_sizes{};  ///< captured batch sizes, ascending; none: eager
  std::shared_ptr<const CapacityRule> capacity{};
  std::optional<ExpertMemoryPlan> expert_memory{};  ///< none: every expert stands in HBM
  std::int32_t buffer_tokens = 0;  ///< per rank and step, for which expert buffers have room
  ConfigNode request_routing;      ///< routers have state: built by each run
  ConfigNode rebalancing;          ///< likewise
  MovementOptions movement{};
  FailurePlan failures{};
  MemoryBudget memory{};
  KvLayout kv_layout{};
  bool prefix_caching = false;
  SpeculationPlan speculation{};
  ApiServer api_server{};
  std::string engine{};            ///< name and version of the preset, or empty
  std::optional<Anchor> anchor{};  ///< corrections by measured runs of this deployment ...
  double anchored_tpot = 1;        ///< ... which step times and ...
  double anchored_ttft = 1;        ///< ... times to first tokens are multiplied by
  Slo slo{};
  double warmup = 0;  ///< share of the requests, in order of arrival, before measuring starts
  double hot_rank_threshold = 2;
  bool expert_counts = true;
  bool sampled = false;  ///< MoE layers are drawn from steps alike: see StepSampler
  std::uint64_t seed = 1;
  std::shared_ptr<const Policies> policies{};  ///< what was chosen from
  /// Of a prefill pool: a request leaves after its first token, with its KV cache.
  bool prefill_only = false;
  /// Prefill and decode apart; everything else here is then the decode pool's.
  std::shared_ptr<const Pools> pools{};

  Json config{};  ///< resolved: every key, defaults included
  /// How it was read where that may surprise, a line each: for a user to see, not to fail on.
  std::vector<std::string> remarks{};

  /// Attention ranks behind the router.
  int ranks() const { return instances * parallel.dp; }
};

/// What stands behind each EP group, by the group's number: all of the prefill pool come first.
std::vector<const Experiment*> groups_of(const Experiment&);
/// GPUs of all groups.
int gpus_of(const Experiment&);
/// The remarks on all groups, each once.
std::vector<std::string> remarks_of(const Experiment&);

/// Reads an experiment and everything it names. Throws ConfigError before anything runs.
Experiment load_experiment(const ConfigNode&, TraceLibrary&, const Policies& = {});

/// The keys of an experiment; the first of them are those of each EP group, which may stand in
/// "pools" instead.
std::span<const Key> experiment_keys();
std::span<const Key> group_keys();

/// The prices of its steps, as a run starts.
StepModel step_model(const Experiment&);

/// The experiment's rules over another placement than its first: routers make their fixed choices
/// anew.
PhaseRules rules_over(const Experiment&, const ExpertPlacement&);

/// How the experiment's weights move, and who decides that they do.
Mover mover_of(const Experiment&);
std::unique_ptr<Rebalancer> make_rebalancer(const Experiment&, const Mover&);

}  // namespace moesim
