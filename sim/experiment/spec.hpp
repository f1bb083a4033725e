// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hardware/fabric.hpp"
#include "hardware/rng.hpp"
#include "models/memory.hpp"
#include "models/step_ops.hpp"
#include "sim/engines/hand_over.hpp"
#include "sim/experiment/anchor.hpp"
#include "sim/experiment/policies.hpp"
#include "sim/failures/failures.hpp"
#include "sim/step/overlap.hpp"
#include "sim/step/shared_expert.hpp"
#include "sim/step/step_record.hpp"
#include "sim/step/two_term.hpp"
#include "sim/token_routing/charges.hpp"
#include "traces/requests/request_source.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Rule of a step that holds prefill and decode tokens.
struct MixedRule {
  enum class Kind { prefill, decode, decode_if_few, own } kind = Kind::prefill;
  std::int64_t prefill_tokens_at_most = 0;  ///< decode_if_few
};

/// The rule of a step that holds `kind` with that many prompt tokens over the group.
StepKind rule_kind(const MixedRule&, StepKind kind, std::int64_t prefill_tokens);

/// How the tokens of one kind of step find replicas and travel.
struct PhaseSpec {
  TokenRoutingChoice routing;
  TokenRouterFactory router;  ///< of that choice
  std::shared_ptr<const Dispatch> dispatch;
};

/// How experts are placed as a run starts. Of a dense model only the placer is there.
struct PlacementSpec {
  std::shared_ptr<const Placer> placer{};
  bool from_trace = true;                ///< fitted on the traces; else before anything was seen
  std::vector<std::string> workloads{};  ///< tags of the requests that it is fitted on; none: all
  bool by_gain = false;                  ///< more copies in layers where these gain more
  /// Text of all that the placement goes by apart from the traces. Empty where it ignores traces:
  /// then there is nothing to keep.
  std::string key{};
};

/// The KV cache's share of memory, and its blocks.
struct KvCacheSpec {
  KvPaging paging{};
  double gpu_memory_utilization = 0.9;               ///< of HBM
  std::optional<double> free_gpu_memory_fraction{};  ///< instead: of what all else leaves of HBM
  Bytes process_memory{};                            ///< of a GPU, for the engine's process
  bool layer_per_draft = false;   ///< a draft layer's KV is kept once for each draft
  bool draft_embeddings = false;  ///< draft layers have an embedding and a head of their own
  std::optional<double> logits_copies{};  ///< of all sampled tokens; none: one of a GPU's slice
  std::shared_ptr<const Retention> retention{};  ///< between an agent's requests; none: lru
  std::vector<KvTierPlan> tiers{};               ///< below HBM, nearest first
  /// How long before an agent is back its blocks are loaded from tiers; none: when it is back.
  std::optional<Seconds> prefetch_lead{};
  TierRead read = TierRead::parked;
  std::int64_t min_load_tokens = 0;  ///< a shorter hit of a tier is computed
  TierFetch fetch = TierFetch::all;
  bool offload_output = true;  ///< tiers are given replies, too
  /// True if HBM may hold what an agent had until it is back.
  bool retains() const { return retention && retention->holds(); }
};

/// Names of the policies in a config, as policies do not know their names.
struct PolicyNames {
  std::string scheduling{}, placement{}, capacity{}, expert_memory{};
  std::string prefill_dispatch{}, decode_dispatch{};
};

/// Speculative decoding. Every sequence that decodes has `tokens` drafts verified with its last
/// token. It emits those up to the first that is rejected and one more.
struct SpeculationPlan {
  std::int32_t tokens = 0;           ///< 0: none
  std::vector<double> acceptance{};  ///< of each draft when all before it were accepted
  bool mtp = true;              ///< a layer of the model drafts them, one pass for each; or ...
  Seconds draft_time{};         ///< ... a pass takes this long
  DraftChoiceFactory choice{};  ///< of the drafts that are verified; none: all
  bool has_module() const { return tokens > 0 && mtp; }
};

/// How clients and the engine's front meet.
struct ApiServer {
  /// A request's way to the engine and back: HTTP, queues between processes.
  Seconds latency{};
  /// Before that its prompt is tokenized: so long for each token. Workers take prompts in the order
  /// in which they came, one each at a time. Each attention rank has so many workers.
  Seconds tokenization{};
  Seconds per_request{};  ///< of the latency: HTTP, templates, checks keep a worker busy
  std::int32_t tokenizer_workers = 1;
  std::int32_t first_chunk = 1;  ///< tokens that a client is first shown
  /// Decode steps after which an engine looks for new requests. It also does so when it has nothing
  /// to do and, if prompts have steps of their own, after such a step.
  std::int32_t receive_interval = 1;
  /// Steps from then on until the scheduler takes a request. The API server shares a process with
  /// the stream of every step, and steps are scheduled ahead.
  std::int32_t admission_steps = 0;
};

