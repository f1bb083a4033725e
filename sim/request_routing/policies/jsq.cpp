// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// Join the shortest queue: argmin of waiting + running; ties fewest KV tokens, then lowest rank.
class ShortestQueue final : public OneByOneRouter {
 public:
  using OneByOneRouter::OneByOneRouter;

  Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    scores_.clear();
    for (const RankLoad& r : ranks) scores_.push_back(static_cast<double>(r.waiting + r.running));
    const std::size_t best = least(scores_, ranks);
    return {best, scores_[best]};
  }

 private:
  std::vector<double> scores_;
};

}  // namespace

RequestRouterFactory make_jsq_router(ConfigReader& options, const RouterContext&) {
  return copies_of(ShortestQueue(options));
}

}  // namespace moesim
