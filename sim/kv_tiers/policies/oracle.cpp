// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "sim/kv_tiers/next_use_order.hpp"

namespace moesim {

namespace {

// A block is as far off as the next request of an agent that has it. Room is made first by blocks
// without such an agent. Then come those of agents that wait for others, that run, that are last.
class OracleOrder final : public NextUseOrder {
  double far(const NextRequest& next) const override {
    constexpr double beyond_any_run = 1e12;  // seconds
    switch (next.state) {
      case NextRequest::State::due: return to_seconds(next.at).count();
      case NextRequest::State::runs: return beyond_any_run;
      case NextRequest::State::waits: return beyond_any_run + next.turns_before;
      case NextRequest::State::never: break;
    }
    return std::numeric_limits<double>::infinity();
  }
};

// Belady's rule with what the simulator knows of pauses: a bound for the other policies, as no
// engine knows when a client comes back.
class OracleTier final : public TierEviction {
 public:
  std::unique_ptr<TierOrder> order() const override { return std::make_unique<OracleOrder>(); }
  bool looks_ahead() const override { return true; }
};

}  // namespace

std::unique_ptr<TierEviction> make_oracle_tier(ConfigReader&) {
  return std::make_unique<OracleTier>();
}

}  // namespace moesim
