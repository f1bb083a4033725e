// SPDX-License-Identifier: Apache-2.0
#include "hardware/at.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

void split_evenly(const RoutingProblem& problem, std::span<std::int32_t> tokens_of_slot) {
  for (std::size_t expert = 0; expert < problem.tokens.size(); ++expert) {
    const std::int32_t tokens = problem.tokens[expert];
    const auto slots = problem.placement.slots_of(static_cast<int>(expert));
    if (slots.size() == 1) {
      tokens_of_slot[at(slots[0])] = tokens;
      continue;
    }
    const auto replicas = static_cast<std::int32_t>(slots.size());
    const std::int32_t share = tokens / replicas;
    std::int32_t left = tokens % replicas;
    for (const std::int32_t slot : slots) tokens_of_slot[at(slot)] = share + (left-- > 0 ? 1 : 0);
  }
}

namespace {

class Even final : public TokenRouter {
 public:
  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    split_evenly(problem, choice.tokens_of_slot);
  }

  bool needs_global_counts() const override { return false; }
};

}  // namespace

TokenRouterFactory make_even(ConfigReader&) {
  return [](const RoutingContext&) { return std::make_unique<Even>(); };
}

}  // namespace moesim
