// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "sim/placement/placers.hpp"
#include "sim/placement/replicas.hpp"

namespace moesim {

std::span<const Key> eplb_distinct_placement_keys();

namespace {

// Flat replication: the P - N redundant slots hold one more copy of each of the P - N hottest
// experts. None gets a third before all have a second. If the number of active experts bounds a
// step, and not their tokens, two GPUs for many experts serve better than many for a few. So it is
// if copies are an insurance, too: a GPU that fails takes the last copy of fewest experts. With
// twice as many slots as experts it takes none. Packed as by eplb_distinct, with its
// {"failure_domains": D}.
class Flat final : public Placer {
 public:
  explicit Flat(int failure_domains) : failure_domains_(failure_domains) {}

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    require_sound(problem, seen.load);
    std::vector<int> hottest(seen.load.size());
    std::iota(hottest.begin(), hottest.end(), 0);
    std::stable_sort(hottest.begin(), hottest.end(),
                     [&](int a, int b) { return seen.load[at(a)] > seen.load[at(b)]; });
    std::vector<int> copies(seen.load.size());
    const auto slots = at(problem.gpus) * at(problem.slots_per_gpu);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      ++copies[at(hottest[slot % hottest.size()])];
    }
    return {problem.experts,
            balanced_over_domains(copies, seen.load, problem.gpus, failure_domains_, "flat")};
  }

  bool uses_load() const override { return true; }

 private:
  int failure_domains_;
};

}  // namespace

std::span<const Key> flat_placement_keys() { return eplb_distinct_placement_keys(); }

std::unique_ptr<Placer> make_flat(ConfigReader& options) {
  return std::make_unique<Flat>(static_cast<int>(options.integer("failure_domains")));
}

}  // namespace moesim
