// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hardware/at.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/step_copies.hpp"

namespace moesim {

namespace {

struct LlepLimits {
  double lambda, alpha;  // of the mean load: from where on, and up to where a GPU is filled
  std::int32_t min_tokens;
  int slots;
};

// Least-Loaded Expert Parallelism (arXiv:2601.17111; SalesforceAIResearch/LeastLoadedEP). If
//
//   max L / mean L > lambda
//
// then no GPU keeps more than alpha mean L. Experts go through the hottest first. The excess on an
// expert's GPU goes to the least loaded GPUs, each up to alpha mean L. It goes in chunks of at
// least m tokens but the last, and with it a copy of the expert's weights. The authors bound no
// GPU's copies, and force what finds no room on the least loaded GPU; here it stays where it is.
// Their experts have one home, here a share of an expert has: the slots of one split its tokens
// evenly.
class Llep final : public TokenRouter {
 public:
  explicit Llep(const LlepLimits& limits) : limits_(limits) {}

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    CopyPlan& plan = plan_.local();
    plan.start(problem, limits_.slots);
    const LayerPlacement& placement = problem.placement;
    double most = 0, all = 0;
    for (int gpu = 0; gpu < placement.gpus(); ++gpu) {
      most = std::max<double>(most, plan.load(gpu));
      all += plan.load(gpu);
    }
    const double mean = all / placement.gpus();
    if (most > limits_.lambda * mean) {
      const auto full = std::max(1, static_cast<std::int32_t>(limits_.alpha * mean));
      for (const std::int32_t slot : plan.hottest_first()) spill(plan, placement, slot, full);
    }
    plan.write(choice);
  }

  bool needs_global_counts() const override { return true; }
  int step_slots() const override { return limits_.slots; }

 private:
  void spill(CopyPlan& plan, const LayerPlacement& placement, std::int32_t slot,
             std::int32_t full) const {
    std::int32_t over = std::min(plan.tokens(slot), plan.load(placement.gpu_of_slot(slot)) - full);
    while (over > 0) {
      int target = -1;
      for (int gpu = 0; gpu < placement.gpus(); ++gpu) {
        const std::int32_t chunk = std::min(over, full - plan.load(gpu));
        if (chunk <= 0 || (chunk < limits_.min_tokens && chunk < over)) continue;
        if (target >= 0 && plan.load(gpu) >= plan.load(target)) continue;
        if (plan.takes(placement.expert_of_slot(slot), gpu)) target = gpu;
      }
      if (target < 0) return;
      const std::int32_t chunk = std::min(over, full - plan.load(target));
      plan.bring(slot, target, chunk);
      over -= chunk;
    }
  }

  LlepLimits limits_;
  PerThread<CopyPlan> plan_;
};

}  // namespace

std::span<const Key> llep_routing_keys() {
  static constexpr Key keys[] = {
      {"lambda", form::number(1, 1e6), "1.3", "copies are brought above this max / mean of tokens"},
      {"alpha", form::number(1, 1e6), "1.1", "what a GPU keeps and takes at most, of the mean"},
      {"min_tokens", form::integer(1, 1e9), "1024",
       "the fewest tokens of a copy, but an expert's last"},
      step_slots_key};
  return keys;
}

TokenRouterFactory make_llep(ConfigReader& options) {
  const LlepLimits limits{options.number("lambda"), options.number("alpha"),
                          static_cast<std::int32_t>(options.integer("min_tokens")),
                          static_cast<int>(options.integer("slots"))};
  return [limits](const RoutingContext&) { return std::make_unique<Llep>(limits); };
}

}  // namespace moesim
