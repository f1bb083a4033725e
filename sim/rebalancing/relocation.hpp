// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "sim/rebalancing/rebalancer.hpp"
#include "sim/step/step_model.hpp"

namespace moesim {

/// Effects of rebalancing on a run.
struct RebalancingLog {
  struct Event {
    Time at{};
    std::int64_t step = 0;
    std::size_t layers = 0;  ///< whose map changes
    Bytes bytes{};           ///< over links
    double imbalance_before = 1, imbalance_after = 1;
  };
  static constexpr std::size_t most_events = 200;

  std::int64_t plans = 0;     ///< that moved something
  std::int64_t declined = 0;  ///< that found nothing worth moving
  std::int64_t layers_switched = 0;
  Bytes nvlink{}, network{};
  Bytes copied{};  ///< within GPUs
  Seconds planning{};
  Seconds stalled{};          ///< the engine stood still, planning included
  Seconds moving{};           ///< weights were under way, by their time on free links
  Seconds slowdown{};         ///< steps took longer because weights travelled beside them
  std::vector<Event> events;  ///< the first ones
  RebalancingLog& operator+=(const RebalancingLog& of_another_group);
};

/// Weights under way, against the clock of the steps.
///
/// Synchronous: planning and movement lengthen the step after which they are due, as engines
/// rebalance before a step's tokens leave. Asynchronous: a layer's transfer advances at full rate
/// while a step computes. While a step sends over the link that bounds the transfer, the step has 1
/// - link_share of its rate, and the transfer link_share of its own. A collective bound by latency
/// notices nothing.
class Relocation {
 public:
  explicit Relocation(double link_share) : link_share_(link_share) {}

  bool busy() const { return !layers_.empty() || planning_.count() > 0; }
  /// Takes up a plan when nothing is under way.
  void start(RebalancePlan, const StepSeen&, const Mover&);
  /// The engine stood idle: what travels beside steps has had the links to itself.
  void pass(Seconds idle);
  /// Charges a priced step for what travels beside it.
  void beside(StepCost&);
  /// Charges a priced step for what it waits for at its end.
  void stall(StepCost&);
  /// Layers whose weights have arrived since the last call.
  std::vector<RebalancePlan::Change> take_arrived();
  /// Weights under way are lost with a rank that sends or receives them.
  void cancel();

  const RebalancingLog& log() const { return log_; }

 private:
  struct Moving {
    RebalancePlan::Change change;
    MoveCost cost;
    Seconds left;
  };
  void front_arrives();

  double link_share_;
  bool synchronous_ = true;
  std::size_t chunk_ = 0;
  Seconds planning_{};
  std::deque<Moving> layers_;
  std::vector<RebalancePlan::Change> arrived_;
  RebalancingLog log_;
};

}  // namespace moesim
