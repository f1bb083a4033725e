// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/failures/recovery.hpp"
#include "sim/rebalancing/relocation.hpp"
#include "sim/report/fields.hpp"
#include "sim/report/statistics.hpp"
#include "sim/report/time_series.hpp"

namespace moesim {

// The values of a report, section by section, as documented in the tables of report.cpp: meanings,
// units, and what is left out when.

struct ReportContext {
  std::string moesim;  ///< version
  std::uint64_t seed = 0;
  Json config;  ///< resolved
};

struct AnchorStats {
  std::string deployment;
  int runs = 0;
  double leave_one_out_error = 0, tpot_factor = 1, ttft_factor = 1;
};

struct Attainment {
  std::optional<double> ttft, tpot, e2el;
  bool any() const { return ttft || tpot || e2el; }
};

struct Metrics {
  std::int64_t completed = 0, rejected = 0;
  std::optional<std::int64_t> timed_out, cancelled;  ///< where clients may leave
  std::optional<double> timeout_share, cancelled_share;
  std::int64_t measured_requests = 0, completed_while_measured = 0;
  double duration_s = 0;
  double request_throughput = 0, request_goodput = 0, slo_attainment = 0;
  std::optional<Attainment> attainment;  ///< where there are objectives
  double output_throughput = 0, total_token_throughput = 0;
  Summary ttft, tpot, itl, e2el;                           ///< ms
  std::optional<double> ingress_ms, queue_ms, prefill_ms;  ///< mean parts of ttft
  double tokens_per_s_per_gpu = 0;
  std::optional<double> tokens_per_s_per_user;
  double total_tokens_per_s_per_gpu = 0;
  double mfu = 0, mbu = 0;
  std::optional<double> cost_per_million_output_tokens;
};

/// The requests of one class.
struct ClassStats {
  std::int64_t requests = 0;
  Summary ttft, tpot;                    ///< ms
  std::optional<Attainment> attainment;  ///< where the class has objectives
  double slo_attainment = 0, request_goodput = 0;
};

/// Power and energy of the site: GPUs, what stands beside them, and the building.
struct SiteEnergyStats {
  double watts_per_gpu = 0, joules_per_output_token = 0, joules_per_token = 0;
  double output_tokens_per_s_per_mw = 0;
  std::optional<double> electricity_per_million_output_tokens;  ///< where it has a price
  std::optional<double> cost_with_electricity;                  ///< where GPUs have one as well
};

/// Energy of all GPUs while measured.
struct EnergyStats {
  double joules = 0;
  std::optional<double> joules_per_output_token, joules_per_token;  ///< none without tokens
  double watts_per_gpu = 0, share_of_limit = 0;
  double output_tokens_per_s_per_mw = 0, tokens_per_s_per_mw = 0;
  Named<double> shares;
  std::optional<SiteEnergyStats> site;
  std::string source;
};

/// Attainment along a run, of its requests in order of arrival: whether it lasts, and how far
/// chance may move it.
struct AttainmentAlong {
  double first_half = 0, second_half = 0;
  double standard_error = 0;
  double whole_run = 0;
};

struct MeasurementStats {
  std::string window, state;
  double begin_s = 0, end_s = 0;
  std::optional<double> offered_request_rate;
  double served_request_rate = 0;
  double ttft_growth = 0, tpot_growth = 0;    ///< s/s
  std::optional<AttainmentAlong> attainment;  ///< where there are objectives and enough requests
};

/// Parts of the time of sessions.
struct SessionShares {
  double service = 0, queue = 0;
  std::optional<double> join;  ///< where sessions have several agents
  double gap = 0;
};

/// A turn of a session, in seconds of the run. Blocks from a tier came in the last `loading_s`
/// before `begun_s`.
struct TurnSpan {
  std::int64_t agent = 0, turn = 0;  ///< from 0
  double sent_s = 0, begun_s = 0, first_token_s = 0, last_token_s = 0;
  std::optional<double> loading_s;  ///< where there are tiers
  std::int64_t prompt_tokens = 0, cached_tokens = 0;
  std::optional<std::int64_t> loaded_tokens;  ///< of those cached
  std::int64_t output_tokens = 0;
};

struct SlowSession {
  std::int64_t session = 0;  ///< in order of their beginning
  double begun_s = 0, ended_s = 0;
  std::vector<TurnSpan> turns;  ///< in order of their requests
};

struct SessionStats {
  std::int64_t finished = 0, broken = 0, open = 0;  ///< of the whole run
  std::optional<std::int64_t> too_long;             ///< of the whole run, where there are any
  std::int64_t measured = 0;
  Summary completion;  ///< s
  double mean_turns = 0;
  double throughput = 0;
  double mean_alive = 0, mean_requests_in_flight = 0;
  SessionShares share_of_time;
  std::optional<std::vector<SlowSession>> slowest;  ///< slowest first, where they are asked for
};

/// Prompt tokens, by where they came from when a request was first admitted.
struct PrefixStats {
  std::int64_t queried_tokens = 0, hit_tokens = 0, computed_tokens = 0;
  std::optional<std::int64_t> loaded_tokens;  ///< of the hits, from tiers, where there are any
  std::int64_t ideal_hit_tokens = 0;          ///< of one endless cache
  double hit_rate = 0, ideal_hit_rate = 0;
};

struct TurnGroupStats {
  std::int64_t requests = 0;
  Summary ttft;  ///< ms
  double mean_prompt_tokens = 0, mean_computed_tokens = 0, mean_output_tokens = 0;
  PrefixStats prefix;
};

/// Prompt tokens of the turns that were sent in a part of the run, by where they came from.
struct HitSpan {
  double begin_s = 0, end_s = 0;
  std::int64_t queried_tokens = 0, hit_tokens = 0;
  std::optional<std::int64_t> loaded_tokens;  ///< of the hits
};

struct TurnStats {
  std::optional<TurnGroupStats> all, first, later;
  std::optional<TurnGroupStats> after_compaction;  ///< whose prompt is shorter than the one before
  Named<TurnGroupStats> by_number;
  std::optional<std::vector<HitSpan>> over_time;  ///< where sessions are asked for one by one
};

struct StepKindStats {
  std::int64_t steps = 0;
  double seconds = 0, share_of_time = 0, mean_ms = 0;
  double mean_prefill_tokens = 0, mean_decode_tokens = 0, mean_decode_tokens_per_rank = 0;
  double mean_dummy_ranks = 0, decode_tokens_per_s_per_gpu = 0;
  Named<double> parts_mean_ms;
};

struct RuleShares {
  double share_of_steps = 0, share_of_time = 0;
};

struct StepStats {
  Named<StepKindStats> by_kind;
  Named<RuleShares> by_rule;
};

struct Distribution {
  double mean = 0;
  std::int64_t p50 = 0, p95 = 0, p99 = 0, max = 0;
};

struct RankDistribution {
  Distribution steps;
  std::vector<std::int64_t> total_by_rank;
};

struct ExpertLayerStats {
  int layer = 0;
  RankDistribution rank_activated, rank_tokens;
  Distribution expert_tokens;
};

struct HotRankEvents {
  std::int64_t layer_steps = 0;
  double worst = 0;
};

struct ExpertSummary {
  double max_activated_mean = 0, activated_mean = 0, active_experts_mean = 0;
  double uniform_experts_mean = 0;
  double max_tokens_mean = 0, tokens_mean = 0;
  double balancedness = 0, imbalance = 0, cv = 0, gemm_occupancy = 0;
  std::optional<double> imbalance_with_shared;            ///< where the shared expert is a slot
  std::optional<double> own_gpu_share, own_domain_share;  ///< where selections are counted
  std::optional<double> step_copies_mean, step_copy_bytes_mean;  ///< where steps bring any
  HotRankEvents hot_rank_events;
};

struct ExpertKindStats {
  ExpertSummary summary;
  std::vector<ExpertLayerStats> layers;
};

struct HottestRank {
  double time_s = 0;
  int layer = 0;
  std::int32_t rank = 0;
  double ratio = 0;
};

/// [layer][expert]
using ExpertCounts = std::vector<std::vector<std::int64_t>>;

struct ExpertStats {
  ExpertSummary summary;
  Named<ExpertKindStats> by_step_kind;
  int replicas = 0;
  double replication_effective = 1;
  double dropped = 0, rerouted = 0, delayed = 0;
  double hot_rank_threshold = 0;
  std::vector<HottestRank> hottest_ranks;
  std::optional<Named<ExpertCounts>> tokens_per_expert_by_workload;
};

struct PrefetchStats {
  std::int64_t issued = 0, used = 0, late = 0, wasted = 0;
};

struct ExpertTransferStats {
  std::int64_t hits = 0, misses = 0;
  double hit_rate = 0;
  std::int64_t streamed = 0;
  PrefetchStats prefetch;
  double host_bytes = 0, nvme_bytes = 0, stall_seconds = 0;
  std::optional<double> held_up_seconds;  ///< where the host link is shared with KV blocks
  std::string host_source;
};

struct ExpertMemoryStats {
  std::string type;
  std::optional<ExpertTransferStats> transfers;  ///< none: every expert is resident
};

/// Prompts that ranks held back to prefill together.
struct PrefillAlignmentStats {
  std::string type;
  std::int64_t steps_held = 0;
  double share_of_steps = 0;
  std::int64_t tokens_held = 0;
  double mean_wait_ms = 0;
};

struct ExpertBufferStats {
  std::int32_t tokens_per_rank = 0;
  std::int64_t steps_cut = 0, rank_steps_cut = 0;
};

struct TrafficStats {
  double seconds = 0, hidden_seconds = 0, share_of_busy_time = 0;
  double nvlink_bytes = 0, network_bytes = 0;
};

struct LayerTrafficStats {
  TrafficStats all;
  double mean_us_per_layer = 0, p99_us_per_layer = 0;
};

struct CommunicationStats {
  Named<std::int64_t> layers_by_dispatch;
  LayerTrafficStats dispatch, combine;
  TrafficStats tp_all_reduce;
};

struct PartStats {
  double seconds = 0, share = 0;
  Named<double> bound_by;
};

struct BreakdownStats {
  double busy_seconds = 0;
  Named<PartStats> parts;
  Named<double> bound_by;
  double extrapolated_share = 0, unmeasured_share = 0;
  double barrier_idle_share = 0;
  std::vector<double> barrier_idle_seconds_per_gpu;
  double exposed_communication_share = 0;
  std::optional<double> measured_share, interpolated_share, carried_over_share, charged_share;
};

struct RoutingChargeStats {
  double fixed_us = 0, per_128_active_us = 0;
};

struct ChargeStats {
  std::string source;
  double top_k_of_all_tokens_us = 0, host_overhead_us = 0;
  Named<RoutingChargeStats> token_routing;
};

struct MemoryStats {
  double capacity_bytes = 0, usable_bytes = 0, weights_bytes = 0, experts_bytes = 0;
  double replicas_bytes = 0, buffers_bytes = 0, rebalance_buffer_bytes = 0, kv_bytes = 0;
};

/// Attention and experts on GPUs of their own.
struct AfdStats {
  int attention_gpus = 0, ffn_gpus = 0, micro_batches = 0;
  double attention_idle_share = 0, ffn_idle_share = 0;
  double attention_straggler_share = 0, ffn_straggler_share = 0;
  double dispatch_busy_share = 0, combine_busy_share = 0;
  Named<double> critical_path;
  MemoryStats ffn_memory;
};

struct KvStats {
  int block_tokens = 0;
  std::int64_t blocks_per_rank = 0;
  double mean_utilization = 0, peak_utilization = 0;
  std::int64_t preemptions = 0;
  bool prefix_caching = false;
  std::int64_t prefix_queried_tokens = 0, prefix_hit_tokens = 0;
  double prefix_hit_rate = 0;
  Named<std::int64_t> prefix_hit_tokens_by_tier;  ///< HBM first; where there is a tier
  std::optional<double> prefix_loaded_rate;       ///< where there is a tier
  std::optional<std::int64_t> recomputed_tokens;  ///< where requests were preempted
};

/// What went over one direction of the links to a tier.
struct TierLinkStats {
  std::int64_t transfers = 0;
  double bytes = 0, busy_share = 0;
};

/// A memory below HBM that keeps blocks of the KV cache: over all of the pool's, whole run.
struct TierStats {
  std::string per;
  std::int64_t tiers = 0, capacity_blocks = 0;  ///< each
  double capacity_bytes = 0;                    ///< each
  TierLinkStats read, write;
  std::optional<double> passed_bytes, kept_bytes;  ///< of the first of several tiers
  double evicted_bytes = 0, dead_bytes = 0, refused_bytes = 0;
  double mean_fill = 0, peak_fill = 0;
  std::int64_t given_up_loads = 0;
  double mean_wait_ms = 0, p99_wait_ms = 0;
  std::optional<double> held_up_seconds;  ///< where the first one's link is shared
};

struct SpeculationStats {
  std::int64_t num_drafts = 0, num_draft_tokens = 0, num_accepted_tokens = 0;
  double draft_acceptance_rate = 0, mean_acceptance_length = 0;
  double draft_seconds = 0, draft_share = 0;
};

/// Of a request router that takes time.
struct RouterStats {
  double decision_us = 0, most_per_second = 0;
  std::int64_t decisions = 0;
  double busy_share = 0, mean_wait_ms = 0;
};

/// Of a run whose steps are drawn from samples.
struct SampledStats {
  std::int64_t samples = 0, spot_checks = 0;
  double step_time_error = 0, standard_error = 0, worst_step_error = 0;
};

struct CoverageStats {
  std::int64_t tokens = 0;
  double recorded = 0, borrowed = 0, wrapped = 0, synthetic = 0;
};

/// An outage in a run that ended at some time.
struct OutageStats {
  OutageRecord outage;
  double gpu_seconds_down = 0;
  std::optional<std::int64_t> kv_blocks;  ///< given up for experts, as the next two, if any were
  std::optional<std::int64_t> preempted;
  std::optional<double> kv_seconds;
  std::optional<int> instance;  ///< where there are several
};

/// What the EP groups of one pool did.
struct PoolStats {
  StepStats steps;
  ExpertStats experts;
  ExpertMemoryStats expert_memory;
  ExpertBufferStats expert_buffers;
  std::optional<PrefillAlignmentStats> prefill_alignment;  ///< where a config has one
  CommunicationStats communication;
  BreakdownStats breakdown;
  std::optional<AfdStats> afd;
  ChargeStats charges;
  MemoryStats memory;
  KvStats kv;
  Named<TierStats> tiers;
  std::optional<SpeculationStats> speculative;
  std::optional<RouterStats> request_router;
  std::optional<SampledStats> sampled;
  Named<CoverageStats> routing_coverage;
  RebalancingLog rebalancing;
  std::vector<OutageStats> failures;
  std::vector<TimeBucket> over_time;
};

struct InstanceStats {
  int instance = 0;
  std::int64_t steps = 0;
  double mean_step_ms = 0, utilization = 0, barrier_idle_share = 0;
  std::int64_t output_tokens = 0;
  double prefill_tokens = 0, decode_tokens = 0;
  double kv_mean_utilization = 0, kv_peak_utilization = 0, prefix_hit_rate = 0;
  std::int64_t preemptions = 0;
};

/// The EP groups of one of two pools.
struct PoolGroups {
  int gpus = 0;
  std::vector<InstanceStats> instances;
};

struct PrefillPoolStats {
  PoolGroups groups;
  PoolStats pool;
};

struct KvTransferStats {
  std::string level;
  std::int64_t transfers = 0;
  double bytes = 0, mean_ms = 0, mean_wait_ms = 0, mean_exposed_ms = 0;
};

/// A group that went from one pool to the other.
struct RoleChangeStats {
  int instance = 0;
  std::string to;
  double at_s = 0;
  std::optional<double> drain_s, switch_s;  ///< none: the run ended before
};

/// EP groups that move between the pools, over the whole run.
struct PoolRolesStats {
  std::int64_t changes = 0;
  std::optional<double> mean_drain_s, mean_switch_s;
  double mean_prefill_groups = 0, mean_decode_groups = 0, away_share = 0;
  std::vector<RoleChangeStats> events;
};

struct PoolsStats {
  PrefillPoolStats prefill;
  PoolGroups decode;
  KvTransferStats kv_transfer;
  std::optional<PoolRolesStats> roles;  ///< where groups may move
};

/// What the simulator itself did: never part of the document, which is the same on every machine.
struct SimulatorWork {
  std::int64_t steps = 0;
  std::int64_t routed_ids = 0;
  std::int64_t generated_tokens = 0;
};

/// The outcome of a run.
struct Report {
  ReportContext context;
  std::optional<AnchorStats> anchored;
  Metrics metrics;
  Named<ClassStats> classes;          ///< where requests have classes
  std::optional<EnergyStats> energy;  ///< where the power of the GPUs is known
  MeasurementStats measurement;
  std::optional<SessionStats> sessions;  ///< where requests are turns of sessions
  std::optional<TurnStats> turns;
  PoolStats pool;                                       ///< of the decode pool, if there are two
  std::optional<PoolsStats> pools;                      ///< prefill and decode apart
  std::optional<std::vector<InstanceStats>> instances;  ///< where one pool has several
  SimulatorWork work;

  /// The report file: keys are contracts, see README. Throws std::logic_error if a number in it is
  /// not finite or a share is above 1.
  OrderedJson document() const;
};

/// Every key of the report file, in its order.
const std::vector<ReportKey>& report_keys();
/// What documents the value at a pointer into the report file, or nullptr.
const ReportKey* find_report_key(std::string_view pointer);

/// Whether every number in a document is one: JSON would write NaN and infinity as null.
bool all_numbers_finite(const OrderedJson&);

}  // namespace moesim
