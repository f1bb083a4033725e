// SPDX-License-Identifier: Apache-2.0
// A project of its own: a token-routing policy that moesim does not have, and an experiment with
// it.
#include <iostream>

#include "sim/serving/simulator.hpp"

using namespace moesim;

// All tokens of an expert go to its replica with the highest GPU id.
struct LastHost : TokenRouter {
  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    std::fill(choice.tokens_of_slot.begin(), choice.tokens_of_slot.end(), 0);
    for (std::size_t expert = 0; expert < problem.tokens.size(); ++expert)
      choice.tokens_of_slot[problem.placement.hosts_of(int(expert)).back()] =
          problem.tokens[expert];
  }
  bool needs_global_counts() const override { return false; }
};

int main(int, char** arguments) {
  Policies policies;
  policies.token_routing.add(
      {"last_host", "the last replica", [](ConfigReader&) -> TokenRouterFactory {
         return [](const RoutingContext&) { return std::make_unique<LastHost>(); };
       }});
  TraceLibrary traces;
  const auto experiment = load_experiment(ConfigNode::from_file(arguments[1]), traces, policies);
  std::cout << run(experiment).document()["metrics"]["completed"] << "\n";
}
