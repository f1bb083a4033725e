// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "sim/request_routing/horizon.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// The overflow integral of [barrier-tax]: the expected idle time at barriers that a request of s
// tokens brings to rank g,
//   sum over h >= 0 of S(h) max(s + h - m_g(h), 0),  m_g = max L - L_g,
// over every step up to the longest output seen. O(requests on the ranks * longest output).
class Overflow final : public OneByOneRouter {
 public:
  using OneByOneRouter::OneByOneRouter;

  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState& state) override {
    outputs_.catch_up(state.finished);
    HorizonPoints points;
    points.h.resize(at(std::max(outputs_.longest(), 1)));
    std::iota(points.h.begin(), points.h.end(), 0);
    points.weight.assign(points.h.size(), 1);
    points = survived(std::move(points), outputs_);
    const std::vector<double> loads = project_survivors(points.h, ranks, outputs_);
    const auto scores = overflow(points, loads, ranks, request.prompt_tokens, true);
    const std::size_t best = least(scores, loads);
    return {best, scores[best]};
  }
  RouterNeeds needs() const override { return {.requests = true}; }

 private:
  OutputLengths outputs_;
};

}  // namespace

RequestRouterFactory make_overflow_router(ConfigReader& options, const RouterContext&) {
  return copies_of(Overflow(options));
}

}  // namespace moesim
