// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/report/statistics.hpp"
#include "sim/report/time_series.hpp"
#include "sim/requests/requests.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// The order of first use: the same in every run.
struct BySampleNumber {
  bool operator()(const std::vector<const StepSample*>& a,
                  const std::vector<const StepSample*>& b) const {
    return std::ranges::lexicographical_compare(a, b, {}, &StepSample::number, &StepSample::number);
  }
};

/// What the expert layers did in steps of one kind.
struct ExpertTotals {
  struct Layer {
    CountHistogram rank_tokens, rank_activated, expert_tokens;
    std::vector<std::int64_t> tokens_of_rank, activated_of_rank;  ///< sums over steps, [ep]
  };
  double layer_steps = 0;  ///< (layer, step) pairs
  double max_activated = 0, mean_activated = 0;
  double max_tokens = 0, mean_tokens = 0;
  double cv = 0;                ///< of tokens over ranks, summed over (layer, step)
  double active_experts = 0;    ///< logical
  double uniformly_active = 0;  ///< as many tokens, in as many micro-batches, under uniform routing
  double useful_rows = 0, padded_rows = 0;
  double max_rows = 0, mean_rows = 0;  ///< of EP ranks, with a shared expert that is a slot
  double step_copies = 0, step_copy_bytes = 0;  ///< brought for one layer of one step
  Locality locality;
  CapacityTally capacity;
  std::int64_t hot_layer_steps = 0;  ///< busiest rank above the threshold times the mean
  double hottest = 0;                ///< the largest such ratio
  std::vector<Layer> layers;
  /// Steps by the samples that they took their layers from; what these did is counted at the end.
  std::map<std::vector<const StepSample*>, std::int64_t, BySampleNumber> steps_by_samples;
};

/// A layer of a step whose busiest rank held more tokens than the threshold allows.
struct HotRank {
  Time at{};  ///< when the step ended
  std::int32_t layer = 0;
  std::int32_t rank = 0;
  double ratio = 0;  ///< its tokens over the mean of all ranks
};

/// Sums over the steps of one kind.
struct StepTotals {
  std::int64_t steps = 0;
  double seconds = 0;
  std::array<double, part_names.size()> parts{};  ///< seconds of the critical path
  double prefill_tokens = 0, decode_tokens = 0;
  double dummy_ranks = 0;
  ExpertTotals experts;
};

/// What one EP group did.
struct GroupTotals {
  std::int64_t steps = 0;
  double seconds = 0;  ///< it computed
  double busy = 0;     ///< of these, within the window
  double idle = 0;     ///< GPU-seconds spent at barriers
  std::int64_t output_tokens = 0, preemptions = 0;
  double prefill_tokens = 0, decode_tokens = 0;  ///< computed
  std::int64_t prefix_queried = 0, prefix_hit = 0;
  double kv_block_seconds = 0;
  std::int64_t kv_blocks_peak = 0;
};

/// What rates are made of. Of a step that is only partly within the window, that share.
struct WindowTokens {
  double output = 0, prompt = 0;  ///< emitted; of requests with their first token
  double computed = 0;            ///< prefill and decode tokens
  double hbm_bytes = 0;
  Energy energy{};
};

/// Everything that is summed while a run is measured: steps that end in the window, whole, but for
/// `tokens` and the groups' `busy`. Of several EP groups: over the steps of all.
struct Totals {
  Time begin{}, end{};
  std::array<StepTotals, 3> by_kind;            ///< what the steps held
  std::array<std::int64_t, 3> steps_by_rule{};  ///< the rule they ran under
  std::array<double, 3> seconds_by_rule{};
  Breakdown parts{};
  SecondsByEvidence by_evidence{};
  Traffic dispatch, combine, all_reduce;
  CountHistogram dispatch_ns, combine_ns;  ///< per MoE layer
  std::vector<double> idle;                ///< seconds per GPU
  AfdTimes afd;                            ///< sums over steps, with AFD
  double flops = 0, hbm_bytes = 0;
  std::array<RoutingCoverage, 2> coverage{};
  double kv_block_seconds = 0;
  std::int64_t kv_blocks_peak = 0;
  std::map<std::string_view, std::int64_t> layers_by_dispatch;  ///< which one carried the tokens
  std::vector<HotRank> hot_ranks;                               ///< the worst, by ratio then time
  std::int64_t preemptions = 0, recomputed = 0;
  std::int64_t prefix_queried = 0, prefix_hit = 0, prefix_loaded = 0;
  OfLowerTiers<std::int64_t> prefix_of_lower{};
  std::int64_t cut_rank_steps = 0, cut_steps = 0;  ///< smaller because expert buffers were full
  std::int64_t steps_held = 0, tokens_held = 0;    ///< with prompts held back; of those prompts
  double prompt_seconds_held = 0;
  ExpertMemoryTally expert_memory;
  SpeculationTally speculation;
  WindowTokens tokens;
  std::int64_t arrived = 0, completed = 0, abandoned = 0;
  std::size_t first_gap = 0, end_gap = 0;  ///< of Measurement::take_gaps()
  std::map<int, GroupTotals> groups;       ///< by StepRecord::instance
  double busy_seconds() const;
};