struct Slo {
  std::optional<Seconds> ttft, tpot, e2el;
};

/// A kind of requests. All turns of a session are of one class.
struct RequestClass {
  std::string name;
  std::optional<double> share{};  ///< of the requests, or of the sessions; none: recorded
  std::int32_t priority = 0;      ///< lower values come first
  Slo slo{};                      ///< its own, or the experiment's
};
/// The place of the class that a request has, by the classes' shares; 0 of none, without a draw.
std::uint8_t draw_class(std::span<const RequestClass>, Rng&);

/// A model on the GPUs of a pool, and how it is cut.
struct ServedModel {
  std::string engine{};  ///< name and version of the preset, or empty
  /// With the engine's kernels, less what other tenants take of the links; its spine is one group's
  /// part.
  ClusterSpec cluster{};
  std::optional<ClusterSpec> ffn_cluster{};  ///< of the experts' GPUs (AFD); none: `cluster`
  MoeModel model{};
  std::filesystem::path model_file{};  ///< of the model; empty where the config holds it
  PrecisionPlan precision{};
  ParallelPlan parallel{};    ///< of one EP group
  int instances = 1;          ///< EP groups alike behind one router, each with its own clock
  int may_join = 0;           ///< EP groups of the other pool that may take this one's role
  bool prefill_only = false;  ///< a request leaves after its first token, with its KV cache
  FirstToken first_token = FirstToken::prefill;  ///< of two pools, the same in both
  /// The preset's name without the version, or empty.
  std::string engine_name() const { return engine.substr(0, engine.find(' ')); }
  /// True if this is the pool that shows first tokens, and it does so then.
  bool shows_first(FirstToken when) const { return !prefill_only && first_token == when; }
  /// Cluster that holds the experts.
  const ClusterSpec& expert_cluster() const { return ffn_cluster ? *ffn_cluster : cluster; }
  /// Does the same with each cluster.
  template <class Do>
  void each_cluster(Do&& with) {
    with(cluster);
    if (ffn_cluster) with(*ffn_cluster);
  }
  /// Cluster that tokens cross on their way to the experts.
  ClusterSpec token_cluster() const {
    return ffn_cluster ? joined(*ffn_cluster, cluster) : cluster;
  }
  /// Attention ranks behind the router, as a run starts.
  int ranks() const { return instances * parallel.dp; }
  /// EP groups that ever have this role.
  int most_instances() const { return instances + may_join; }
};

/// The requests and what they are owed: the same for all pools.
struct OfferedLoad {
  ConfigNode gating;                           ///< of both phases, unless prefill has its own
  std::optional<ConfigNode> prefill_gating{};  ///< if prefill has its own
  RequestWorkload workload{};
  std::vector<RequestClass> classes{};  ///< of requests; none: all are alike
  /// Places in `classes` by Request::recorded_class; none: classes are drawn by their shares.
  std::vector<std::uint8_t> recorded_classes{};
  Slo slo{};
  BindingOrder binding{};
  std::uint64_t seed = 1;

  /// Objectives of a request of that class.
  const Slo& slo_of(std::uint8_t of_class) const {
    return classes.empty() ? slo : classes[of_class].slo;
  }
  /// Objectives of every request at least: of each the longest of all classes, unset where a class
  /// has none.
  Slo loosest_slo() const;
  /// True if any request has that objective.
  bool has_objective(std::optional<Seconds> Slo::*objective) const;
};

/// Policies that decide.
struct ChosenPolicies {
  std::shared_ptr<const Policies> policies{};  ///< what was chosen from
  PolicyNames names{};
  std::shared_ptr<const Scheduler> scheduler{};
  PrefillAlignmentPlan prefill_alignment{};
  PlacementSpec placed{};
  PlacementProblem placement_problem{};
  double replication = 1, replication_effective = 1;
  bool bind_odd_only = false;       ///< the placement is fitted on even requests
  std::vector<PhaseSpec> phases{};  ///< by StepKind; of mixed steps if MixedRule::Kind::own
  MixedRule mixed{};
  RequestRoutingChoice request_routing;
  RebalancingChoice rebalancing;
  MovementOptions movement{};
  std::shared_ptr<const CapacityRule> capacity{};
  std::optional<ExpertMemoryPlan> expert_memory{};  ///< none: every expert stands in HBM
  FailurePlan failures{};
};

