// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>

#include "hardware/choice.hpp"
#include "sim/request_routing/candidate_ranks.hpp"
#include "sim/request_routing/horizon.hpp"
#include "sim/request_routing/prediction.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

enum class LengthsFrom { predicted_length, survival };
constexpr std::array<std::string_view, 2> predictor_names{"predicted_length", "survival"};

// Lookahead of both forms of BR-H: the points h (all of 0..horizon, or those given), their weights
// gamma^h, and how many steps a request still runs. It is there at h if h < that number, with
// prompt + generated + h tokens. A request that outlived its prediction stays one step more.
class Lookahead {
 public:
  Lookahead(ConfigReader& options, const RouterContext& context)
      : by_survival_(choice<LengthsFrom>(options, "predictor", predictor_names) ==
                     LengthsFrom::survival),
        prediction_(options, context.seed) {
    const double gamma = options.number("gamma");
    if (options.optional("points")) {
      for (const ConfigNode& h : options.child("points").list())
        points_.h.push_back(static_cast<std::int32_t>(h.integer()));
      if (points_.h.empty()) options.child("points").fail("must name one step ahead or more");
    } else {
      points_.h.resize(at(options.integer("horizon")) + 1);
      std::iota(points_.h.begin(), points_.h.end(), 0);
    }
    for (const std::int32_t h : points_.h) points_.weight.push_back(std::pow(gamma, h));
  }

  const HorizonPoints& points() const { return points_; }

  std::vector<double> loads(const RoutingState& state, std::span<const RankLoad> ranks) {
    outputs_.catch_up(state.finished);
    return project(points_.h, ranks, [this](const RankRequest& r) {
      return [left = std::max(steps_left(r), 1)](std::int32_t h) { return h < left ? 1.0 : 0.0; };
    });
  }

 private:
  std::int32_t steps_left(const RankRequest& r) const {
    if (!by_survival_) return prediction_.output(r.id, r.output_tokens) - r.generated;
    // Before any output was seen no request ever leaves.
    if (outputs_.empty()) return points_.h.back() + 1;
    return static_cast<std::int32_t>(std::lround(outputs_.remaining(r.generated)));
  }

  bool by_survival_;
  OutputPrediction prediction_;
  HorizonPoints points_;
  OutputLengths outputs_;
};

// BalanceRoute with a horizon [BalanceRoute]: the least beta sum_h gamma^h max(s - m_g(h), 0),
// which overflow() extends to several EP groups. The gain alpha s sum gamma^h is the same for all
// ranks.
class Brh final : public OneByOneRouter {
 public:
  Brh(ConfigReader& options, const RouterContext& context)
      : OneByOneRouter(options),
        beta_(options.number_or("beta", context.ranks_of_group())),
        ahead_(options, context) {}

  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState& state) override {
    const std::vector<double> loads = ahead_.loads(state, ranks);
    std::vector<double> scores =
        overflow(ahead_.points(), loads, ranks, request.prompt_tokens, false);
    for (double& score : scores) score *= beta_;
    const std::size_t best = least(scores, ranks);
    return {best, scores[best]};
  }
  RouterNeeds needs() const override { return {.requests = true}; }

 private:
  double beta_;
  Lookahead ahead_;
};

class BrhPool final : public RequestRouter {
 public:
  BrhPool(ConfigReader& options, const RouterContext& context)
      : window_(at(options.integer("window"))), ahead_(options, context) {
    rules_.beta = options.number_or("beta", context.ranks_of_group());
    rules_.weights = ahead_.points().weight;
    rules_.greedy_above = options.integer("greedy_above");
  }
  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    select_from_pool(rules_, pool_ranks(state.ranks, ahead_.loads(state, state.ranks)),
                     state.pending, state.ranks, 0, assignments);
  }
  RouterNeeds needs() const override { return {.window = window_, .requests = true}; }

 private:
  std::size_t window_;
  Lookahead ahead_;
  PoolRules rules_;
};

}  // namespace

std::span<const Key> brh_router_keys() {
  static constexpr Form step = form::integer(0, 1e9);
  static constexpr Key keys[] = {
      admission_key,
      pool_form_key,
      {"points", form::list(step), unset("0 to horizon"), "steps ahead that are looked at"},
      {"horizon", form::integer(0, 1e6), "80", "the furthest of them"},
      {"gamma", form::number(0, 1), "0.9", "weight of a step over that before it"},
      {"beta", form::number(non_negative), unset("the ranks of a group"), "weight of overflow"},
      {"predictor", form::choice(predictor_names), "predicted_length",
       "predictor of how long requests run"},
      OutputPrediction::error_key,
      pool_keys[0],
      pool_keys[1]};
  return keys;
}

RequestRouterFactory make_brh_router(ConfigReader& options, const RouterContext& context) {
  if (choice<PoolForm>(options, "form", pool_forms) == PoolForm::pool)
    return copies_of(BrhPool(options, context));
  return copies_of(Brh(options, context));
}

}  // namespace moesim
