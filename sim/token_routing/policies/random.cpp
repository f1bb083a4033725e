// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/row_router.hpp"

namespace moesim {

namespace {

class Random final : public RowRouter {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}

 private:
  void choose(const RoutingProblem& problem,
              std::span<std::int32_t> slot_of_selection) const override {
    Rng rng = layer_step_stream(seed_, problem, "token_routing/random");
    for (std::size_t i = 0; i < slot_of_selection.size(); ++i) {
      const auto slots = problem.placement.slots_of(problem.rows.ids[i]);
      slot_of_selection[i] = slots.size() == 1 ? slots[0] : slots[rng.below(slots.size())];
    }
  }

  std::uint64_t seed_;
};

}  // namespace

std::span<const Key> random_routing_keys() {
  static constexpr Key keys[] = {{"seed", form::integer(0, 9e15), "0", "seed of the draws"}};
  return keys;
}

TokenRouterFactory make_random_routing(ConfigReader& options) {
  const auto seed = static_cast<std::uint64_t>(options.integer("seed"));
  return [seed](const RoutingContext&) { return std::make_unique<Random>(seed); };
}

}  // namespace moesim
