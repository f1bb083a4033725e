// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// argmin L_g, L_g = KV tokens of running and waiting requests: the one-step minimiser of sum (L_g -
// mean)^2, because adding s tokens to rank g changes it by 2s(L_g - mean) + s^2(1 - 1/G).
// Ties lowest rank.
class LeastKv final : public OneByOneRouter {
 public:
  using OneByOneRouter::OneByOneRouter;

  Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    const auto lightest = std::ranges::min_element(ranks, {}, &RankLoad::kv_tokens);
    return {at(lightest - ranks.begin()), static_cast<double>(lightest->kv_tokens)};
  }
};

}  // namespace

RequestRouterFactory make_least_kv_router(ConfigReader& options, const RouterContext&) {
  return copies_of(LeastKv(options));
}

}  // namespace moesim
