// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "sim/request_routing/candidate_ranks.hpp"
#include "sim/request_routing/prediction.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// BF-IO (arXiv:2601.17855; its constants, code of Echoscd/Load-Balancing-Release at 6ae705d). Loads
// over the next `horizon` steps come from predicted outputs: a request leaves when it ends and does
// not grow until then. A selection from the pool fills ranks up to the envelope.
class BfIo final : public RequestRouter {
 public:
  BfIo(ConfigReader& options, const RouterContext& context)
      : horizon_(static_cast<std::int32_t>(options.integer("horizon"))),
        window_(at(options.integer("window"))),
        token_s_(options.quantity<Seconds>("step_seconds_per_token").count()),
        prediction_(options, context.seed) {
    rules_.alpha = options.number("alpha");
    rules_.beta = options.number("beta");
    rules_.greedy_above = options.integer("greedy_above");
    const double decay = options.number("decay");
    for (std::int32_t t = 0; t <= horizon_; ++t) rules_.weights.push_back(std::pow(decay, t));
  }

  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    const std::size_t count = state.ranks.size(), steps = rules_.weights.size();
    std::vector<double> loads(steps * count);
    for (std::size_t g = 0; g < count; ++g) {
      for (std::size_t t = 0; t < steps; ++t)
        loads[t * count + g] = static_cast<double>(state.ranks[g].kv_tokens);
      for (const RankRequest& r : state.ranks[g].requests) {
        const std::int32_t left = prediction_.output(r.id, r.output_tokens) - r.generated;
        for (std::int32_t t = std::max(left, 1); left > 0 && t <= horizon_; ++t)
          loads[at(t) * count + g] -= r.prompt_tokens + r.generated;
      }
    }
    const double lambda = weight_of_future(state.now, loads, count);
    select_from_pool(rules_, pool_ranks(state.ranks, std::move(loads)), state.pending, state.ranks,
                     lambda, assignments);
  }
  RouterNeeds needs() const override { return {.window = window_, .requests = true}; }

 private:
  // clock / (clock + steps until every rank would be empty, at token_s each, + 1 us).
  double weight_of_future(Time now, std::span<const double> loads, std::size_t ranks) const {
    const auto last = at(horizon_);
    std::size_t steps = horizon_ == 0 ? 0 : 1;
    const auto empty = [&](std::size_t t) {
      const auto at = loads.subspan(t * ranks, ranks);
      return *std::max_element(at.begin(), at.end()) <= 1e-6;
    };
    while (steps < last && !empty(steps)) ++steps;
    const double clock = to_seconds(now.time_since_epoch()).count();
    return clock / (clock + static_cast<double>(steps) * token_s_ + 1e-6);
  }

  std::int32_t horizon_;
  std::size_t window_;
  double token_s_;
  OutputPrediction prediction_;
  PoolRules rules_;
};

}  // namespace

std::span<const Key> bfio_router_keys() {
  static constexpr Key keys[] = {
      {"horizon", form::integer(0, 1e6), "72", "steps ahead that are looked at"},
      {"step_seconds_per_token", form::time, "0.10052 us",
       "time of a step per token that a rank holds"},
      {"alpha", form::number(non_negative), "1",
       "cost of a token that fits under the most loaded rank"},
      {"beta", form::number(non_negative), "43", "cost of a token above the most loaded rank"},
      {"decay", form::number(0, 1), "0.86", "weight of a step over that before it"},
      OutputPrediction::error_key,
      pool_keys[0],
      pool_keys[1]};
  return keys;
}

RequestRouterFactory make_bfio_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(BfIo(options, context));
}

}  // namespace moesim
