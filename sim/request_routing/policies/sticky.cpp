// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// Session affinity, as in [Dynamo]: the first request of a session goes where another router sends
// it, later ones to the same rank, however loaded. The bond is void if the rank is gone, or once no
// request of the session has been on a rank for longer than `ttl`. By parent, what holds of a
// session holds of the children of one agent, and of the main agent by itself. Requests of no
// session go where the other router sends them.
class Sticky final : public RequestRouter {
 public:
  Sticky(std::unique_ptr<RequestRouter> other, Kin by, std::optional<Duration> ttl)
      : other_(std::move(other)), by_(by), ttl_(ttl) {}

  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    free_.clear();
    places_.clear();
    first_of_.clear();
    for (std::size_t i = 0; i < state.pending.size(); ++i) {
      const PendingRequest& request = state.pending[i];
      if (const auto rank = bond(request, state.ranks)) {
        assignments.push_back({i, *rank});
        continue;
      }
      // One of its kin at a time: where it goes the others follow.
      if (request.kin && !first_of_.insert(*request.kin).second) continue;
      free_.push_back(request);
      places_.push_back(i);
    }
    // The other router shall see the load of those that are bound: it is asked when they are there.
    if (!assignments.empty() || free_.empty()) return;
    RoutingState seen = state;
    seen.pending = free_;
    other_->route(seen, assignments);
    for (Assignment& assignment : assignments) {
      const auto& kin = free_[assignment.pending].kin;
      if (kin) rank_of_[*kin] = assignment.rank;
      assignment.pending = places_[assignment.pending];
    }
  }
  RouterNeeds needs() const override {
    RouterNeeds needs = other_->needs();
    needs.kin = by_;
    return needs;
  }

 private:
  std::optional<std::int32_t> bond(const PendingRequest& request,
                                   std::span<const RankLoad> ranks) const {
    if (!request.kin || (ttl_ && request.kin_idle > *ttl_)) return std::nullopt;
    const auto bound = rank_of_.find(*request.kin);
    if (bound == rank_of_.end()) return std::nullopt;
    const bool up = std::ranges::binary_search(ranks, bound->second, {}, &RankLoad::rank);
    return up ? std::optional(bound->second) : std::nullopt;
  }

  std::unique_ptr<RequestRouter> other_;
  Kin by_;
  std::optional<Duration> ttl_;
  std::unordered_map<std::uint64_t, std::int32_t> rank_of_;  // [kin]
  // Pending requests that the other router is shown, and their places.
  std::vector<PendingRequest> free_;
  std::vector<std::size_t> places_;
  std::unordered_set<std::uint64_t> first_of_;
};

constexpr std::array<std::string_view, 2> by_names{"session", "parent"};

}  // namespace

std::span<const Key> sticky_router_keys() {
  static constexpr Key keys[] = {
      {"by", form::choice(by_names), "session",
       "what has one rank: a session, or the children of one agent"},
      {"ttl", form::time, unset("none"), "idle time after which a session is placed anew"},
      {"else", form::policy("request_routing"), "least_kv",
       "which rank has a session's first request"}};
  return keys;
}

RequestRouterFactory make_sticky_router(ConfigReader& options, const RouterContext& context) {
  const Kin by = options.choice("by") == 0 ? Kin::session : Kin::siblings;
  std::optional<Duration> ttl;
  if (options.optional("ttl")) ttl = to_duration(options.quantity<Seconds>("ttl"));
  const ConfigNode other = options.child("else");
  const Json named = other.as_policy().json();
  if (named.is_object() && named.contains("type") && named["type"] == "sticky")
    other.fail("a sticky router within another one decides nothing; name another type");
  return [other = request_routers().make(other, context), by, ttl] {
    return std::make_unique<Sticky>(other(), by, ttl);
  };
}

}  // namespace moesim
