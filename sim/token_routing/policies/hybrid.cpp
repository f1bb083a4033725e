// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <tuple>

#include "hardware/at.hpp"
#include "sim/token_routing/min_exp.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"
#include "sim/token_routing/split_load.hpp"
#include "sim/token_routing/token_flow.hpp"

namespace moesim {

namespace {

// Moves `tokens` from one slot of an expert to another, and for a swap a second expert's whole
// share the other way.
struct Step {
  double after = std::numeric_limits<double>::infinity();  // the longer of both GPUs'
  std::int32_t from = -1, to = -1, tokens = 0;
  std::int32_t back_from = -1, back_to = -1;
};

// Ways that tokens of a GPU's experts may go: from each slot to the expert's slot on each other
// GPU.
class WaysOff {
 public:
  struct Way {
    std::int32_t from, to, gpu;  // slots, and the GPU of the second
  };

  explicit WaysOff(const LayerPlacement& placement) : first_{0} {
    for (int gpu = 0; gpu < placement.gpus(); ++gpu) {
      for (int slot = placement.first_slot(gpu); slot < placement.first_slot(gpu + 1); ++slot) {
        for (const std::int32_t host : placement.hosts_of(placement.expert_of_slot(slot))) {
          const std::int32_t there = placement.gpu_of_slot(host);
          if (there != gpu) ways_.push_back({slot, host, there});
        }
      }
      first_.push_back(ways_.size());
    }
  }

  // In order of slots, then of GPUs.
  std::span<const Way> of(std::int32_t gpu) const {
    const std::size_t first = first_[at(gpu)];
    return std::span(ways_).subspan(first, first_[at(gpu) + 1] - first);
  }

 private:
  std::vector<Way> ways_;
  std::vector<std::size_t> first_;  // [gpus + 1]
};

// A local search on splits over hosts_of: first fewer tokens on the fullest GPU at the same
// activations, then less time on the slowest.
class Search {
 public:
  Search(const LayerPlacement& placement, const WaysOff& ways, RooflineTime time,
         SplitLoad::Workspace& workspace, std::span<std::int32_t> tokens_of_slot)
      : placement_(placement),
        ways_(ways),
        time_(time),
        load_(placement, workspace, tokens_of_slot) {}

  // A.3: fewer tokens on the fullest GPU, whole experts at a time and no GPU above the most active
  // there are.
  void balance_tokens() {
    const std::int32_t most_active = *std::max_element(load_.active.begin(), load_.active.end());
    const auto cost = [](std::int32_t, std::int32_t tokens) { return double(tokens); };
    for (int steps = 4 * placement_.gpus(); steps > 0; --steps) {
      const std::int32_t gpu = fullest(cost);
      const Step step = best_whole(gpu, most_active, cost);
      if (!(step.after < cost(0, load_.tokens[at(gpu)]))) return;
      apply(step);
    }
  }

  // A.4: whole experts off a GPU that waits for weights, parts of experts off one that computes.
  void shorten() {
    const auto cost = [this](std::int32_t active, std::int32_t tokens) {
      return time_.of(active, tokens);
    };
    for (int steps = 4 * placement_.slots(); steps > 0; --steps) {
      const std::int32_t gpu = fullest(cost);
      const std::int32_t active = load_.active[at(gpu)], tokens = load_.tokens[at(gpu)];
      const bool waits = time_.weight_time * active >= time_.token_time * tokens;
      const Step step = waits ? best_whole(gpu, std::numeric_limits<std::int32_t>::max(), cost)
                              : best_part(gpu, cost);
      if (!(step.after < cost(active, tokens))) return;
      apply(step);
    }
  }

 private:
  template <class Cost>
  std::int32_t fullest(const Cost& cost) const {
    std::int32_t fullest = 0;
    for (std::int32_t gpu = 1; gpu < placement_.gpus(); ++gpu) {
      if (cost(load_.active[at(gpu)], load_.tokens[at(gpu)]) >
          cost(load_.active[at(fullest)], load_.tokens[at(fullest)])) {
        fullest = gpu;
      }
    }
    return fullest;
  }

  template <class Cost>
  Step best_whole(std::int32_t gpu, std::int32_t most_active, const Cost& cost) {
    Step best;
    for (const auto& [from, to, host] : ways_.of(gpu)) {
      const std::int32_t tokens = load_.of_slot[at(from)];
      if (tokens == 0) continue;
      if (load_.active[at(host)] + (load_.of_slot[at(to)] == 0 ? 1 : 0) <= most_active) {
        consider({0, from, to, tokens, -1, -1}, cost, best);
        continue;
      }
      for (const auto& [back_from, back_to, there] : ways_.of(host)) {
        if (there != gpu || load_.of_slot[at(back_from)] == 0 || load_.of_slot[at(back_to)] > 0)
          continue;
        consider({0, from, to, tokens, back_from, back_to}, cost, best);
      }
    }
    return best;
  }

  template <class Cost>
  Step best_part(std::int32_t gpu, const Cost& cost) {
    Step best;
    for (const auto& [from, to, host] : ways_.of(gpu)) {
      const std::int32_t gap = load_.tokens[at(gpu)] - load_.tokens[at(host)];
      const std::int32_t tokens = std::min(load_.of_slot[at(from)], gap / 2);
      if (tokens >= 1) consider({0, from, to, tokens, -1, -1}, cost, best);
    }
    return best;
  }

