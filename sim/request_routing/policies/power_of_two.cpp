// SPDX-License-Identifier: Apache-2.0
#include "hardware/rng.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// Mitzenmacher (2001): of two distinct ranks at random the one with fewer KV tokens, ties to the
// lower rank.
class PowerOfTwo final : public OneByOneRouter {
 public:
  PowerOfTwo(ConfigReader& options, std::uint64_t seed)
      : OneByOneRouter(options), rng_(seed, "request_routing/power_of_two") {}

  Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    std::size_t a = rng_.below(ranks.size());
    std::size_t b = ranks.size() == 1 ? a : rng_.below(ranks.size() - 1);
    if (ranks.size() > 1 && b >= a) ++b;
    if (a > b) std::swap(a, b);
    const std::size_t chosen = ranks[b].kv_tokens < ranks[a].kv_tokens ? b : a;
    return {chosen, static_cast<double>(ranks[chosen].kv_tokens)};
  }

 private:
  Rng rng_;
};

}  // namespace

RequestRouterFactory make_power_of_two_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(PowerOfTwo(options, context.seed));
}

}  // namespace moesim
