// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "hardware/at.hpp"
#include "sim/token_routing/min_exp.hpp"
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/routers.hpp"
#include "sim/token_routing/split_load.hpp"
#include "sim/token_routing/token_flow.hpp"

namespace moesim {

namespace {

// max(a + b * active slots, c + beta * tokens) of a GPU, in any unit.
struct TempoTime {
  double a = 0, b = 1, c = 0, beta = 1;

  double of(std::int32_t active, std::int32_t tokens) const {
    return std::max(a + b * active, c + beta * tokens);
  }
};

// Tokens on slots, and what follows for each GPU.
class Split {
 public:
  struct Workspace {
    SplitLoad::Workspace load;
    std::vector<std::int32_t> touched;  // GPUs of the chain of moves
  };

  Split(const LayerPlacement& placement, TempoTime time, Workspace& s,
        std::span<std::int32_t> tokens_of_slot)
      : placement_(placement),
        time_(time),
        load_(placement, s.load, tokens_of_slot),
        touched_(s.touched) {}

  double busiest() const {
    double longest = 0;
    for (std::int32_t gpu = 0; gpu < placement_.gpus(); ++gpu)
      longest = std::max(longest, time_of(gpu));
    return longest;
  }

  // Whole experts, those with most tokens first, each where the GPU then takes least.
  void fill_greedily(std::span<const std::int32_t> tokens) {
    std::vector<std::int32_t> experts(tokens.size());
    std::iota(experts.begin(), experts.end(), 0);
    std::stable_sort(experts.begin(), experts.end(),
                     [&](auto a, auto b) { return tokens[at(a)] > tokens[at(b)]; });
    for (const std::int32_t expert : experts) {
      if (tokens[at(expert)] == 0) break;
      const auto after = [&](std::int32_t slot) {
        const auto gpu = at(placement_.gpu_of_slot(slot));
        return time_.of(load_.active[gpu] + 1, load_.tokens[gpu] + tokens[at(expert)]);
      };
      const auto hosts = placement_.hosts_of(expert);
      load_.add(*std::min_element(hosts.begin(), hosts.end(),
                                  [&](auto a, auto b) { return after(a) < after(b); }),
                tokens[at(expert)]);
    }
  }

  // Takes work off a GPU that takes longest, by chains of moves, for as long as there is one. Each
  // GPU of a chain takes less than that afterwards.
  void shorten() {
    for (int rounds = 8 * placement_.slots(); rounds > 0; --rounds) {
      std::int32_t slowest = 0;
      for (std::int32_t gpu = 1; gpu < placement_.gpus(); ++gpu)
        if (time_of(gpu) > time_of(slowest)) slowest = gpu;
      limit_ = time_of(slowest);
      touched_ = {slowest};
      tries_ = 4000;
      if (!settle(5)) return;
    }
  }

  // Fewer tokens on the fullest GPU by whole experts, no GPU slower than the slowest: the exchange
  // waits for tokens too.
  void level_tokens() {
    limit_ = std::nextafter(busiest(), std::numeric_limits<double>::infinity());
    for (int rounds = 4 * placement_.gpus(); rounds > 0; --rounds) {
      const auto fullest = std::max_element(load_.tokens.begin(), load_.tokens.end());
      most_tokens_ = *fullest;
      touched_ = {static_cast<std::int32_t>(fullest - load_.tokens.begin())};
      tries_ = 400;
      if (!settle(3)) return;
    }
  }

 private:
  // Returns true if at most so many moves bring all GPUs of the chain below the limit. A move takes
  // a whole expert's share off a GPU, or the tokens that it has too many. The next move is of the
  // GPU that they came to. So chains are augmenting paths, and cycles too.
  bool settle(int moves) {
    const auto over = std::find_if(touched_.rbegin(), touched_.rend(),
                                   [this](std::int32_t gpu) { return !fits(gpu); });
    if (over == touched_.rend()) return true;
    if (moves == 0) return false;
    const std::int32_t gpu = *over;
    const std::int32_t too_many = levels() ? 0 : tokens_over(gpu);
    for (int from = placement_.first_slot(gpu); from < placement_.first_slot(gpu + 1); ++from) {
      const std::int32_t whole = load_.of_slot[at(from)];
      if (whole == 0) continue;
      for (const std::int32_t to : placement_.hosts_of(placement_.expert_of_slot(from))) {
        const std::int32_t host = placement_.gpu_of_slot(to);
        if (host == gpu) continue;
        for (const std::int32_t tokens : {std::min(whole, too_many), whole}) {
          if (tokens == 0) continue;
          if (--tries_ < 0) return false;
          load_.move(from, to, tokens);
          touched_.push_back(host);
          if (settle(moves - 1)) return true;
          touched_.pop_back();
          load_.move(to, from, tokens);
          if (tokens == whole) break;  // the other one is the same
        }
      }
    }
    return false;
  }

  bool levels() const { return most_tokens_ < std::numeric_limits<std::int32_t>::max(); }

  bool fits(std::int32_t gpu) const {
    return time_of(gpu) < limit_ && load_.tokens[at(gpu)] < most_tokens_;
  }

