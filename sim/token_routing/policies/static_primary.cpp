// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "hardware/at.hpp"
#include "sim/token_routing/min_exp.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

// How likely each expert is to be active in a batch that gives experts x tokens in the mean, when
// tokens pick by popularity: 1 - exp(-x load / mean load).
std::vector<double> activity(const ExpertLoad& load, double tokens_per_expert) {
  const double mean =
      std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
  std::vector<double> active;
  for (const double tokens : load) {
    active.push_back(mean > 0 ? -std::expm1(-tokens_per_expert * tokens / mean) : 0);
  }
  return active;
}

// Evens out the experts that are active in the mean, sum over GPUs of (sum of activity)^2. It moves
// one expert or exchanges two as long as that helps. No GPU serves more experts than the fullest
// does at the start.
class Evening {
 public:
  Evening(const LayerPlacement& placement, std::vector<std::int32_t>& slot_of,
          const std::vector<double>& active)
      : placement_(placement),
        slot_of_(slot_of),
        active_(active),
        experts_(at(placement.gpus())),
        load_(at(placement.gpus())) {
    for (std::size_t e = 0; e < slot_of.size(); ++e) {
      ++experts_[gpu_of(e)];
      load_[gpu_of(e)] += active[e];
    }
    most_ = *std::max_element(experts_.begin(), experts_.end());
  }

  void run() {
    for (bool better = true; better;) {
      better = false;
      for (std::size_t e = 0; e < slot_of_.size(); ++e) {
        for (const std::int32_t slot : placement_.hosts_of(static_cast<int>(e))) {
          better = relocate(e, slot) || better;
        }
      }
    }
  }

 private:
  std::size_t gpu_of(std::size_t expert) const { return gpu_of_slot(slot_of_[expert]); }
  std::size_t gpu_of_slot(std::int32_t slot) const { return at(placement_.gpu_of_slot(slot)); }

  // Decrease of the sum of squares when `amount` goes from one GPU to another.
  double gain(std::size_t from, std::size_t to, double amount) const {
    return 2 * amount * (load_[from] - load_[to] - amount);
  }

  void serve(std::size_t expert, std::int32_t slot) {
    const std::size_t from = gpu_of(expert), to = gpu_of_slot(slot);
    slot_of_[expert] = slot;
    --experts_[from];
    ++experts_[to];
    load_[from] -= active_[expert];
    load_[to] += active_[expert];
  }

  // To another host alone, or in exchange for the first expert there that makes it worth while.
  bool relocate(std::size_t expert, std::int32_t slot) {
    constexpr double least_gain = 1e-9;
    const std::size_t from = gpu_of(expert), to = gpu_of_slot(slot);
    if (from == to) return false;
    if (experts_[to] < most_ && gain(from, to, active_[expert]) > least_gain) {
      serve(expert, slot);
      return true;
    }
    for (std::size_t other = 0; other < slot_of_.size(); ++other) {
      if (gpu_of(other) != to) continue;
      if (gain(from, to, active_[expert] - active_[other]) <= least_gain) continue;
      for (const std::int32_t back : placement_.hosts_of(static_cast<int>(other))) {
        if (gpu_of_slot(back) != from) continue;
        serve(expert, slot);
        serve(other, back);
        return true;
      }
    }
    return false;
  }

  const LayerPlacement& placement_;
  std::vector<std::int32_t>& slot_of_;
  const std::vector<double>& active_;
  std::vector<std::int32_t> experts_;  // served, [gpus]
  std::vector<double> load_;           // served experts that are active in the mean, [gpus]
  std::int32_t most_ = 0;
};

// A replica per expert, chosen once: as if every expert were active. If it was seen how often
// experts are picked, the choice is evened out. It needs no counts, no gathering and no kernel. No
// GPU ever activates more than the exact optimum of a full step.
//
// {"tokens_per_expert": 2}: in the batches that it is evened out for; 0: not at all.
class StaticPrimary final : public TokenRouter {
 public:
  StaticPrimary(const RoutingContext& context, double tokens_per_expert) {
    MinExp::Workspace workspace;
    for (const LayerPlacement& layer : context.placement) {
      const std::vector<std::int32_t> all_active(at(layer.experts()), 1);
      MinExp(layer).assign(layer, all_active, workspace);
      if (!context.load.empty() && tokens_per_expert > 0) {
        const ExpertLoad& load = context.load[primary_.size()];
        Evening(layer, workspace.slot_of, activity(load, tokens_per_expert)).run();
      }
      primary_.push_back(workspace.slot_of);
    }
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    const auto& primary = primary_.at(at(problem.layer));
    check(primary.size() == problem.tokens.size(),
          "a routing was made for a placement of another number of experts");
    std::fill(choice.tokens_of_slot.begin(), choice.tokens_of_slot.end(), 0);
    for (std::size_t expert = 0; expert < primary.size(); ++expert) {
      choice.tokens_of_slot[at(primary[expert])] = problem.tokens[expert];
    }
  }

  bool needs_global_counts() const override { return false; }

 private:
  std::vector<std::vector<std::int32_t>> primary_;  // slot, [layers][experts]
};

}  // namespace

std::span<const Key> static_primary_routing_keys() {
  static constexpr Key keys[] = {
      {"tokens_per_expert", form::number(non_negative), "2",
       "in the batches that replicas are chosen for; 0: as if all were active"}};
  return keys;
}

TokenRouterFactory make_static_primary(ConfigReader& options) {
  const double tokens_per_expert = options.number("tokens_per_expert");
  return [tokens_per_expert](const RoutingContext& context) {
    return std::make_unique<StaticPrimary>(context, tokens_per_expert);
  };
}

}  // namespace moesim
