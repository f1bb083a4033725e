// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/token_routing/min_exp.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

// What METRO approximates and calls too slow to run online, solved anew for every layer and step.
class Optimal final : public TokenRouter {
 public:
  explicit Optimal(const ExpertPlacement& placement) {
    for (const LayerPlacement& layer : placement) layers_.emplace_back(layer);
  }

  void route(const RoutingProblem& problem, RoutingScratch& scratch,
             std::span<std::int32_t> tokens_of_slot) const override {
    layers_.at(static_cast<std::size_t>(problem.layer))
        .assign(problem.placement, problem.tokens, scratch);
    std::fill(tokens_of_slot.begin(), tokens_of_slot.end(), 0);
    for (std::size_t expert = 0; expert < problem.tokens.size(); ++expert) {
      if (problem.tokens[expert] == 0) continue;
      tokens_of_slot[static_cast<std::size_t>(scratch.slot_of[expert])] = problem.tokens[expert];
    }
  }

  bool needs_global_counts() const override { return true; }

 private:
  std::vector<MinExp> layers_;
};

}  // namespace

std::unique_ptr<TokenRouter> make_optimal(ConfigReader&, const ExpertPlacement& placement) {
  return std::make_unique<Optimal>(placement);
}

}  // namespace moesim
