// SPDX-License-Identifier: Apache-2.0
// A project of its own: a token-routing policy that moesim does not have, in an experiment, in a
// replay of recorded routing, and in a sweep beside EPLB's even split.
//   example CONFIG.json TRACE STORE.sqlite
#include <iostream>

#include "sim/replay/replay.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/analysis/compare.hpp"
#include "tools/sweep/experiments_at.hpp"

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

void replay_beside_even(const std::string& trace, const Policies& policies) {
  ReplayConfig config;
  config.gpus = 8;
  config.placements = {{"eplb", "example"}};
  config.replications = {1.5};
  config.routings = {{"even", "example"}, {"last_host", "example"}};
  config.batches = {32};
  for (const ReplayRow& row : replay(RoutingTrace::open(trace), config, policies))
    std::cout << row.routing << " " << row.max_activated_mean << "\n";
}

void sweep_beside_even(const std::string& config, const std::string& store,
                       const Policies& policies) {
  const Json ratios{1.0, 1.5}, routings{"even", "last_host"};
  const Json axes{{"/placement/replication", ratios}, {"/token_routing/decode", routings}};
  const Sweep sweep = expand_sweep({Json{{"base", config}, {"axes", axes}}, "example"});
  run_sweep(sweep, store, experiments_at(sweep.base_file, policies), {});
  const Setting even{"/token_routing/decode", "even"}, own{"/token_routing/decode", "last_host"};
  std::cout << comparison_text(compare(Store::open(store).read(), {{even}}, {{own}}));
}

int main(int, char** arguments) {
  Policies policies;
  policies.token_routing.add(
      {"last_host", "the last replica", [](ConfigReader&) -> TokenRouterFactory {
         return [](const RoutingContext&) { return std::make_unique<LastHost>(); };
       }});
  TraceLibrary traces;
  const auto experiment = load_experiment(ConfigNode::from_file(arguments[1]), traces, policies);
  std::cout << run(experiment).document()["metrics"]["completed"] << "\n";
  replay_beside_even(arguments[2], policies);
  sweep_beside_even(arguments[1], arguments[3], policies);
}
