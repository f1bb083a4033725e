// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

std::int64_t requests_on(const RankLoad& rank) { return rank.waiting + rank.running; }

std::int64_t requests_of(std::span<const RankLoad> ranks) {
  std::int64_t requests = 0;
  for (const RankLoad& rank : ranks) requests += requests_on(rank);
  return requests;
}

// Like goes to like, in groups about equally large. Among the EP groups with
//   n_g - min n <= slack n / G      n_g: requests on group g, n: on all G groups
// chooses the one that reads the most of the request's experts already: the least sum over them of
//   p prod (1 - p')                 p: how likely its token picks one, p' a token of the group's
// Ties: fewest requests, then the first. Within the group the rank with the fewest requests, ties
// fewest KV tokens, then the lowest rank. (activation_aware weighs a group's whole step, by which
// the group that reads least wins: like and unlike then mix for the sake of balance.)
class Affinity final : public OneByOneRouter {
 public:
  Affinity(ConfigReader& options, const RouterContext&)
      : OneByOneRouter(options),
        slack_(options.number("slack")),
        experts_from_(read_experts_from(options)) {}

  RouterNeeds needs() const override {
    return {.experts_read = true, .experts_from = experts_from_};
  }

 private:
  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    const auto groups = groups_of(ranks);
    const double share =
        static_cast<double>(requests_of(ranks)) / static_cast<double>(groups.size());
    const std::int64_t fewest = requests_of(*std::ranges::min_element(groups, {}, requests_of));
    const std::span<const RankLoad>* best = nullptr;
    std::pair<double, std::int64_t> least_added;
    for (const auto& group : groups) {
      const std::int64_t requests = requests_of(group);
      const auto rank = at(group.front().rank);
      const std::pair added{request.experts_added[rank], requests};
      const bool near = static_cast<double>(requests - fewest) <= slack_ * share;
      if (near && (best == nullptr || added < least_added)) {
        best = &group;
        least_added = added;
      }
    }
    const auto chosen = std::ranges::min_element(*best, {}, [](const RankLoad& rank) {
      return std::pair(requests_on(rank), rank.kv_tokens);
    });
    return {at(&*chosen - ranks.data()), least_added.first};
  }

  double slack_;
  ExpertsFrom experts_from_;
};

}  // namespace

std::span<const Key> affinity_router_keys() {
  static constexpr Key keys[] = {
      admission_key,
      {"slack", form::number(0, 100), "0.25",
       "share of a group's mean requests by which one may exceed the smallest"},
      experts_from_key};
  return keys;
}

RequestRouterFactory make_affinity_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(Affinity(options, context));
}

}  // namespace moesim
