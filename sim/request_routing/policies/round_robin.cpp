// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hardware/rng.hpp"
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

// Front ends take requests in turn, and each takes EP groups in a turn of its own, from a group at
// random on. The group's engine takes its ranks in turn.
class FrontEndsInTurn final : public OneByOneRouter {
 public:
  FrontEndsInTurn(ConfigReader& options, int front_ends, const RouterContext& context)
      : OneByOneRouter(options),
        rank_of_group_(at(context.groups), 0),
        ranks_of_group_(context.ranks_of_group()) {
    Rng rng(context.seed, "request_routing/front_ends");
    const auto groups = static_cast<std::uint64_t>(context.groups);
    for (int i = 0; i < front_ends; ++i) group_of_front_end_.push_back(rng.below(groups));
  }

  Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    std::size_t& turn = group_of_front_end_[served_++ % group_of_front_end_.size()];
    const auto group_at = [&](const RankLoad& load) { return at(load.rank / ranks_of_group_); };
    auto chosen = std::ranges::lower_bound(ranks, turn, {}, group_at);
    if (chosen == ranks.end()) chosen = ranks.begin();
    const std::size_t group = group_at(*chosen);
    std::int32_t& rank = rank_of_group_[group];
    const auto first = chosen;
    while (chosen != ranks.end() && group_at(*chosen) == group && chosen->rank < rank) ++chosen;
    if (chosen == ranks.end() || group_at(*chosen) != group) chosen = first;
    turn = (group + 1) % rank_of_group_.size();
    rank = chosen->rank + 1;
    return {at(chosen - ranks.begin())};
  }

 private:
  std::vector<std::size_t> group_of_front_end_;  // next for each
  std::vector<std::int32_t> rank_of_group_;      // next for each
  std::int32_t ranks_of_group_;
  std::size_t served_ = 0;
};

}  // namespace

std::span<const Key> round_robin_router_keys() {
  static constexpr Key keys[] = {admission_key,
                                 {"front_ends", form::integer(1, 1024), "1",
                                  "front ends behind a proxy that takes them in turn"}};
  return keys;
}

RequestRouterFactory make_round_robin_router(ConfigReader& options, const RouterContext& context) {
  const auto front_ends = static_cast<int>(options.integer("front_ends"));
  if (front_ends == 1) return copies_of(RoundRobin(options));
  return copies_of(FrontEndsInTurn(options, front_ends, context));
}

}  // namespace moesim
