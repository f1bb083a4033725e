// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "sim/experiment/policies.hpp"
#include "sim/gain/gain.hpp"
#include "sim/step/shared_expert.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "traces/routing_trace.hpp"

namespace moesim {

/// How a batch is drawn from a trace. Requests that fell into a loop (has_repetition) are left out.
enum class ReplaySample {
  distinct,     ///< one decode token at random from each of as many distinct requests at random
  consecutive,  ///< consecutive tokens of one request, every such window equally likely
  several       ///< distinct, but once every request has given a token they give another each
};
inline constexpr std::array<std::string_view, 3> replay_sample_names{"distinct", "consecutive",
                                                                     "several"};

/// Requests that a placement is fitted on.
enum class ReplayFit {
  self,  ///< the whole trace
  half   ///< fitted_half(); batches are drawn from the other requests alone
};
inline constexpr std::array<std::string_view, 2> replay_fit_names{"self", "half"};

/// Combinations of policies on recorded routing, without a clock: every placement x replication x
/// batch size x routing, on the same batches. Routers that need token rows see a batch spread over
/// the ranks in order, token i of B on rank i * gpus / B.
struct ReplayConfig {
  int gpus = 0;
  std::vector<ConfigNode> placements;  ///< policies of Policies::placement
  std::vector<double> replications;
  /// Requests of these tags are what placements are fitted on, batches come from all others; empty:
  /// as `fit` says.
  std::vector<std::string> fit_workloads{};
  /// With `fit_workloads`: batches come from requests of these tags alone, of which none is fitted
  /// on. Empty: from all others.
  std::vector<std::string> score_workloads{};
  std::vector<ConfigNode> routings;  ///< policies of Policies::token_routing
  std::vector<int> batches;          ///< tokens
  ReplaySample sample = ReplaySample::distinct;
  ReplayFit fit = ReplayFit::self;
  int sampled_batches = 200;
  std::uint64_t seed = 0;
  int nodes = 1;
  int groups = 1;  ///< expert groups of group-limited gating
  RooflineTime time{};
  ConfigNode capacity{"dropless", "replay"};  ///< a policy of Policies::capacity; batches are steps
  /// A policy of Policies::expert_memory with "slots_per_layer", HBM slots of each GPU. Batches are
  /// steps, in the order drawn: what one request picks again and again shows only in a run.
  std::optional<ConfigNode> expert_memory{};
  std::optional<SharedExpert> shared_expert{};  ///< its tokens are counted too
  bool locality = false;  ///< counts whether selections are served near their tokens
  bool by_gain = false;   ///< more copies in layers where these gain more (place_by_gain())
  /// Numbers of GPUs over which experts are cut, dividers of `gpus`, as further rows. These have
  /// gpus / cut ranks, one copy of each expert, the first placement, and the even split.
  std::vector<int> cuts{};
  /// Recordings that could as well have been made, each replayed anew; 0: none. Requests are drawn
  /// with replacement and dealt anew to what is fitted and what is scored.
  int bootstrap = 0;
  /// Called, by the thread that called replay(), before the first score and after each: (done, in
  /// all). A score is all routings on one placement, ratio and batch size.
  std::function<void(std::int64_t, std::int64_t)> progress = [](std::int64_t, std::int64_t) {};
};

/// A combination. A case is one layer of one sampled batch; means are over cases, ratios are ratios
/// of means.
struct ReplayRow {
  std::string placement;
  double replication = 1;
  double replication_effective = 1;  ///< after rounding up to whole slots on every GPU
  int batch = 0;
  double tokens_per_request = 1;  ///< mean; all of the batch if it is consecutive
  std::string routing;
  std::int64_t cases = 0;
  /// Slots with tokens on the GPU that has the most; slices of cut experts as parts of slots.
  double max_activated_mean = 0;
  /// Half the 95 % interval of max_activated_mean over batches, whose layers stay together.
  double max_activated_margin = 0;
  /// Slots in percent of the first placement's at equal replication, batch and routing; of the
  /// first placement's those of the first routing. Worlds are the recordings of `bootstrap`.
  std::optional<SampledGain> against_first{};
  /// ceil(active experts / GPUs), which no placement of whole experts or routing goes below.
  double bound_mean = 0;
  double max_tokens_mean = 0;  ///< tokens on the GPU that has the most
  /// The same with those of the shared expert; if they are counted.
  std::optional<double> max_tokens_with_shared_mean{};
  double time_mean = 0;  ///< RooflineTime of the GPU that takes longest
  double activated_vs_bound = 1;
  double activated_vs_optimal = 1;
  double activated_vs_even = 1;
  /// Tokens on the fullest GPU over those on the mean one when copies share evenly, as in prefill.
  /// Counts all requests that batches may be drawn from, mean over layers. The placement's alone.
  double token_imbalance = 1;
  double dropped = 0;                ///< share of the selections
  std::optional<double> hit_rate{};  ///< of active slots, in HBM when their layer begins
  /// Copies that a routing brings for one layer of one batch; of those that bring any. What their
  /// bytes take is not in the time.
  std::optional<double> step_copies_mean{};
  /// Selections served on the GPU of their token, or on its node; if they are counted.
  std::optional<double> own_gpu_share{}, own_node_share{};
  std::int64_t above_optimal = 0;  ///< cases with more activated than the exact optimum
  std::int64_t above_even = 0;     ///< cases with more activated than the even split: inversions
  /// max_activated_mean of each batch, for comparisons of rows batch by batch: all rows of a batch
  /// size share their batches.
  std::vector<double> activated_of_batch{};
  std::vector<double> activated_of_resample{};  ///< max_activated_mean of each recording drawn
};

/// Rows in the order placement, replication, batch, routing, then those of cut experts. Slots,
/// tokens and times of these are in whole experts: a slice of a half is half a slot. The same
/// configuration, trace and seed give the same rows on any number of threads. Policies are those
/// that ship and those that a program adds. Throws ConfigError if a policy is unknown, a placement
/// has no solution, or an id of the trace is none. Throws it if the trace has too few usable
/// requests or tokens for a batch.
std::vector<ReplayRow> replay(const RoutingTrace&, const ReplayConfig&, const Policies& = {});

/// Takes out batch sizes that the trace is too small for, unless it is so for all of them. Returns
/// a remark that names them, or "".
std::string leave_out_large_batches(const RoutingTrace&, ReplayConfig&);

/// How its placements are taken where that may surprise, a line each.
std::vector<std::string> remarks_of(const RoutingTrace&, const ReplayConfig&, const Policies& = {});

/// Writes {"rows": [{"placement": ..., ...}]}, keys named as the fields of ReplayRow. On demand it
/// has activated_of_batch, and step_copies_mean where some row has it. Shares of selections and
/// tokens with the shared expert are there only where they are counted.
OrderedJson to_json(const std::vector<ReplayRow>&, bool each_batch = false);

}  // namespace moesim
