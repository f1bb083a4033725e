// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/min_exp.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"
#include "sim/token_routing/token_flow.hpp"

namespace moesim {

namespace {

// Exact optimum that SGLang's and DeepSeek's LPLB approximate by linear programming: the fewest
// tokens on the busiest GPU. Splits start from the exact optimum of activations. They go no further
// than balance needs, because each part of a split expert is read again. [LPLB]
class TokenBalanced final : public TokenRouter {
 public:
  explicit TokenBalanced(const ExpertPlacement& placement) {
    for (const LayerPlacement& layer : placement) layers_.emplace_back(layer);
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    auto& [min_exp, flow_space] = workspace_.local();
    layers_.at(at(problem.layer))
        .serve(problem.placement, problem.tokens, min_exp, choice.tokens_of_slot);
    TokenFlow flow(problem.placement, flow_space, choice.tokens_of_slot);
    flow.spare_slots(flow.minimise());
  }

  bool needs_global_counts() const override { return true; }

 private:
  struct Workspace {
    MinExp::Workspace min_exp;
    TokenFlow::Workspace flow;
  };

  std::vector<MinExp> layers_;
  PerThread<Workspace> workspace_;
};

}  // namespace

TokenRouterFactory make_token_balanced(ConfigReader&) {
  return [](const RoutingContext& context) {
    return std::make_unique<TokenBalanced>(context.placement);
  };
}

}  // namespace moesim
