// SPDX-License-Identifier: Apache-2.0
#include "sim/capacity/capacity.hpp"

namespace moesim {

namespace {

// A selection that waited once is dropped when it overflows again, so that a hot expert's backlog
// stays within one step. The token itself does not wait: what it lacks reaches it a step late.
class Delay final : public CapacityRule {
 public:
  void overflow(const Overflow& overflow, LayerChoices& choices,
                CapacityTally& tally) const override {
    const std::size_t k = choices.k();
    for (const std::size_t i : overflow.selections) {
      const std::size_t token = i / k;
      if (choices.delayed[token] != 0) {
        ++tally.dropped;
        continue;
      }
      overflow.backlog.push_back(
          {choices.ids[i], choices.source_rank[token], choices.source_gpu[token]});
      ++tally.delayed;
    }
  }
};

}  // namespace

std::unique_ptr<CapacityRule> make_delay(ConfigReader& options) {
  return read_capacity_rule<Delay>(options);
}

}  // namespace moesim
