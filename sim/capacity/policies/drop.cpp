// SPDX-License-Identifier: Apache-2.0
#include "sim/capacity/capacity.hpp"

namespace moesim {

namespace {

// The selection contributes nothing; the other weights of its token stay as they are.
class Drop final : public CapacityRule {
 public:
  void overflow(const Overflow& overflow, LayerChoices&, CapacityTally& tally) const override {
    tally.dropped += std::ssize(overflow.selections);
  }
};

}  // namespace

std::unique_ptr<CapacityRule> make_drop(ConfigReader& options) {
  return read_capacity_rule<Drop>(options);
}

}  // namespace moesim
