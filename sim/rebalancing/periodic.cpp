// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/periodic.hpp"

#include <algorithm>

#include "sim/placement/live_ranks.hpp"
#include "sim/placement/placement_score.hpp"

namespace moesim {

namespace {

std::unique_ptr<Placer> read_placer(ConfigReader& options, const RebalancingContext& context) {
  const ConfigNode node = options.child("placement");
  std::unique_ptr<Placer> placer = context.placers.make(node);
  if (!placer->goes_by_load_alone()) {
    node.fail("does not use the observed tokens per expert; use e.g. \"eplb\"");
  }
  return placer;
}

}  // namespace

Periodic::Periodic(ConfigReader& options, const RebalancingContext& context, RebalancePlan how)
    : problem_(context.problem),
      mover_(context.mover),
      placer_(read_placer(options, context)),
      how_(std::move(how)),
      interval_(options.integer("step_interval")),
      steps_left_(options.integer_or("first_after", std::max<std::int64_t>(1, interval_ / 4))),
      utilization_threshold_(options.number("utilization_threshold")),
      min_gain_(options.number("min_gain")),
      window_(at(options.integer("window_size")), context.layers, context.problem.experts) {
  how_.planning = options.quantity<Seconds>("planning");
}

std::optional<RebalancePlan> Periodic::after_step(const StepSeen& seen) {
  window_.add(seen.tokens);
  if (--steps_left_ > 0 || seen.moving) return std::nullopt;
  steps_left_ = interval_;
  return plan(seen);
}

RebalancePlan Periodic::plan(const StepSeen& seen) const {
  const std::vector<ExpertLoad> loads = window_.loads();
  const auto layers = static_cast<double>(loads.size());
  std::vector<double> before;
  double utilization = 0;
  RebalancePlan plan = how_;
  plan.imbalance_before = 0;
  for (std::size_t layer = 0; layer < loads.size(); ++layer) {
    before.push_back(imbalance(seen.placement[layer], loads[layer]));
    plan.imbalance_before += before[layer] / layers;
    utilization += 1 / before[layer] / layers;
  }
  plan.imbalance_after = plan.imbalance_before;
  if (utilization > utilization_threshold_) return plan;
  for (std::size_t layer = 0; layer < loads.size(); ++layer) {
    const LayerPlacement& now = seen.placement[layer];
    const int index = static_cast<int>(layer);
    LayerPlacement next =
        mover_.arranged(now, place_on_live(*placer_, problem_, loads[layer], index, seen.live));
    const double after = imbalance(next, loads[layer]);
    if (next == now || (min_gain_ > 0 && after > before[layer] * (1 - min_gain_))) continue;
    plan.imbalance_after += (after - before[layer]) / layers;
    plan.changes.push_back({index, std::move(next)});
  }
  return plan;
}

}  // namespace moesim
