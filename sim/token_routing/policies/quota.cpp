// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/step_copies.hpp"

namespace moesim {

namespace {

// UltraEP's quotas (arXiv:2606.04101; Dots-Infra/UltraEP, csrc/kernels/placement.cu). In each
// NVLink domain by itself: the least T such that every GPU can export
//
//   excess = max(L - T, 0).
//
// GPUs export the fullest first, each its hottest experts first, which keep a token. An export goes
// to the GPU with the most slack T - L that has a free slot and does not hold the expert. A copy
// gets at least m tokens. T is looked for as they do: at the mean first, then between it and the
// largest load by bisection. A larger T may fail where a smaller one does not (the excess can be
// less than m). Their kernel has a faster stage too, which tries 1 to 3 % above the mean, without
// m: min_tokens 1 comes near to it. Their search begins with one copy of each expert, here with the
// even split over all.
class Quota final : public TokenRouter {
 public:
  Quota(std::int32_t min_tokens, int slots, int ranks_per_domain)
      : min_tokens_(min_tokens), slots_(slots), ranks_per_domain_(ranks_per_domain) {}

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    Workspace& workspace = workspace_.local();
    CopyPlan& plan = workspace.plan;
    std::vector<int>& fullest = workspace.fullest;
    const LayerPlacement& placement = problem.placement;
    plan.start(problem, slots_);
    const int gpus = placement.gpus();
    const int domain = ranks_per_domain_ > 0 ? std::min(ranks_per_domain_, gpus) : gpus;
    for (int first = 0; first < gpus; first += domain) {
      fullest.clear();
      std::int64_t all = 0;
      for (int gpu = first; gpu < std::min(first + domain, gpus); ++gpu) {
        fullest.push_back(gpu);
        all += plan.load(gpu);
      }
      std::ranges::stable_sort(fullest, std::greater<>(), [&](int gpu) { return plan.load(gpu); });
      const auto size = static_cast<std::int64_t>(fullest.size());
      balance(placement, fullest, static_cast<std::int32_t>((all + size - 1) / size), plan,
              workspace.tried);
    }
    plan.write(choice);
  }

  bool needs_global_counts() const override { return true; }
  int step_slots() const override { return slots_; }

 private:
  struct Workspace {
    CopyPlan plan, tried;
    std::vector<int> fullest;  // the GPUs of a domain
  };

  // `plan` becomes that of the least quota found, from `least` on.
  void balance(const LayerPlacement& placement, std::span<const int> fullest, std::int32_t least,
               CopyPlan& plan, CopyPlan& tried) const {
    const CopyPlan before = plan;
    const auto meets = [&](std::int32_t quota) {
      tried = before;
      const bool met = std::ranges::all_of(
          fullest, [&](int gpu) { return exports(placement, fullest, gpu, quota, tried); });
      if (met) plan = tried;
      return met;
    };
    std::int32_t low = least, high = before.load(fullest.front());
    if (meets(low)) return;
    for (++low; low < high;) {
      const std::int32_t middle = low + (high - low) / 2;
      if (meets(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
  }

  // True if a GPU comes down to its quota.
  bool exports(const LayerPlacement& placement, std::span<const int> domain, int from,
               std::int32_t quota, CopyPlan& plan) const {
    for (const std::int32_t slot : plan.hottest_first()) {
      if (plan.load(from) <= quota) break;
      if (placement.gpu_of_slot(slot) != from) continue;
      while (plan.load(from) > quota) {
        const std::int32_t most = std::min(plan.load(from) - quota, plan.tokens(slot) - 1);
        int target = -1;
        for (const int gpu : domain) {
          if (std::min(most, quota - plan.load(gpu)) < min_tokens_) continue;
          if (target >= 0 && (plan.load(gpu) > plan.load(target) ||
                              (plan.load(gpu) == plan.load(target) && gpu > target)))
            continue;
          if (plan.takes(placement.expert_of_slot(slot), gpu)) target = gpu;
        }
        if (target < 0) break;
        plan.bring(slot, target, std::min(most, quota - plan.load(target)));
      }
    }
    return plan.load(from) <= quota;
  }

  std::int32_t min_tokens_;
  int slots_, ranks_per_domain_;
  PerThread<Workspace> workspace_;
};

}  // namespace

std::span<const Key> quota_routing_keys() {
  static constexpr Key keys[] = {
      {"min_tokens", form::integer(1, 1e9), "1024", "the fewest tokens of a copy"}, step_slots_key};
  return keys;
}

TokenRouterFactory make_quota(ConfigReader& options) {
  const auto min_tokens = static_cast<std::int32_t>(options.integer("min_tokens"));
  const auto slots = static_cast<int>(options.integer("slots"));
  return [=](const RoutingContext& context) {
    return std::make_unique<Quota>(min_tokens, slots, context.ranks_per_domain);
  };
}

}  // namespace moesim
