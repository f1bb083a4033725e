// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/min_exp.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

// Exact optimum that METRO approximates and calls too slow to run online, solved anew for every
// layer and step.
class Optimal final : public TokenRouter {
 public:
  explicit Optimal(const ExpertPlacement& placement) {
    for (const LayerPlacement& layer : placement) layers_.emplace_back(layer);
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    layers_.at(at(problem.layer))
        .serve(problem.placement, problem.tokens, workspace_.local(), choice.tokens_of_slot);
  }

  bool needs_global_counts() const override { return true; }

 private:
  std::vector<MinExp> layers_;
  PerThread<MinExp::Workspace> workspace_;
};

}  // namespace

TokenRouterFactory make_optimal(ConfigReader&) {
  return [](const RoutingContext& context) { return std::make_unique<Optimal>(context.placement); };
}

}  // namespace moesim
