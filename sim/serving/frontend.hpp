// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "sim/request_routing/active_experts.hpp"
#include "sim/request_routing/expert_history.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/serving/instance.hpp"

namespace moesim {

/// Front end at which requests wait until a router has given them a rank. Shows the router what it
/// needs, and carries out what it decides. Of several EP groups the router sees all ranks, those of
/// the first group first: its rank number is instance * dp + rank.
class Frontend {
 public:
  /// Routers have state: each run makes its own. The instances outlive this.
  Frontend(const Deployment&, std::vector<Instance*> instances, const RowSource&,
           Requests& requests);

  /// Before anything changes at `now`: statistics that were due meanwhile are published as they
  /// stood.
  void publish(Time now);
  void arrive(std::uint32_t request, Time now);
  /// A request is on none of the ranks any more.
  void left(std::uint32_t request, Time now);
  void finished(std::uint32_t request, Time now);
  /// Takes a request back that waits here. Whether it did.
  bool withdraw(std::uint32_t request);
  /// Lets the router place requests that wait, until it assigns none.
  void place(Time now);
  bool empty() const { return waiting_.empty(); }
  /// Requests that no rank has yet.
  std::int64_t waiting() const { return std::ssize(waiting_); }

 private:
  struct Waiting {
    std::uint32_t request;
    std::vector<BlockHash> hashes;  // RouterNeeds::prefixes
    std::vector<LikelyExpert> own;  // that its own tokens tell; RouterNeeds::experts_from
    std::vector<std::int64_t> prefill_counts;  // RouterNeeds::prefill_counts
  };
  std::vector<BlockHash> prompt_of(std::uint32_t request) const;
  std::vector<LikelyExpert> own_experts_of(std::uint32_t request) const;
  std::span<const LikelyExpert> experts_of(const Waiting&) const;
  void look_at_ranks();
  void place_in_pool(RankLoad&, std::size_t instance) const;
  void show_published(RankLoad&) const;
  void show(Time now);
  void show_kin(PendingRequest&, Time now) const;
  void show_experts(PendingRequest&, std::size_t place, std::size_t ranks);
  void carry_out(const Assignment&);

  const Deployment& deployment_;
  std::vector<Instance*> instances_;
  const RowSource& rows_;
  Requests& requests_;
  std::unique_ptr<RequestRouter> router_;
  RouterNeeds needs_;
  std::deque<Waiting> waiting_;
  std::vector<std::int32_t> finished_outputs_;
  ExpertHistory history_;
  ActiveExperts active_experts_;  // RouterNeeds::experts_read
  struct KinSeen {
    std::int32_t on_ranks = 0;  // requests
    Time left{};                // the last one
  };
  std::unordered_map<std::uint64_t, KinSeen> kin_;           // RouterNeeds::kin
  std::unordered_map<std::uint32_t, std::uint64_t> kin_of_;  // requests on ranks
  std::int64_t publication_ = 0;
  std::vector<RankLoad> published_;

  // View of the router: ranks are looked at again when something has changed on their group, the
  // rest is rebuilt for each call.
  struct Seen {
    std::int64_t changes = -1;
    std::ptrdiff_t ranks = 0;  // that were up
  };
  std::vector<Seen> seen_;  // [instances]
  std::vector<RankLoad> ranks_, ranks_of_instance_;
  std::vector<PendingRequest> pending_;
  std::vector<CacheHit> hits_;                        // [pending, ranks]
  std::vector<double> localities_;                    // [pending, ranks]
  std::vector<double> experts_read_, experts_added_;  // [pending, ranks]
  std::vector<Assignment> assignments_;
};

}  // namespace moesim
