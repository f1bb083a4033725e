// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// Takes the first rank offered from the one after the last choice on, round and round.
class RoundRobin final : public OneByOneRouter {
 public:
  using OneByOneRouter::OneByOneRouter;

  Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    std::size_t index = 0;
    while (index < ranks.size() && ranks[index].rank < next_) ++index;
    if (index == ranks.size()) index = 0;
    next_ = ranks[index].rank + 1;
    return {index};
  }

 private:
  std::int32_t next_ = 0;
};

}  // namespace

RequestRouterFactory make_round_robin_router(ConfigReader& options, const RouterContext&) {
  return copies_of(RoundRobin(options));
}

}  // namespace moesim
