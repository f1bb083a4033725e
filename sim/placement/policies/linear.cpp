// SPDX-License-Identifier: Apache-2.0
#include "hardware/at.hpp"
#include "sim/placement/placers.hpp"

namespace moesim {

namespace {

// vLLM's initial map: slot i holds expert i mod N, in blocks of S slots per rank.
class Linear final : public Placer {
 public:
  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    require_sound(problem, seen.load);
    std::vector<int> expert_of_slot(at(problem.gpus * problem.slots_per_gpu));
    for (int slot = 0; at(slot) < expert_of_slot.size(); ++slot) {
      expert_of_slot[at(slot)] = slot % problem.experts;
    }
    return placement_of_slots(problem, expert_of_slot);
  }

  bool uses_load() const override { return false; }
};

}  // namespace

std::unique_ptr<Placer> make_linear(ConfigReader&) { return std::make_unique<Linear>(); }

}  // namespace moesim
