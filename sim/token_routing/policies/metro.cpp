// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "sim/token_routing/metro_turns.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

enum class Order { id, random, fewest_replicas };
constexpr std::array<std::string_view, 3> order_names{"id", "random", "fewest_replicas"};

// METRO, Algorithm 1: for every expert i with T[i] > 0
//
//   g* = argmin { L[g] : g in rep(i) };  y[i][g*] = 1;  L[g*] += 1.
//
// The paper leaves the order of experts to the locks of parallel threads, by which ranks can come
// to differ. Here it is an option, and every rank sees one decision. Ties go to the lowest GPU, as
// its scan does.
class Metro final : public TokenRouter {
 public:
  Metro(const ExpertPlacement& placement, Order order, std::uint64_t seed)
      : order_(order), seed_(seed) {
    for (const LayerPlacement& layer : placement)
      turns_.emplace_back(layer, fixed_order(layer, order));
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    const MetroTurns& turns = turns_.at(at(problem.layer));
    check(turns.experts() == problem.tokens.size(),
          "a routing was made for a placement of another number of experts");
    Workspace& workspace = workspace_.local();
    std::vector<std::int32_t>& active = workspace.active_on_gpu;
    const std::span<std::int32_t> tokens_of_slot = choice.tokens_of_slot;
    if (order_ != Order::random) return turns.route(problem.tokens, tokens_of_slot, active);

    active.assign(at(problem.placement.gpus()), 0);
    std::ranges::fill(tokens_of_slot, 0);
    // An expert without tokens passes through: which ones have some, no branch could guess.
    const auto serve = [&](std::int32_t expert) {
      const std::int32_t tokens = problem.tokens[at(expert)];
      const Host host = least_active_host(problem.placement.host_gpus_of(expert), active);
      // Not `+=`: the next choice would wait until this one was read once more.
      active[host.gpu] = host.active + (tokens > 0 ? 1 : 0);
      const std::int32_t slot = problem.placement.hosts_of(expert)[host.place];
      tokens_of_slot[at(slot)] = tokens;
    };
    std::vector<std::int32_t>& shuffled = workspace.shuffled;
    shuffled.resize(turns.experts());
    std::iota(shuffled.begin(), shuffled.end(), 0);
    Rng rng = layer_step_stream(seed_, problem, "token_routing/metro");
    for (std::size_t left = shuffled.size(); left > 0; --left) {
      std::swap(shuffled[rng.below(left)], shuffled[left - 1]);
      serve(shuffled[left - 1]);
    }
  }

  bool needs_global_counts() const override { return true; }

 private:
  static std::vector<std::int32_t> fixed_order(const LayerPlacement& layer, Order order) {
    std::vector<std::int32_t> experts(at(layer.experts()));
    std::iota(experts.begin(), experts.end(), 0);
    if (order == Order::fewest_replicas) {
      std::stable_sort(experts.begin(), experts.end(), [&](std::int32_t a, std::int32_t b) {
        return layer.hosts_of(a).size() < layer.hosts_of(b).size();
      });
    }
    return experts;
  }

  struct Workspace {
    std::vector<std::int32_t> active_on_gpu;
    std::vector<std::int32_t> shuffled;  // experts
  };

  Order order_;
  std::uint64_t seed_;
  std::vector<MetroTurns> turns_;  // by layer
  PerThread<Workspace> workspace_;
};

}  // namespace

std::span<const Key> metro_routing_keys() {
  static constexpr Key keys[] = {
      {"order", form::choice(order_names), "id", "in which active experts are placed"},
      {"seed", form::integer(0, 9e15), "0", "seed of the order \"random\""}};
  return keys;
}

TokenRouterFactory make_metro(ConfigReader& options) {
  const auto order = static_cast<Order>(options.choice("order"));
  const std::int64_t seed = order == Order::random ? options.integer("seed") : 0;
  return [order, seed](const RoutingContext& context) {
    return std::make_unique<Metro>(context.placement, order, static_cast<std::uint64_t>(seed));
  };
}

}  // namespace moesim
