// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/report/sections/afd.hpp"
#include "sim/report/sections/batches.hpp"
#include "sim/report/sections/breakdown.hpp"
#include "sim/report/sections/communication.hpp"
#include "sim/report/sections/expert_memory.hpp"
#include "sim/report/sections/experts.hpp"
#include "sim/report/sections/kv.hpp"
#include "sim/report/sections/sampling.hpp"
#include "sim/report/sections/speculation.hpp"
#include "sim/report/sections/steps.hpp"
#include "sim/report/statistics.hpp"
#include "sim/report/time_series.hpp"
#include "sim/requests/requests.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Totals of one EP group.
struct GroupTotals {
  std::int64_t steps = 0;
  double seconds = 0;  ///< it computed
  double busy = 0;     ///< of these, within the window
  double idle = 0;     ///< GPU-seconds spent at barriers
  std::int64_t output_tokens = 0;
  double prefill_tokens = 0, decode_tokens = 0;  ///< computed
  KvSum kv;
};

/// Tokens that rates are made of. A step that is partly within the window counts by that share.
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
  /// Sums by section of the report.
  std::tuple<StepSum, ExpertSum, ExpertMemorySum, BatchSum, CommunicationSum, BreakdownSum, AfdSum,
             KvSum, SpeculationSum, CoverageSum>
      sums;
  WindowTokens tokens;
  std::int64_t arrived = 0, completed = 0, abandoned = 0;
  std::size_t first_gap = 0, end_gap = 0;  ///< of Measurement::take_gaps()
  std::map<int, GroupTotals> groups;       ///< by StepRecord::instance
  template <class Sum>
  const Sum& of() const {
    return std::get<Sum>(sums);
  }
  double busy_seconds() const { return of<StepSum>().seconds(); }
};

/// Watches the similar EP groups of a run. Measuring starts once the warm-up's requests have
/// arrived and as many have left, and ends with the last arrival. If less than half of the requests
/// that arrive in this time would also leave in it, there is no steady state to measure. Then all
/// after the warm-up is measured. A window without several steps of every group that has computed
/// measures nothing but where it was cut. The next longer one replaces it, the whole run at last.
/// The whole run is measured too where all requests arrived before measuring started.
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
  const std::vector<std::uint32_t>& row_uses(Phase phase) const { return row_uses_[at(phase)]; }
  std::int64_t steps() const { return steps_; }
  std::int64_t routed_ids() const { return routed_ids_; }
  std::int64_t total_blocks() const { return total_blocks_; }

  /// The whole run, measured or not.
  const OverTime& over_time() const { return over_time_; }

  enum class Window { steady, after_warm_up, whole };
  /// Window that can be measured.
  Window window() const;
  /// True if every group took several steps within these totals.
  bool holds_several_steps(const Totals&) const;
  /// The totals of a window, for a run that ended at `now`.
  Totals finish(Time now, Window window);
  /// Gaps between tokens of one request within these totals. Once only, for they are moved out.
  std::vector<Repeated> take_gaps(const Totals&);

 private:
  // True unless a closed loop's window is short beside the time that a request is in flight: a wave
  // of requests that ends in it would count whole.
  bool lasts(const Totals&) const;
  void count_in_flight(Time now);
  bool steady() const;
  void start_if_warm(Time now);
  void add_gap(TokenGap gap);
  void add(Totals&, const StepRecord&, const WindowTokens&, Time now) const;
  void add_step(Totals&, const StepRecord&, Time now) const;
  void add_layers(Totals&, StepKind, const LayersDone&, std::int64_t steps,
                  std::optional<Time> now) const;

  const Deployment& deployment_;
  std::int64_t total_blocks_;
  std::int64_t warmup_requests_;
  std::int64_t arrived_ = 0, left_ = 0, steps_ = 0, routed_ids_ = 0;
  std::map<int, std::int64_t> steps_of_group_;  // of the whole run, by StepRecord::instance
  bool measuring_ = false;
  bool closed_ = false;
  double in_flight_seconds_ = 0;  // of all requests, up to the last one that came or left
  Time changed_{};
  bool long_enough_ = false;  // what is measured holds an arrival, and several steps of every group
  Totals running_, whole_;    // the latter while it may be needed
  std::optional<Totals> before_drain_;
  std::vector<Repeated> gaps_;  // of the whole run; equal ones in a row are one
  OverTime over_time_;
  std::array<std::vector<std::uint32_t>, 2> row_uses_;
};

}  // namespace moesim
