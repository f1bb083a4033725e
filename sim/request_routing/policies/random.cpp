// SPDX-License-Identifier: Apache-2.0
#include "hardware/rng.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

class Random final : public OneByOneRouter {
 public:
  Random(ConfigReader& options, std::uint64_t seed)
      : OneByOneRouter(options), rng_(seed, "request_routing/random") {}

  Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    return {rng_.below(ranks.size())};
  }

 private:
  Rng rng_;
};

}  // namespace

RequestRouterFactory make_random_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(Random(options, context.seed));
}

}  // namespace moesim
