// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "sim/kv_tiers/next_use_order.hpp"

namespace moesim {

namespace {

// Steps are 0 for an agent that is due, 1 for one that runs. For an agent that waits they are the
// turns that follow each other before its own. A block has the fewest steps of its agents.
class StepsOrder final : public NextUseOrder {
  double far(const NextRequest& next) const override {
    if (next.state == NextRequest::State::never) return std::numeric_limits<double>::infinity();
    return next.state == NextRequest::State::runs ? 1 : next.turns_before;
  }
};

// KVFlow ([KVFlow], arXiv 2507.07400): a workflow of agents says how many steps are left until an
// agent runs again, and the block with most makes room. Unlike `oracle`, it knows no times.
class StepsToUse final : public TierEviction {
 public:
  std::unique_ptr<TierOrder> order() const override { return std::make_unique<StepsOrder>(); }
  bool looks_ahead() const override { return true; }
};

}  // namespace

std::unique_ptr<TierEviction> make_steps_to_use_tier(ConfigReader&) {
  return std::make_unique<StepsToUse>();
}

}  // namespace moesim
