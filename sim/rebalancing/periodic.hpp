// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/rebalancing/load_window.hpp"
#include "sim/rebalancing/rebalancer.hpp"

namespace moesim {

/// A new placement of all layers every so many steps, from the load of the last ones: vLLM's and
/// SGLang's EPLB (policies.md 1.5). Options:
///   step_interval 3000, first_after (a quarter of it) steps, window_size 1000 steps
///   placement "eplb": any placer that goes by load, on the same slots
///   utilization_threshold 1: nothing moves while the mean rank over the fullest one, by the
///     window and averaged over layers, is above (SGLang)
///   min_gain 0: a layer moves only if its fullest rank gets lighter by this share, by the window
///   planning "0 s": the time to compute the maps, for which engines give no figures
/// Dummy tokens are not in the window, steps of dummies advance the counter.
class Periodic final : public Rebalancer {
 public:
  /// Of `how`, what does not depend on load is kept for every plan.
  Periodic(ConfigReader& options, const RebalancingContext&, RebalancePlan how);

  std::optional<RebalancePlan> after_step(const StepSeen&) override;
  int buffer_slots() const override { return problem_.slots_per_gpu; }

 private:
  RebalancePlan plan(const StepSeen&) const;

  PlacementProblem problem_;
  Mover mover_;
  std::unique_ptr<Placer> placer_;
  RebalancePlan how_;
  std::int64_t interval_, steps_left_;
  double utilization_threshold_, min_gain_;
  LoadWindow window_;
};

}  // namespace moesim
