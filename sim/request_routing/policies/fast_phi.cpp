// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/horizon.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// Overflow integral at K points with trapezoid weights (Fast-Phi of [barrier-tax], which leaves
// points and weights unsaid). Points are now and these quantiles of the output lengths, or
// those given. drift > 0 adds the tie-break of [barrier-tax], drift * sum w S (L_g - mean L)(s
// + h).
class FastPhi final : public OneByOneRouter {
 public:
  explicit FastPhi(ConfigReader& options) : OneByOneRouter(options) {
    drift_ = options.number("drift");
    if (options.optional("points")) {
      for (const ConfigNode& h : options.child("points").list())
        points_.push_back(static_cast<std::int32_t>(h.integer()));
      if (points_.empty() || !std::is_sorted(points_.begin(), points_.end()))
        options.child("points").fail("must be one step ahead or more, in ascending order");
    } else {
      for (const ConfigNode& q : options.child("quantiles").list())
        quantiles_.push_back(q.number());
      std::sort(quantiles_.begin(), quantiles_.end());
    }
  }

  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState& state) override {
    outputs_.catch_up(state.finished);
    const HorizonPoints points = survived(trapezoid(steps()), outputs_);
    const std::vector<double> loads = project_survivors(points.h, ranks, outputs_);
    const double s = request.prompt_tokens;
    std::vector<double> scores = overflow(points, loads, ranks, s, true);
    if (drift_ > 0) {
      const std::vector<double> tie = drift(points, loads, ranks.size(), s);
      for (std::size_t g = 0; g < scores.size(); ++g) scores[g] += drift_ * tie[g];
    }
    const std::size_t best = least(scores, loads);
    return {best, scores[best]};
  }
  RouterNeeds needs() const override { return {.requests = true}; }

 private:
  std::vector<std::int32_t> steps() const {
    if (!points_.empty()) return points_;
    std::vector<std::int32_t> steps{0};
    for (const double q : quantiles_) {
      if (!outputs_.empty()) steps.push_back(outputs_.quantile(q));
    }
    return steps;
  }

  double drift_;
  std::vector<std::int32_t> points_;
  std::vector<double> quantiles_;
  OutputLengths outputs_;
};

}  // namespace

std::span<const Key> fast_phi_router_keys() {
  static constexpr Form step = form::integer(0, 1e9);
  static constexpr Form quantile = form::number(0, 1);
  static constexpr Key keys[] = {
      admission_key,
      {"quantiles", form::list(quantile), "[0.25, 0.5, 0.75, 0.95]",
       "quantiles of seen output lengths: how many steps ahead to look"},
      {"points", form::list(step), unset("by quantiles"), "or fixed steps ahead, ascending"},
      {"drift", form::number(non_negative), "0", "weight of the change of imbalance, for ties"}};
  return keys;
}

RequestRouterFactory make_fast_phi_router(ConfigReader& options, const RouterContext&) {
  return copies_of(FastPhi(options));
}

}  // namespace moesim
