// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>

#include "hardware/at.hpp"
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
    for (const LayerPlacement& layer : placement) layers_.push_back(in_order(layer, order));
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    const Layer& layer = layers_.at(at(problem.layer));
    check(layer.experts == problem.tokens.size(),
          "a routing was made for a placement of another number of experts");
    Workspace& workspace = workspace_.local();
    std::fill(choice.tokens_of_slot.begin(), choice.tokens_of_slot.end(), 0);
    if (order_ == Order::random) {
      shuffle(problem, workspace.shuffled);
      serve_one_by_one(problem, workspace.shuffled, workspace, choice.tokens_of_slot);
    } else if (!layer.one_by_one.empty()) {
      serve_one_by_one(problem, layer.one_by_one, workspace, choice.tokens_of_slot);
    } else {
      serve_in_turns(problem, layer, workspace, choice.tokens_of_slot);
    }
  }

  bool needs_global_counts() const override { return true; }

 private:
  // A GPU's active experts, counted in steps of one_active, and a host below them make one number,
  // of which the least is the host asked for: no branch could guess it.
  static constexpr std::uint32_t place_bits = 2;
  static constexpr std::uint32_t hosts_per_turn = 1 << place_bits;
  static constexpr std::uint32_t one_active = 1 << 16;
  static constexpr int most_slots = one_active >> place_bits;  // and GPUs, that have room in it

  // Only experts with several hosts choose, and each waits for the choices before it. Where the
  // others go is known: they are counted on their GPUs before the choice that follows them, in
  // turns of a fixed number, without a branch.
  static constexpr std::size_t known_per_turn = 4;
  struct Turn {
    // Fewer of them end in no expert, on any GPU.
    std::array<std::uint16_t, known_per_turn> known, gpu_of_known;
    std::uint16_t chooses;
    bool more_hosts;  // than stand here
    // GPU and place of each, the last GPU again where there are fewer; and their slots.
    std::array<std::uint16_t, hosts_per_turn> hosts, slots;
  };
  struct Sole {
    std::uint16_t expert, slot;
  };
  struct Layer {
    std::size_t experts = 0;
    std::vector<Sole> sole_slots;
    std::vector<Turn> turns;
    std::vector<std::int32_t> one_by_one;  // experts in order, where there are too many slots
  };
  struct Workspace {
    std::vector<std::int32_t> active_on_gpu;
    std::vector<std::int32_t> shuffled;  // experts
    // In one_active: of each expert, and the last of none; of GPUs, by turns.
    std::vector<std::uint32_t> active, known, chosen;
  };

  static Layer in_order(const LayerPlacement& placement, Order order) {
    const std::vector<std::int32_t> experts = fixed_order(placement, order);
    Layer result{experts.size(), {}, {}, {}};
    if (std::max(placement.slots(), placement.gpus()) > most_slots) {
      result.one_by_one = experts;
      return result;
    }
    const auto none = static_cast<std::uint16_t>(experts.size());
    const Turn empty{{none, none, none, none}, {}, none, false, {}, {}};
    Turn turn = empty;
    std::size_t known = 0;
    for (const std::int32_t expert : experts) {
      const bool is_sole = placement.hosts_of(expert).size() == 1;
      const auto slot = static_cast<std::uint16_t>(placement.hosts_of(expert).front());
      if (is_sole) result.sole_slots.push_back({static_cast<std::uint16_t>(expert), slot});
      if (is_sole && known < known_per_turn) {
        turn.known[known] = static_cast<std::uint16_t>(expert);
        turn.gpu_of_known[known++] =
            static_cast<std::uint16_t>(placement.host_gpus_of(expert).front());
        continue;
      }
      // One too many to be known has one host to choose from.
      choose(turn, placement, expert);
      result.turns.push_back(std::exchange(turn, empty));
      known = 0;
    }
    // Experts behind the last choice change none.
    return result;
  }

  static void choose(Turn& turn, const LayerPlacement& placement, std::int32_t expert) {
    const auto slots = placement.hosts_of(expert), gpus = placement.host_gpus_of(expert);
    turn.chooses = static_cast<std::uint16_t>(expert);
    turn.more_hosts = slots.size() > hosts_per_turn;
    for (std::size_t i = 0; i < hosts_per_turn; ++i) {
      const std::size_t place = std::min(i, slots.size() - 1);
      turn.hosts[i] = static_cast<std::uint16_t>(at(gpus[place]) << place_bits | i);
      turn.slots[i] = static_cast<std::uint16_t>(slots[place]);
    }
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

  void shuffle(const RoutingProblem& problem, std::vector<std::int32_t>& experts) const {
    experts.resize(problem.tokens.size());
    std::iota(experts.begin(), experts.end(), 0);
    Rng rng = layer_step_stream(seed_, problem, "token_routing/metro");
    for (std::size_t left = experts.size(); left > 0; --left)
      std::swap(experts[rng.below(left)], experts[left - 1]);
    std::ranges::reverse(experts);
  }

  // An expert without tokens passes through: which ones have some, no branch could guess.
  static void serve_one_by_one(const RoutingProblem& problem, std::span<const std::int32_t> experts,
                               Workspace& workspace, std::span<std::int32_t> tokens_of_slot) {
    std::vector<std::int32_t>& active = workspace.active_on_gpu;
    active.assign(at(problem.placement.gpus()), 0);
    for (const std::int32_t expert : experts) {
      const std::int32_t tokens = problem.tokens[at(expert)];
      const Host host = least_active_host(problem.placement.host_gpus_of(expert), active);
      active[host.gpu] += tokens > 0 ? 1 : 0;
      tokens_of_slot[at(problem.placement.hosts_of(expert)[host.place])] = tokens;
    }
  }

  static void serve_in_turns(const RoutingProblem& problem, const Layer& layer,
                             Workspace& workspace, std::span<std::int32_t> tokens_of_slot) {
    const auto gpus = at(problem.placement.gpus());
    std::vector<std::uint32_t>&active = workspace.active, &known = workspace.known,
    &chosen = workspace.chosen;
    active.resize(layer.experts + 1);
    std::ranges::transform(problem.tokens, active.begin(),
                           [](std::int32_t tokens) { return tokens > 0 ? one_active : 0; });
    active.back() = 0;
    // Apart, so that counting what is known does not wait for where the last choice went.
    known.assign(gpus, 0);
    chosen.assign(gpus, 0);
    for (const Sole sole : layer.sole_slots)
      tokens_of_slot[sole.slot] = problem.tokens[sole.expert];
    for (const Turn& turn : layer.turns) {
      for (std::size_t i = 0; i < known_per_turn; ++i)
        known[turn.gpu_of_known[i]] += active[turn.known[i]];
      const std::int32_t tokens = problem.tokens[turn.chooses];
      if (turn.more_hosts) {
        const auto of_expert = problem.placement.host_gpus_of(turn.chooses);
        const auto host = std::ranges::min_element(
            of_expert, {}, [&](std::int32_t gpu) { return known[at(gpu)] + chosen[at(gpu)]; });
        chosen[at(*host)] += active[turn.chooses];
        const auto slots = problem.placement.hosts_of(turn.chooses);
        tokens_of_slot[at(slots[at(host - of_expert.begin())])] = tokens;
        continue;
      }
      const auto key = [&](std::size_t i) {
        const std::uint32_t host = turn.hosts[i];
        return known[host >> place_bits] + chosen[host >> place_bits] + host;
      };
      const std::uint32_t least = std::min(std::min(key(0), key(1)), std::min(key(2), key(3)));
      chosen[least % one_active >> place_bits] += active[turn.chooses];
      tokens_of_slot[turn.slots[least % hosts_per_turn]] = tokens;
    }
  }

  Order order_;
  std::uint64_t seed_;
  std::vector<Layer> layers_;
  PerThread<Workspace> workspace_;
};

}  // namespace

std::span<const Key> metro_routing_keys() {
  static constexpr Key keys[] = {
      {"order", form::choice(order_names), "id", "in which active experts are placed"},
      {"seed", form::integer(0, 9e15), "0", "of the order \"random\""}};
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
