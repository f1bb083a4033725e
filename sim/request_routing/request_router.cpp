// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>

#include "hardware/choice.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<RequestRouterFactory, const RouterContext&>::Maker make_random_router,
    make_round_robin_router, make_power_of_two_router, make_jsq_router, make_vllm_router,
    make_least_kv_router, make_br0_router, make_brh_router, make_bfio_router, make_overflow_router,
    make_fast_phi_router, make_cache_aware_router, make_dynamo_kv_router, make_joint_router,
    make_activation_aware_router, make_affinity_router, make_eldr_router, make_sticky_router;
Keys round_robin_router_keys, vllm_router_keys, br0_router_keys, brh_router_keys, bfio_router_keys,
    fast_phi_router_keys, cache_aware_router_keys, dynamo_kv_router_keys, joint_router_keys,
    activation_aware_router_keys, affinity_router_keys, eldr_router_keys, sticky_router_keys;

OneByOneRouter::OneByOneRouter(ConfigReader& options) {
  central_ = choice<Admission>(options, "admission", admission_names) == Admission::central;
}

void OneByOneRouter::route(const RoutingState& state, std::vector<Assignment>& assignments) {
  const PendingRequest& request = state.pending.front();
  std::span<const RankLoad> ranks = state.ranks;
  if (central_) {
    offered_.clear();
    std::ranges::copy_if(ranks, std::back_inserter(offered_), [&](const RankLoad& rank) {
      return rank.seats > 0 && request.blocks <= rank.free_blocks();
    });
    ranks = offered_;
  }
  if (ranks.empty()) return;
  const Choice choice = pick(request, ranks, state);
  assignments.push_back({0, ranks[choice.index].rank, choice.score});
}

std::size_t least(std::span<const double> scores, std::span<const RankLoad> ranks) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (std::tuple(scores[i], ranks[i].kv_tokens) < std::tuple(scores[best], ranks[best].kv_tokens))
      best = i;
  }
  return best;
}

std::span<const RankLoad> group_of(std::span<const RankLoad> ranks, std::size_t place) {
  const std::int32_t group = ranks[place].group;
  return {std::ranges::lower_bound(ranks, group, {}, &RankLoad::group),
          std::ranges::upper_bound(ranks, group, {}, &RankLoad::group)};
}

std::vector<std::span<const RankLoad>> groups_of(std::span<const RankLoad> ranks) {
  std::vector<std::span<const RankLoad>> groups;
  for (std::size_t i = 0; i < ranks.size(); i += groups.back().size()) {
    groups.push_back(group_of(ranks, i));
  }
  return groups;
}

std::int64_t barrier_of(std::span<const RankLoad> group) {
  return std::ranges::max_element(group, {}, &RankLoad::kv_tokens)->kv_tokens;
}

std::int64_t least_barrier(std::span<const RankLoad> ranks) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto group : groups_of(ranks)) least = std::min(least, barrier_of(group));
  return least;
}

namespace {

std::span<const Key> one_by_one_keys() {
  static constexpr Key keys[] = {admission_key};
  return keys;
}

}  // namespace

ExpertsFrom read_experts_from(ConfigReader& options) {
  return choice<ExpertsFrom>(options, "experts_from", experts_from_names);
}

const Registry<RequestRouterFactory, const RouterContext&>& request_routers() {
  static const Registry<RequestRouterFactory, const RouterContext&> table(
      "request_routing",
      {{"random", "a rank at random", make_random_router, one_by_one_keys},
       {"round_robin", "ranks in turn", make_round_robin_router, round_robin_router_keys},
       {"power_of_two", "of two ranks at random the one with fewer KV tokens",
        make_power_of_two_router, one_by_one_keys},
       {"jsq", "the rank with the fewest requests, waiting and running", make_jsq_router,
        one_by_one_keys},
       {"vllm", "least 4 * waiting + running, by statistics up to 100 ms old", make_vllm_router,
        vllm_router_keys},
       {"least_kv", "the rank with the fewest KV tokens, waiting and running", make_least_kv_router,
        one_by_one_keys},
       {"br0", "BalanceRoute: the least barrier idle now; one request at a time, or a pool",
        make_br0_router, br0_router_keys},
       {"brh", "BalanceRoute: the same over a horizon of predicted loads", make_brh_router,
        brh_router_keys},
       {"bfio", "BF-IO: subsets of a pool that fill ranks up to the most loaded over a horizon",
        make_bfio_router, bfio_router_keys},
       {"overflow", "least expected overflow over the life of a request, by observed survival",
        make_overflow_router, one_by_one_keys},
       {"fast_phi", "the same at a few quantiles of the output lengths", make_fast_phi_router,
        fast_phi_router_keys},
       {"cache_aware", "SGLang: the longest known prefix, the shortest queue when unbalanced",
        make_cache_aware_router, cache_aware_router_keys},
       {"dynamo_kv", "Dynamo: least prefill blocks after cache hits plus decode blocks",
        make_dynamo_kv_router, dynamo_kv_router_keys},
       {"joint", "prefill saved, experts on the rank's GPUs and load, in seconds",
        make_joint_router, joint_router_keys},
       {"activation_aware",
        "the EP group whose step, KV and experts read, is shortest with the request",
        make_activation_aware_router, activation_aware_router_keys},
       {"affinity",
        "the EP group, of those about as small as any, that reads most of its experts already",
        make_affinity_router, affinity_router_keys},
       {"eldr",
        "ELDR: the EP group whose cluster a request's prefill experts are like, if not full",
        make_eldr_router, eldr_router_keys},
       {"sticky", "the rank that has the session's earlier requests; a first one by another router",
        make_sticky_router, sticky_router_keys}});
  return table;
}

}  // namespace moesim
