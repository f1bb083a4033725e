// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "hardware/at.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"
#include "sim/token_routing/step_copies.hpp"

namespace moesim {

namespace {

struct ProbeLimits {
  double accuracy;                // of the predictor, by selections
  std::optional<Seconds> window;  // that hides copies; none: it hides all
  double link_share;
  int slots;  // for copies of one layer
  std::uint64_t seed;
};

// PROBE (arXiv:2602.00509). While a layer runs, the tokens of the next one are foreseen. Copies are
// planned and sent during what computes. A copy is made only if it arrives in time:
//
//   copies to a GPU, and from a GPU <= floor(window * link share / time of one copy on the link).
//
// Plan: as long as it helps, the fullest GPU's hottest expert gives tokens to a copy on its NVLink
// domain's least loaded GPU. It gives half of the difference between the two. Then the layer's own
// tokens are shared out as those that were foreseen. The predictor is its accuracy: a selection is
// foreseen with that probability, and another expert in its place otherwise. The authors' is a
// trained gate. Counts alone predict .57 to .62 of the next layer's experts from the last one, so
// .6 is what needs no training. Copies without a token have been sent in vain and are not counted.
class Probe final : public TokenRouter {
 public:
  Probe(const ProbeLimits& limits, int copies, int ranks_per_domain)
      : limits_(limits), copies_(copies), ranks_per_domain_(ranks_per_domain) {}

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    auto& [foreseen, plan, tokens, sent] = workspace_.local();
    // Nothing runs before the first layer.
    const bool sees = problem.layer > 0 && copies_ > 0;
    std::vector<Move> moves;
    if (sees) {
      foresee(problem, tokens);
      RoutingProblem next{problem.placement, tokens, problem.layer, problem.step, {}};
      foreseen.start(next, copies_);
      sent.assign(at(problem.placement.gpus()), 0);
      while (improve(problem.placement, foreseen, sent, moves)) {
      }
    }
    plan.start(problem, copies_);
    // From several copies of one slot each takes its share of what the slot began with.
    for (const Move& move : moves) {
      const auto share = std::min(
          plan.tokens(move.slot),
          static_cast<std::int32_t>(std::lround(move.share * plan.first_tokens(move.slot))));
      if (share > 0) plan.bring(move.slot, move.gpu, share);
    }
    plan.write(choice);
  }

  bool needs_global_counts() const override { return false; }
  // For the layer that runs and for the next one.
  int step_slots() const override { return 2 * limits_.slots; }
  bool hides_copies() const override { return true; }

 private:
  struct Move {
    std::int32_t slot, gpu;
    double share;  // of the slot's tokens
  };
  struct Workspace {
    CopyPlan foreseen, plan;
    std::vector<std::int32_t> tokens, sent;  // [experts], [gpus]
  };

  void foresee(const RoutingProblem& problem, std::vector<std::int32_t>& tokens) const {
    tokens.assign(problem.tokens.size(), 0);
    Rng rng = layer_step_stream(limits_.seed, problem, "token_routing/probe");
    for (std::size_t expert = 0; expert < tokens.size(); ++expert) {
      for (std::int32_t token = 0; token < problem.tokens[expert]; ++token) {
        const bool right = rng.uniform() < limits_.accuracy;
        ++tokens[right ? expert : at(rng.below(tokens.size()))];
      }
    }
  }

  // Makes one more copy, of a slot on the fullest GPU that can still come down.
  bool improve(const LayerPlacement& placement, CopyPlan& plan, std::vector<std::int32_t>& sent,
               std::vector<Move>& moves) const {
    int fullest = 0;
    for (int gpu = 1; gpu < placement.gpus(); ++gpu) {
      if (plan.load(gpu) > plan.load(fullest)) fullest = gpu;
    }
    if (sent[at(fullest)] == copies_) return false;
    const int domain = ranks_per_domain_ > 0 ? ranks_per_domain_ : placement.gpus();
    const int first = fullest / domain * domain;
    for (const std::int32_t slot : plan.hottest_first()) {
      if (placement.gpu_of_slot(slot) != fullest) continue;
      int target = -1;
      for (int gpu = first; gpu < std::min(first + domain, placement.gpus()); ++gpu) {
        if (target >= 0 && plan.load(gpu) >= plan.load(target)) continue;
        if (plan.takes(placement.expert_of_slot(slot), gpu)) target = gpu;
      }
      if (target < 0) continue;
      const std::int32_t tokens =
          std::min(plan.tokens(slot), (plan.load(fullest) - plan.load(target)) / 2);
      if (tokens < 1) continue;
      moves.push_back({slot, target, double(tokens) / plan.first_tokens(slot)});
      plan.bring(slot, target, tokens);
      ++sent[at(fullest)];
      return true;
    }
    return false;
  }

  ProbeLimits limits_;
  int copies_;  // that a GPU takes in and sends before a layer
  int ranks_per_domain_;
  PerThread<Workspace> workspace_;
};

// Copies that a link brings within the window, as many as there is room for at most.
int copies_in(const ProbeLimits& limits, Seconds time_of_copy) {
  if (!limits.window || time_of_copy <= Seconds{}) return limits.slots;
  const double most = *limits.window * limits.link_share / time_of_copy;
  return static_cast<int>(std::min<double>(limits.slots, std::floor(most * (1 + 1e-9))));
}

}  // namespace

std::span<const Key> probe_routing_keys() {
  static constexpr Key keys[] = {
      {"accuracy", form::number(0, 1), "0.6", "share of selections that are foreseen"},
      {"window", form::time, unset("hides all copies"), "time of a layer that hides copies"},
      {"link_share", form::number(0, 1), "1", "share of NVLink that copies take in the window"},
      step_slots_key,
      {"seed", form::integer(0, 9e15), "0", "seed of the predictor's mistakes"}};
  return keys;
}

TokenRouterFactory make_probe(ConfigReader& options) {
  ProbeLimits limits{options.number("accuracy"), std::nullopt, options.number("link_share"),
                     static_cast<int>(options.integer("slots")),
                     static_cast<std::uint64_t>(options.integer("seed"))};
  if (options.optional("window")) limits.window = options.quantity<Seconds>("window");
  return [limits](const RoutingContext& context) {
    return std::make_unique<Probe>(limits, copies_in(limits, context.time_of_copy),
                                   context.ranks_per_domain);
  };
}

}  // namespace moesim