/// Watches the EP groups of a run that are alike. Measuring starts once the warm-up's requests have
/// arrived and as many have left, and ends with the last arrival. When less than half of the
/// requests that arrive meanwhile would also leave meanwhile, there is no steady state to measure:
/// all after the warm-up is. A window that does not hold several steps of every group that has
/// computed measures nothing but where it was cut: the next longer one takes its place, the whole
/// run at last. The whole run is measured too where all requests arrived before measuring started.
class Measurement {
 public:
  /// `total_blocks` are the KV blocks of one group.
  Measurement(const Deployment&, std::int64_t total_blocks);

  void request_arrived(Time now);
  /// Before request_left(), when its client gave up.
  void request_abandoned() { ++running_.abandoned; }
  void request_left(Time now);
  void no_more_arrivals(Time now);
  /// A step that ended at `now`.
  void step_ended(const StepRecord&, const Requests&, Time now);
  /// How often every trace row was replayed, by phase: [rows of that phase's trace].
  const std::vector<std::uint32_t>& row_uses(Phase phase) const {
    return row_uses_[static_cast<std::size_t>(phase)];
  }
  std::int64_t steps() const { return steps_; }
  std::int64_t routed_ids() const { return routed_ids_; }
  std::int64_t total_blocks() const { return total_blocks_; }

  /// The whole run, measured or not.
  const OverTime& over_time() const { return over_time_; }

  enum class Window { steady, after_warm_up, whole };
  /// What there is to measure.
  Window window() const;
  /// Whether every group took several steps within these totals.
  bool holds_several_steps(const Totals&) const;
  /// The totals of a window, for a run that ended at `now`.
  Totals finish(Time now, Window window);
  /// Gaps between tokens of one request within these totals. Once only, for they are moved out.
  std::vector<Repeated> take_gaps(const Totals&);

 private:
  bool steady() const;
  void start_if_warm(Time now);
  void add_gap(TokenGap gap);
  void add(Totals&, const StepRecord&, const WindowTokens&, Time now) const;
  void add_step(Totals&, const StepRecord&, Time now) const;
  // The MoE layers of a step, and its tokens by expert: [MoE layers, experts].
  struct LayersDone {
    std::span<const LayerOutcome> layers;
    std::span<const std::int32_t> tokens_of_expert;
    int passes = 1;  // over which they are sums
  };
  void add_layers(ExpertTotals& totals, Totals& all, const LayersDone& done, std::int64_t steps,
                  std::optional<Time> now) const;

  const Deployment& deployment_;
  std::int64_t total_blocks_;
  std::int64_t warmup_requests_;
  std::int64_t arrived_ = 0, left_ = 0, steps_ = 0, routed_ids_ = 0;
  std::map<int, std::int64_t> steps_of_group_;  // of the whole run, by StepRecord::instance
  bool measuring_ = false;
  bool long_enough_ = false;  // what is measured holds an arrival, and several steps of every group
  Totals running_, whole_;    // the latter while it may be needed
  std::optional<Totals> before_drain_;
  std::vector<Repeated> gaps_;  // of the whole run; equal ones in a row are one
  OverTime over_time_;
  std::array<std::vector<std::uint32_t>, 2> row_uses_;
};

}  // namespace moesim
