// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/rebalancing/load_window.hpp"
#include "sim/rebalancing/rebalancer.hpp"

namespace moesim {

inline constexpr std::array<Key, 7> periodic_keys{
    {{"step_interval", form::integer(positive_count), "3000", "steps between placements"},
     {"first_after", form::integer(positive_count), unset("a quarter of it"),
      "steps before the first"},
     {"window_size", form::integer(1, 1e6), "1000", "steps whose load counts"},
     {"placement", form::policy("placement"), "eplb",
      "any placement that uses loads, on the same slots"},
     {"utilization_threshold", form::number(0, 1), "1",
      "nothing moves while mean over fullest rank is above (SGLang)"},
     {"min_gain", form::number(0, 1), "0",
      "share by which a layer's fullest rank must get lighter"},
     {"planning", form::time, "0 s", "time to compute the maps; engines publish no figures"}}};

/// A new placement of all layers every so many steps, from the load of the last ones: the EPLB of
/// [vLLM] and [SGLang]. Dummy tokens are not in the window, steps of dummies advance
/// the counter.
class Periodic final : public Rebalancer {
 public:
  /// Every plan takes from `how` what does not depend on load.
  Periodic(ConfigReader& options, const RebalancingContext&, RebalancePlan how);

  std::optional<RebalancePlan> after_step(const StepSeen&) override;
  int buffer_slots() const override { return problem_.slots_per_gpu; }

 private:
  RebalancePlan plan(const StepSeen&) const;

  PlacementProblem problem_;
  Mover mover_;
  std::shared_ptr<const Placer> placer_;
  RebalancePlan how_;
  std::int64_t interval_, steps_left_;
  double utilization_threshold_, min_gain_;
  LoadWindow window_;
};

}  // namespace moesim
