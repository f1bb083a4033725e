// SPDX-License-Identifier: Apache-2.0

#include "hardware/at.hpp"
#include "sim/token_routing/row_router.hpp"

namespace moesim {

namespace {

template <class T>
void shuffle(std::vector<T>& values, Rng& rng) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[rng.below(left)], values[left - 1]);
  }
}

// Each source rank has one replica of each expert for good: the first on its own GPU if there is
// one. The remaining ranks are dealt out in random order, so that each replica gets floor or ceil
// of (ranks / r). [SGLang] SGLang draws from Python's generator, so the ranks that get
// which share are not its own; SGLang also prefers a replica on the rank's node, which is left out.
class SglangStatic final : public RowRouter {
 public:
  SglangStatic(const ExpertPlacement& placement, std::uint64_t seed) {
    Rng rng(seed, "token_routing/sglang_static");
    for (const LayerPlacement& layer : placement) slot_of_.push_back(dispatch_map(layer, rng));
  }

 private:
  static std::vector<std::int32_t> dispatch_map(const LayerPlacement& layer, Rng& rng) {
    const auto experts = at(layer.experts());
    std::vector<std::int32_t> map(experts * at(layer.gpus()), -1);
    for (int expert = 0; expert < layer.experts(); ++expert) {
      const auto slot_of_rank = [&](int rank) -> std::int32_t& {
        return map[at(rank) * experts + at(expert)];
      };
      for (const std::int32_t slot : layer.hosts_of(expert)) {
        slot_of_rank(layer.gpu_of_slot(slot)) = slot;
      }
      std::vector<int> remaining;
      for (int rank = 0; rank < layer.gpus(); ++rank) {
        if (slot_of_rank(rank) < 0) remaining.push_back(rank);
      }
      const auto slots = layer.slots_of(expert);
      std::vector<std::int32_t> deck(slots.begin(), slots.end());
      shuffle(deck, rng);  // which slots serve one rank more
      shuffle(remaining, rng);
      for (std::size_t i = 0; i < remaining.size(); ++i) {
        slot_of_rank(remaining[i]) = deck[i % deck.size()];
      }
    }
    return map;
  }

  void choose(const RoutingProblem& problem,
              std::span<std::int32_t> slot_of_selection) const override {
    const auto& map = slot_of_.at(at(problem.layer));
    for_each_token(problem.rows,
                   [&](std::int32_t rank, std::uint32_t, std::size_t first, std::size_t last) {
                     const std::int32_t* const own = map.data() + at(rank) * problem.tokens.size();
                     for (std::size_t i = first; i < last; ++i)
                       slot_of_selection[i] = own[problem.rows.ids[i]];
                   });
  }

  std::vector<std::vector<std::int32_t>> slot_of_;  // [layers][ranks, experts]
};

}  // namespace

std::span<const Key> sglang_static_routing_keys() {
  static constexpr Key keys[] = {{"seed", form::integer(0, 9e15), "42", "seed of the fair shares"}};
  return keys;
}

TokenRouterFactory make_sglang_static(ConfigReader& options) {
  const auto seed = static_cast<std::uint64_t>(options.integer("seed"));
  return [seed](const RoutingContext& context) {
    return std::make_unique<SglangStatic>(context.placement, seed);
  };
}

}  // namespace moesim
