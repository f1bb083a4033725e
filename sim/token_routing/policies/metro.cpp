// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>

#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

enum class Order { id, random, fewest_replicas };
constexpr std::array<std::string_view, 3> order_names{"id", "random", "fewest_replicas"};

// METRO, Algorithm 1: for every expert i with T[i] > 0
//
//   g* = argmin { L[g] : g in rep(i) };  y[i][g*] = 1;  L[g*] += 1
//
// The paper leaves the order of experts to the locks of parallel threads, by which ranks can come
// to differ; here it is an option, and every rank sees one decision. Ties go to the lowest GPU, as
// its scan does.
class Metro final : public TokenRouter {
 public:
  Metro(const ExpertPlacement& placement, Order order, std::uint64_t seed)
      : order_(order), seed_(seed) {
    for (const LayerPlacement& layer : placement) turns_.push_back(turns_of(layer, order));
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    const LayerTurns& turns = turns_.at(static_cast<std::size_t>(problem.layer));
    check(turns.experts == problem.tokens.size(),
          "a routing was made for a placement of another number of experts");
    Workspace& workspace = workspace_.local();
    std::vector<std::int32_t>& active = workspace.active_on_gpu;
    active.assign(static_cast<std::size_t>(problem.placement.gpus()) + known_per_turn, 0);
    const std::span<std::int32_t> tokens_of_slot = choice.tokens_of_slot;
    std::fill(tokens_of_slot.begin(), tokens_of_slot.end(), 0);

    // An expert without tokens passes through: which ones have some, no branch could guess.
    const auto serve = [&](std::int32_t expert) {
      const std::int32_t tokens = problem.tokens[static_cast<std::size_t>(expert)];
      const Host host = least_active_host(problem.placement.host_gpus_of(expert), active);
      // Not `+=`: the next choice would wait until this one was read once more.
      active[host.gpu] = host.active + (tokens > 0 ? 1 : 0);
      const std::int32_t slot = problem.placement.hosts_of(expert)[host.place];
      tokens_of_slot[static_cast<std::size_t>(slot)] = tokens;
    };
    if (order_ != Order::random) {
      for (const auto& [expert, slot] : turns.sole_slots)
        tokens_of_slot[slot] = problem.tokens[expert];
      for (const Turn& turn : turns.turns) {
        for (const auto& [expert, gpu] : turn.known)
          active[gpu] += problem.tokens[expert] > 0 ? 1 : 0;
        if (turn.chooses < 0) continue;
        if (!turn.of_two) {
          serve(turn.chooses);
          continue;
        }
        // As serve(), but that nothing is looked up: most choices are of two hosts.
        const auto [first, second] = turn.hosts;
        const std::int32_t tokens = problem.tokens[static_cast<std::size_t>(turn.chooses)];
        const std::int32_t on_first = active[first.gpu], on_second = active[second.gpu];
        const bool takes_second = on_second < on_first;
        active[takes_second ? second.gpu : first.gpu] =
            std::min(on_first, on_second) + (tokens > 0 ? 1 : 0);
        tokens_of_slot[takes_second ? second.slot : first.slot] = tokens;
      }
      return;
    }
    std::vector<std::int32_t>& shuffled = workspace.shuffled;
    shuffled.resize(turns.experts);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    Rng rng = layer_step_stream(seed_, problem, "token_routing/metro");
    for (std::size_t left = shuffled.size(); left > 0; --left) {
      std::swap(shuffled[rng.below(left)], shuffled[left - 1]);
      serve(shuffled[left - 1]);
    }
  }

  bool needs_global_counts() const override { return true; }

 private:
  // Only experts with several hosts choose, and each waits for the choices before it. Where the
  // others go is known: they are counted on their GPUs before the choice that follows them, in
  // turns of a fixed number, without a branch. A turn that has fewer counts on GPUs that are none.
  static constexpr std::uint32_t known_per_turn = 4;
  struct Known {
    std::uint32_t expert = 0;
    std::uint32_t place = 0;  // its GPU, or its slot
  };
  struct Place {
    std::uint32_t slot = 0, gpu = 0;
  };
  struct Turn {
    std::array<Known, known_per_turn> known;
    std::int32_t chooses = -1;  // the expert after them; none: -1
    bool of_two = false;        // it has two hosts: these
    std::array<Place, 2> hosts{};
  };
  struct LayerTurns {
    std::size_t experts = 0;
    std::vector<Known> sole_slots;
    std::vector<Turn> turns;
  };

  static LayerTurns turns_of(const LayerPlacement& layer, Order order) {
    LayerTurns result{static_cast<std::size_t>(layer.experts()), {}, {}};
    Turn empty;
    for (std::uint32_t i = 0; i < known_per_turn; ++i)
      empty.known[i].place = static_cast<std::uint32_t>(layer.gpus()) + i;
    Turn turn = empty;
    std::size_t known = 0;
    const auto end_turn = [&] {
      result.turns.push_back(std::exchange(turn, empty));
      known = 0;
    };
    const auto of = [](auto number) { return static_cast<std::uint32_t>(number); };
    for (const std::int32_t expert : fixed_order(layer, order)) {
      const auto hosts = layer.hosts_of(expert), gpus = layer.host_gpus_of(expert);
      if (hosts.size() > 1) {
        turn.chooses = expert;
        turn.of_two = hosts.size() == 2;
        for (std::size_t i = 0; i < 2; ++i) turn.hosts[i] = {of(hosts[i]), of(gpus[i])};
        end_turn();
        continue;
      }
      result.sole_slots.push_back({of(expert), of(hosts.front())});
      if (known == known_per_turn) end_turn();
      turn.known[known++] = {of(expert), of(gpus.front())};
    }
    // Experts behind the last choice change none.
    return result;
  }

  static std::vector<std::int32_t> fixed_order(const LayerPlacement& layer, Order order) {
    std::vector<std::int32_t> experts(static_cast<std::size_t>(layer.experts()));
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
  std::vector<LayerTurns> turns_;  // by layer
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
