// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/placers.hpp"

namespace moesim {

namespace {

// vLLM's `round_robin`: expert e on GPU e mod G. vLLM has it without redundant experts only; here
// the experts go round the GPUs again. Where G divides N each lap starts one GPU further, because
// otherwise every copy would stand beside its original and be of no use.
class RoundRobin final : public Placer {
 public:
  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    require_sound(problem, seen.load);
    const int shift = problem.experts % problem.gpus == 0 ? 1 : 0;
    std::vector<std::vector<int>> experts_on_gpu(at(problem.gpus));
    for (int i = 0; i < problem.gpus * problem.slots_per_gpu; ++i) {
      const int lap = i / problem.experts;
      const int gpu = (i + shift * lap) % problem.gpus;
      experts_on_gpu[at(gpu)].push_back(i % problem.experts);
    }
    return {problem.experts, experts_on_gpu};
  }

  bool uses_load() const override { return false; }
};

}  // namespace

std::unique_ptr<Placer> make_round_robin(ConfigReader&) { return std::make_unique<RoundRobin>(); }

}  // namespace moesim
