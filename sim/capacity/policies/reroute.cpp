// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "sim/capacity/capacity.hpp"

namespace moesim {

namespace {

// Traces record the top-k alone, so the gate's next choice is not known. The likeliest guess
// replaces it: the expert with room that the step's tokens want most on this layer. Ties go to the
// lowest id, unless the token has it already. Without any the selection is dropped.
class Reroute final : public CapacityRule {
 public:
  void overflow(const Overflow& overflow, LayerChoices& choices,
                CapacityTally& tally) const override {
    std::vector<std::uint16_t> by_demand(overflow.demand.size());
    std::iota(by_demand.begin(), by_demand.end(), std::uint16_t{0});
    std::stable_sort(by_demand.begin(), by_demand.end(),
                     [&](auto a, auto b) { return overflow.demand[a] > overflow.demand[b]; });
    const std::size_t k = choices.k();
    for (const std::size_t i : overflow.selections) {
      const auto first = choices.ids.begin() + static_cast<std::ptrdiff_t>(i / k * k);
      const auto last = first + static_cast<std::ptrdiff_t>(k);
      const auto next = std::find_if(by_demand.begin(), by_demand.end(), [&](std::uint16_t expert) {
        return std::find(first, last, expert) == last &&
               overflow.room.take(expert, choices.source_rank[i / k]);
      });
      if (next == by_demand.end()) {
        ++tally.dropped;
        continue;
      }
      choices.ids[i] = *next;
      choices.dropped[i] = 0;
      ++tally.rerouted;
    }
  }
};

}  // namespace

std::unique_ptr<CapacityRule> make_reroute(ConfigReader& options) {
  return read_capacity_rule<Reroute>(options);
}

}  // namespace moesim
