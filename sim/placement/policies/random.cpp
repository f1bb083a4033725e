// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/placement/placers.hpp"
#include "sim/placement/replicas.hpp"

namespace moesim {

namespace {

// Deals out one shuffled lap of the experts after another until the slots are full. Every expert
// has floor or ceil of P / N copies, at random which. Copies of one are on distinct GPUs as far as
// there are GPUs. The baseline for "does knowing the load help?".
// {"seed": 1}; every layer has its own stream.
class Random final : public Placer {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int layer) const override {
    require_sound(problem, seen.load);
    Rng rng(seed_, fmt::format("placement/random/{}", layer));
    const auto experts = at(problem.experts);
    const auto slots = at(problem.gpus) * at(problem.slots_per_gpu);
    std::vector<int> lap(experts), copies;
    std::iota(lap.begin(), lap.end(), 0);
    while (copies.size() < slots) {
      for (std::size_t i = 0; i < experts && copies.size() < slots; ++i) {
        std::swap(lap[i], lap[i + rng.below(experts - i)]);
        copies.push_back(lap[i]);
      }
    }
    const std::vector<double> alike(experts, 1.0);
    return {problem.experts, deal_apart(copies, alike, problem.gpus)};
  }

  bool uses_load() const override { return false; }

 private:
  std::uint64_t seed_;
};

}  // namespace

std::span<const Key> random_placement_keys() {
  static constexpr Key keys[] = {{"seed", form::integer(non_negative), "1", "seed of the order"}};
  return keys;
}

std::unique_ptr<Placer> make_random(ConfigReader& options) {
  return std::make_unique<Random>(static_cast<std::uint64_t>(options.integer("seed")));
}

}  // namespace moesim
