// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "sim/experiment/experiment.hpp"
#include "sim/report/observer.hpp"

namespace moesim {

/// A run that cannot meet its SLO any more.
struct SloMissed {
  double attained;  ///< share of the requests decided so far that met every objective
};

/// Ends a run that cannot meet its SLO any more. Throws SloMissed as soon as so many measured
/// requests have missed an objective that slo_attainment would stay below `attainment` even if all
/// others met it. A request has missed when its deadline has passed, even if it still runs. The
/// experiment outlives the watch and has a number of requests.
class SloWatch : public RunObserver {
 public:
  /// `from_start`: what comes before the warm-up has ended counts too, and so a run ends as soon as
  /// too many of all its requests have missed. That is sound where the first requests fare best: in
  /// a run that begins with nothing in flight and has no caches to fill.
  SloWatch(const Experiment&, double attainment, bool from_start = false);

  void event(const EventSeen&) override;
  void first_token(std::uint32_t id, const RequestRecord&) override;
  void request_left(std::uint32_t id, const RequestRecord&) override;

 private:
  struct Fate {
    Time received{};
    bool has_token = false;
    bool decided = false;
  };
  struct Deadline {
    Time at{};
    std::uint32_t request = 0;
    bool of_first_token = false;
    bool operator>(const Deadline& other) const { return at > other.at; }
  };

  // Starts when requests begin to count, as Measurement does.
  void start_if_warm();
  void pass_deadlines();
  void decide(std::uint32_t id, bool met);

  const OfferedLoad& load_;
  const MeasurementSpec& measured_by_;
  Slo loosest_;      // as a request arrives its class is not known
  double may_miss_;  // share of the requests
  bool from_start_;
  std::int64_t warmup_;
  std::int64_t left_ = 0, met_ = 0, missed_ = 0, missed_while_measured_ = 0;
  std::optional<Time> begin_;
  std::int64_t measured_ = 0;  // at most
  Time now_{};
  std::vector<Fate> fates_;  // [id]
  std::priority_queue<Deadline, std::vector<Deadline>, std::greater<>> deadlines_;
};

}  // namespace moesim
