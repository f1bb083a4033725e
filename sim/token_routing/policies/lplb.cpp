// SPDX-License-Identifier: Apache-2.0
#include "hardware/at.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"
#include "sim/token_routing/token_flow.hpp"

namespace moesim {

namespace {

// LPLB (github.com/deepseek-ai/LPLB; SGLang's #24515). A linear program finds shares that balance:
//
//   min M  s.t.  sum over slots s of expert i of x[i][s] = T[i],  x on each GPU <= M,  x >= 0.
//
// Each token draws its copy: slot s of expert i with probability x[i][s] / T[i]. The counts that
// come out scatter around x, which is the difference to token_balanced. The shares here are a whole
// optimum of the same program, whose M is that of the linear one, rounded up.
class Lplb final : public TokenRouter {
 public:
  explicit Lplb(std::uint64_t seed) : seed_(seed) {}

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    const LayerPlacement& placement = problem.placement;
    const std::span<std::int32_t> slots = choice.tokens_of_slot;
    std::fill(slots.begin(), slots.end(), 0);
    for (std::int32_t expert = 0; expert < placement.experts(); ++expert)
      slots[at(placement.hosts_of(expert).front())] = problem.tokens[at(expert)];
    auto& [flow_space, shares] = workspace_.local();
    TokenFlow(placement, flow_space, slots).minimise();
    shares.assign(slots.begin(), slots.end());
    Rng rng = layer_step_stream(seed_, problem, "token_routing/lplb");
    for (std::int32_t expert = 0; expert < placement.experts(); ++expert) {
      const auto hosts = placement.hosts_of(expert);
      if (hosts.size() > 1) draw(hosts, problem.tokens[at(expert)], shares, slots, rng);
    }
  }

  bool needs_global_counts() const override { return true; }

 private:
  struct Workspace {
    TokenFlow::Workspace flow;
    std::vector<std::int32_t> shares;  // [slots]
  };

  // Every token of the expert takes one of `hosts`, by its share.
  static void draw(std::span<const std::int32_t> hosts, std::int32_t tokens,
                   const std::vector<std::int32_t>& shares, std::span<std::int32_t> slots,
                   Rng& rng) {
    for (const std::int32_t slot : hosts) slots[at(slot)] = 0;
    for (std::int32_t token = 0; token < tokens; ++token) {
      auto left = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(tokens)));
      std::size_t place = 0;
      while (left >= shares[at(hosts[place])]) left -= shares[at(hosts[place++])];
      ++slots[at(hosts[place])];
    }
  }

  std::uint64_t seed_;
  PerThread<Workspace> workspace_;
};

}  // namespace

std::span<const Key> lplb_routing_keys() {
  static constexpr Key keys[] = {{"seed", form::integer(0, 9e15), "0", "seed of the draws"}};
  return keys;
}

TokenRouterFactory make_lplb(ConfigReader& options) {
  const auto seed = static_cast<std::uint64_t>(options.integer("seed"));
  return [seed](const RoutingContext&) { return std::make_unique<Lplb>(seed); };
}

}  // namespace moesim