  // Ties: lowest expert, GPU, expert that comes back, whose share on the other GPU is then 0.
  template <class Cost>
  void consider(Step step, const Cost& cost, Step& best) {
    const auto gpu = at(placement_.gpu_of_slot(step.from));
    const auto host = at(placement_.gpu_of_slot(step.to));
    const std::int32_t back = step.back_from < 0 ? 0 : load_.of_slot[at(step.back_from)];
    const std::int32_t returns = back > 0 ? 1 : 0;
    const std::int32_t leaves = load_.of_slot[at(step.from)] == step.tokens ? 1 : 0;
    const std::int32_t comes = load_.of_slot[at(step.to)] == 0 ? 1 : 0;
    step.after = std::max(
        cost(load_.active[gpu] - leaves + returns, load_.tokens[gpu] - step.tokens + back),
        cost(load_.active[host] + comes - returns, load_.tokens[host] + step.tokens - back));
    if (best.from >= 0 && step.after > best.after) return;
    if (best.from < 0 || rank(step) < rank(best)) best = step;
  }

  std::tuple<double, int, std::int32_t, int> rank(const Step& step) const {
    const int back = step.back_from < 0 ? -1 : placement_.expert_of_slot(step.back_from);
    return {step.after, placement_.expert_of_slot(step.from), placement_.gpu_of_slot(step.to),
            back};
  }

  void apply(const Step& step) {
    const std::int32_t back = step.back_from < 0 ? 0 : load_.of_slot[at(step.back_from)];
    load_.move(step.from, step.to, step.tokens);
    if (back > 0) load_.move(step.back_from, step.back_to, back);
  }

  const LayerPlacement& placement_;
  const WaysOff& ways_;
  RooflineTime time_;
  SplitLoad load_;
};

// Minimises max over GPUs of max(weight_time * active, token_time * tokens). This is
// max(weight_time * most active, token_time * most tokens). It is the exact optimum of activations
// while weights are what takes time. It is an exact balance of tokens when computing is, and splits
// between both in between. The best of three:
//   a search that starts from the exact optimum of activations and whose
//   steps never make the busiest GPU slower, so that `optimal` is never faster.
//   The exact balance of tokens, as uneven as the least time of activations allows and split no
//   further than needed: the search misses it by a few percent of large batches.
//   The even split.
class Hybrid final : public TokenRouter {
 public:
  Hybrid(const ExpertPlacement& placement, RooflineTime time) : time_(time) {
    for (const LayerPlacement& layer : placement)
      layers_.push_back({MinExp(layer), WaysOff(layer)});
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    const std::span<std::int32_t> tokens_of_slot = choice.tokens_of_slot;
    Workspace& workspace = workspace_.local();
    const LayerPlacement& placement = problem.placement;
    const auto& [min_exp, ways] = layers_.at(at(problem.layer));
    min_exp.serve(placement, problem.tokens, workspace.min_exp, tokens_of_slot);
    const std::vector<std::int32_t>& active = workspace.min_exp.active_on_gpu;
    const double of_weights = time_.weight_time * *std::max_element(active.begin(), active.end());
    Search search(placement, ways, time_, workspace.search, tokens_of_slot);
    search.balance_tokens();
    search.shorten();
    double best = time_.busiest(placement, tokens_of_slot);
    if (best <= of_weights) return;  // nothing is faster

    std::vector<std::int32_t>& candidate = workspace.candidate;
    candidate.resize(tokens_of_slot.size());
    const auto keep_if_faster = [&](bool or_equal = false) {
      const double time = time_.busiest(placement, candidate);
      if (time > best || (time == best && !or_equal)) return;
      best = time;
      std::copy(candidate.begin(), candidate.end(), tokens_of_slot.begin());
    };
    min_exp.serve(placement, problem.tokens, workspace.min_exp, candidate);
    TokenFlow flow(placement, workspace.flow, candidate);
    const auto allowed = static_cast<std::int32_t>(of_weights / time_.token_time);
    flow.spare_slots(std::max(flow.minimise(), allowed));
    keep_if_faster(true);  // it splits less than the search does
    Search(placement, ways, time_, workspace.search, candidate).shorten();
    keep_if_faster();

    split_evenly(problem, candidate);
    keep_if_faster();
  }

  bool needs_global_counts() const override { return true; }
  std::optional<RooflineTime> objective() const override { return time_; }

 private:
  struct Layer {
    MinExp min_exp;
    WaysOff ways;
  };

  struct Workspace {
    MinExp::Workspace min_exp;
    TokenFlow::Workspace flow;
    SplitLoad::Workspace search;
    std::vector<std::int32_t> candidate;  // [slots]
  };

  RooflineTime time_;
  std::vector<Layer> layers_;
  PerThread<Workspace> workspace_;
};

// None: those of the GPU and model.
std::optional<RooflineTime> read_times(ConfigReader& options) {
  const bool has_weight = options.optional("weight_time");
  const bool has_token = options.optional("token_time");
  if (!has_weight && !has_token) return std::nullopt;
  if (!has_weight || !has_token) {
    options.node().fail("\"weight_time\" and \"token_time\" go together: give both or neither");
  }
  return RooflineTime{read_time(options.child("weight_time")),
                      read_time(options.child("token_time"))};
}

}  // namespace

std::span<const Key> hybrid_routing_keys() {
  static constexpr Form number = form::number(non_negative);
  static constexpr KeyDefault simulated = unset("of the GPU and model");
  static constexpr Key keys[] = {
      {"weight_time", form::time.or_a(number), simulated, "time to read one slot's weights"},
      {"token_time", form::time.or_a(number), simulated,
       "time to compute one token; give both times or neither"}};
  return keys;
}

TokenRouterFactory make_hybrid(ConfigReader& options) {
  const std::optional<RooflineTime> own = read_times(options);
  return [own](const RoutingContext& context) {
    return std::make_unique<Hybrid>(context.placement, own.value_or(context.time));
  };
}

}  // namespace moesim
