// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/rebalancer.hpp"

namespace moesim {

namespace {

// Experts stay where they were placed.
class NoRebalancing final : public Rebalancer {
 public:
  bool watches() const override { return false; }
  std::optional<RebalancePlan> after_step(const StepSeen&) override { return std::nullopt; }
  int buffer_slots() const override { return 0; }
};

}  // namespace

RebalancerFactory make_no_rebalancing(ConfigReader&, const RebalancingContext&) {
  return copies_of(NoRebalancing());
}

}  // namespace moesim
