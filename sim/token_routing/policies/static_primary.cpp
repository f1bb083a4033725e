// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/token_routing/min_exp.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

// One replica per expert, chosen once as if every expert were active. It needs no counts, no
// gathering and no kernel, and no GPU ever activates more than the exact optimum of a full step.
class StaticPrimary final : public TokenRouter {
 public:
  explicit StaticPrimary(const ExpertPlacement& placement) {
    RoutingScratch scratch;
    for (const LayerPlacement& layer : placement) {
      const std::vector<std::int32_t> all_active(static_cast<std::size_t>(layer.experts()), 1);
      MinExp(layer).assign(layer, all_active, scratch);
      primary_.push_back(scratch.slot_of);
    }
  }

  void route(const RoutingProblem& problem, RoutingScratch&,
             std::span<std::int32_t> tokens_of_slot) const override {
    const auto& primary = primary_.at(static_cast<std::size_t>(problem.layer));
    check(primary.size() == problem.tokens.size(),
          "a routing was made for a placement of another number of experts");
    std::fill(tokens_of_slot.begin(), tokens_of_slot.end(), 0);
    for (std::size_t expert = 0; expert < primary.size(); ++expert) {
      tokens_of_slot[static_cast<std::size_t>(primary[expert])] = problem.tokens[expert];
    }
  }

  bool needs_global_counts() const override { return false; }

 private:
  std::vector<std::vector<std::int32_t>> primary_;  // slot, [layers][experts]
};

}  // namespace

std::unique_ptr<TokenRouter> make_static_primary(ConfigReader&, const RoutingContext& context) {
  return std::make_unique<StaticPrimary>(context.placement);
}

}  // namespace moesim