/// How the engine runs steps.
struct EngineSettings {
  std::optional<HostLink> host_link{};  ///< shared by experts and KV; none: each has its own
  KvCacheSpec kv_cache{};
  bool prefix_caching = false;
  std::int64_t max_model_len = 0;  ///< tokens that a request may have; 0: unlimited
  std::int32_t buffer_tokens = 0;  ///< per rank and step, for which expert buffers have room
  SpeculationPlan speculation{};
  ApiServer api_server{};
  std::vector<std::int32_t> graph_sizes{};  ///< captured batch sizes, ascending; none: eager
  Charges charges{};
  std::optional<TwoTermStep> two_term{};  ///< what steps take, in place of kernels and links
  Overlap overlap{};
  SharedExpert shared_expert{};
  int keep_experts = 0;  ///< of a token in a decode step, whatever others choose; 0: all
  bool sampled = false;  ///< MoE layers are drawn from steps alike: see StepSampler
};

/// Measurements of a run, and the measured runs that correct it.
struct MeasurementSpec {
  bool spot_checks = true;         ///< of a sampled run: steps are priced exactly beside it
  bool few_samples = false;        ///< of a sampled run that only chooses what is looked at next
  std::optional<Anchor> anchor{};  ///< corrections by measured runs of this deployment
  ServingLoad anchored_at{};       ///< the load that the corrections are for
  double anchored_tpot = 1;        ///< what step times are multiplied by
  double anchored_ttft = 1;        ///< what times to first tokens are multiplied by beside
  /// Takes corrections, for a load.
  void correct(const Anchor&, const ServingLoad&);
  std::optional<SitePower> site_power{};
  double warmup = 0;  ///< share of the requests, in order of arrival, before measuring starts
  double hot_rank_threshold = 2;
  bool expert_counts = true;
  bool locality = false;              ///< counted: whether selections are served near their tokens
  std::int64_t slowest_sessions = 0;  ///< whose turns the report has; 0: no turns
};

/// Statements of a config about the EP groups of one pool, read and checked. What the names in it
/// (cluster, model, anchor, placement files) refer to is here too. All are values, and policies
/// that hold no state. No trace has been opened, and nothing here depends on one: a changed copy is
/// as good as one that was read. A part of the program that needs one group of values asks for that
/// group. deploy() says what follows.
struct PoolSpec : ServedModel, OfferedLoad, ChosenPolicies, EngineSettings, MeasurementSpec {
  /// Node as it was read, an engine's preset filled in. Errors name places in it. Once it has been
  /// deployed, it is the resolved config.
  ConfigNode node;
  /// How it was read where that may surprise, a line each: for a user to see, not to fail on.
  std::vector<std::string> remarks{};
  /// The same pool as decode steps cut its experts; none: as all steps do.
  std::shared_ptr<const PoolSpec> decode_cut{};
};

/// The way of KV caches from a pool that prefills to a pool that decodes.
struct KvLinkSpec {
  bool network = false;  ///< over the network, else NVLink
  KvSends sends = KvSends::layer;
  /// Decode ranks copy the blocks that they fill to the prefill pool's last tier.
  bool decode_offload = false;
};

/// EP groups that move between two pools.
struct PoolRolesSpec {
  RoleChangeOptions options;
  PoolRolesFactory policy;  ///< one for every run
};

/// Statements of a whole config.
struct ExperimentSpec {
  ConfigNode node;                       ///< as it was written
  std::vector<PoolSpec> pools;           ///< one; or that which prefills and that which decodes
  std::optional<KvLinkSpec> kv_link{};   ///< between two pools
  std::optional<PoolRolesSpec> roles{};  ///< none: each group stays in its pool
};

/// Reads a config and what its names stand for, traces apart. Throws ConfigError.
ExperimentSpec read_spec(const ConfigNode&, const Policies& = {});
/// Reads the config of one pool, or one without pools. Throws ConfigError.
PoolSpec read_pool(const ConfigNode&, const Policies&);

/// Every key with its default, once all policies have been made (deploy() does).
Json resolved_config(const ExperimentSpec&);

/// Keys of an experiment. They begin with the keys of each EP group, which may be in "pools"
/// instead. pooled_group_keys() are these and the cluster.
std::span<const Key> experiment_keys();
std::span<const Key> group_keys();
std::span<const Key> pooled_group_keys();

/// Times of one slot's weights and one token's arithmetic on a GPU, in seconds, at the rates that
/// its grouped GEMM reaches: 2 flops for each of an expert's parameters, no padding.
RooflineTime expert_time(const ServedModel&);
/// True if some of its steps run experts and their exchange in one kernel.
bool fuses_experts(const ChosenPolicies&);
/// How its KV cache is laid out, the layer of an MTP module included.
KvLayout kv_layout_of(const PoolSpec&);
/// The same were there one pool: of what a sequence holds, its window and states included.
KvLayout kv_held_of(const PoolSpec&);
/// How its weights move.
Mover mover_of(const PoolSpec&);
/// Context of rebalancers. The mover must outlive it.
RebalancingContext rebalancing_context(const PoolSpec&, const Mover&);

}  // namespace moesim