  std::int32_t tokens_over(std::int32_t gpu) const {
    const std::int32_t tokens = load_.tokens[at(gpu)];
    if (time_.of(0, tokens) < limit_) return 0;
    std::int32_t fit = 0, over = tokens;  // the most that fit lie in [fit, over)
    while (over - fit > 1) {
      const std::int32_t middle = fit + (over - fit) / 2;
      (time_.of(0, middle) < limit_ ? fit : over) = middle;
    }
    return tokens - fit;
  }

  double time_of(std::int32_t gpu) const {
    return time_.of(load_.active[at(gpu)], load_.tokens[at(gpu)]);
  }

  const LayerPlacement& placement_;
  TempoTime time_;
  SplitLoad load_;
  std::vector<std::int32_t>& touched_;
  double limit_ = 0;
  std::int32_t most_tokens_ = std::numeric_limits<std::int32_t>::max();
  int tries_ = 0;
};

// TEMPO (arXiv 2608.13057): one objective for both regimes,
//
//   min over splits of max over GPUs g of max(a + b G_g, c + beta N_g),
//
// G_g active slots of GPU g and N_g tokens on it. NP-hard from two GPUs on. Four starts are tried:
// the exact optimum of activations, greedy, the exact balance of tokens, the even split. Chains of
// moves off the slowest GPU improve each. So the best is never slower than these.
class Tempo final : public TokenRouter {
 public:
  Tempo(const ExpertPlacement& placement, TempoTime time) : time_(time) {
    for (const LayerPlacement& layer : placement) layers_.emplace_back(layer);
  }

  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    Workspace& s = workspace_.local();
    const LayerPlacement& placement = problem.placement;
    const MinExp& min_exp = layers_.at(at(problem.layer));
    std::vector<std::int32_t>& x = s.candidate;
    x.resize(choice.tokens_of_slot.size());
    double best = std::numeric_limits<double>::infinity();
    const auto improve_and_keep = [&] {
      Split split(placement, time_, s.split, x);
      split.shorten();
      const double time = split.busiest();
      if (!(time < best)) return;
      best = time;
      std::copy(x.begin(), x.end(), choice.tokens_of_slot.begin());
    };

    min_exp.serve(placement, problem.tokens, s.min_exp, x);
    const std::vector<std::int32_t>& active = s.min_exp.active_on_gpu;
    const double of_weights = time_.of(*std::max_element(active.begin(), active.end()), 0);
    improve_and_keep();
    if (best <= of_weights) {  // nothing is faster
      Split(placement, time_, s.split, choice.tokens_of_slot).level_tokens();
      return;
    }

    std::fill(x.begin(), x.end(), 0);
    Split(placement, time_, s.split, x).fill_greedily(problem.tokens);
    improve_and_keep();

    min_exp.serve(placement, problem.tokens, s.min_exp, x);
    TokenFlow flow(placement, s.flow, x);
    const double spare = time_.beta > 0 ? (of_weights - time_.c) / time_.beta : 0;
    flow.spare_slots(
        std::max(flow.minimise(), static_cast<std::int32_t>(std::clamp(spare, 0., 1e9))));
    improve_and_keep();

    split_evenly(problem, x);
    improve_and_keep();
  }

  bool needs_global_counts() const override { return true; }
  std::optional<RooflineTime> objective() const override {
    return RooflineTime{time_.b, time_.beta};  // without the starts
  }

 private:
  struct Workspace {
    MinExp::Workspace min_exp;
    TokenFlow::Workspace flow;
    Split::Workspace split;
    std::vector<std::int32_t> candidate;  // [slots]
  };

  TempoTime time_;
  std::vector<MinExp> layers_;
  PerThread<Workspace> workspace_;
};

}  // namespace

std::span<const Key> tempo_routing_keys() {
  static constexpr Form number = form::number(non_negative);
  static constexpr KeyDefault simulated = unset("of the GPU and model");
  static constexpr Key keys[] = {
      {"a", form::time.or_a(number), unset("0"), "time of reading before the first slot"},
      {"b", form::time.or_a(number), simulated, "time to read one slot's weights"},
      {"c", form::time.or_a(number), unset("0"), "time of computing before the first token"},
      {"beta", form::time.or_a(number), simulated,
       "time to compute one token; give b and beta or neither"}};
  return keys;
}

TokenRouterFactory make_tempo(ConfigReader& options) {
  const auto time = [&](const char* key) { return read_time(options.child(key)); };
  std::optional<TempoTime> own;
  const bool has_b = options.optional("b"), has_beta = options.optional("beta");
  const bool has_a = options.optional("a"), has_c = options.optional("c");
  if (has_b != has_beta || ((has_a || has_c) && !has_b))
    options.node().fail(
        "\"b\" and \"beta\" go together, and \"a\" and \"c\" with them: give b and beta");
  if (has_b) own = TempoTime{has_a ? time("a") : 0, time("b"), has_c ? time("c") : 0, time("beta")};
  return [own](const RoutingContext& context) {
    return std::make_unique<Tempo>(
        context.placement,
        own.value_or(TempoTime{0, context.time.weight_time, 0, context.time.token_time}));
  };
}

}  // namespace moesim
