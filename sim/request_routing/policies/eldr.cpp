// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include "hardware/at.hpp"
#include "sim/request_routing/balanced_clusters.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// ELDR [2607.00466]: each EP group, a decode worker, has a part of the space of signatures. A
// request's signature is how often its prefill chose each expert of each layer, times
//   idf = ln((N + 1) / (n + 1))      n: of N profiled requests those that chose the expert
// scaled to length 1. The groups in question have a centroid as like it as the best one, less the
// band, by the cosine. Of these the one with the fewest requests gets it. Ties: the likest, then
// the first. There the rank with the fewest requests, ties fewest KV tokens, then the lowest rank.
//
// Centroids are those of balanced k-means over the first `profile` requests of the run. The paper
// profiles offline. Until then requests go to the fewest requests.
class Eldr final : public OneByOneRouter {
 public:
  Eldr(ConfigReader& options, const RouterContext& context)
      : OneByOneRouter(options),
        seed_(context.seed),
        clusters_(at(context.groups)),
        band_(options.number("band")),
        profile_(at(options.integer("profile")) / clusters_ * clusters_) {
    if (profile_ == 0)
      options.child("profile").fail("is less than one request for each of {} EP groups", clusters_);
  }

  RouterNeeds needs() const override { return {.prefill_counts = true}; }

 private:
  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    const std::vector<double> signature = signature_of(request.prefill_counts);
    const auto groups = groups_of(ranks);
    std::vector<double> likeness;
    for (const auto& group : groups)
      likeness.push_back(centroids_.empty() ? 0
                                            : dot(signature, centroids_[at(group.front().group)]));
    if (centroids_.empty()) learn(request.prefill_counts);
    const double least_like = *std::ranges::max_element(likeness) - band_;
    std::optional<std::size_t> best;
    std::pair<std::int64_t, double> least;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (likeness[i] < least_like) continue;
      std::int64_t requests = 0;
      for (const RankLoad& rank : groups[i]) requests += rank.waiting + rank.running;
      const std::pair load{requests, -likeness[i]};
      if (best && load >= least) continue;
      best = i;
      least = load;
    }
    const auto chosen = std::ranges::min_element(groups[*best], {}, [](const RankLoad& rank) {
      return std::pair(rank.waiting + rank.running, rank.kv_tokens);
    });
    return {at(&*chosen - ranks.data()), likeness[*best]};
  }

  std::vector<double> signature_of(std::span<const std::int64_t> counts) const {
    if (idf_.empty()) return {};
    std::vector<double> signature(counts.begin(), counts.end());
    for (std::size_t i = 0; i < signature.size(); ++i) signature[i] *= idf_[i];
    normalize(signature);
    return signature;
  }

  void learn(std::span<const std::int64_t> counts) {
    seen_.emplace_back(counts.begin(), counts.end());
    if (seen_.size() < profile_) return;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto chose = std::ranges::count_if(seen_, [&](const auto& of) { return of[i] > 0; });
      idf_.push_back(std::log(static_cast<double>(profile_ + 1) / static_cast<double>(chose + 1)));
    }
    std::vector<std::vector<double>> signatures;
    for (const auto& of : seen_) signatures.push_back(signature_of(of));
    centroids_ = balanced_centroids(signatures, clusters_, Rng(seed_, "request_routing/eldr"));
    seen_.clear();
  }

  std::uint64_t seed_;
  std::size_t clusters_;
  double band_;
  std::size_t profile_;
  std::vector<std::vector<std::int64_t>> seen_;  // prefill counts of requests so far
  std::vector<double> idf_;                      // [layers * experts]
  std::vector<std::vector<double>> centroids_;   // [groups]
};

}  // namespace

std::span<const Key> eldr_router_keys() {
  static constexpr Key keys[] = {
      admission_key,
      {"band", form::number(0, 2), "0.1",
       "cosine that a group may be behind the group most like the request"},
      {"profile", form::integer(1, 1e5), "256", "first requests of a run, which are clustered"}};
  return keys;
}

RequestRouterFactory make_eldr_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(Eldr(options, context));
}

}  // namespace moesim
