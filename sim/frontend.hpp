// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "sim/instance.hpp"
#include "sim/request_routing/expert_history.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

/// Where requests wait until a router has given them a rank: shows the router what it needs, and
/// carries out what it decides.
class Frontend {
 public:
  /// Routers have state: each run makes its own.
  Frontend(const Experiment&, const RowSource&, std::vector<RequestRecord>& requests);

  /// Before anything changes at `now`: statistics that were due meanwhile are published as they
  /// stood.
  void publish(Time now, Instance&);
  void arrive(std::uint32_t request);
  void finished(std::uint32_t request);
  /// Takes a request back that waits here. Whether it did.
  bool withdraw(std::uint32_t request);
  /// Lets the router place who waits, as long as it does.
  void place(Time now, Instance&);
  bool empty() const { return waiting_.empty(); }

 private:
  struct Waiting {
    std::uint32_t request;
    std::vector<BlockHash> hashes;  // RouterNeeds::prefixes
  };
  std::vector<BlockHash> prompt_of(std::uint32_t request) const;
  void show(Instance&);
  void carry_out(const Assignment&, Instance&);

  const Experiment& experiment_;
  const RowSource& rows_;
  std::vector<RequestRecord>& requests_;
  std::unique_ptr<RequestRouter> router_;
  RouterNeeds needs_;
  std::deque<Waiting> waiting_;
  std::vector<std::int32_t> finished_outputs_;
  ExpertHistory history_;
  std::int64_t publication_ = 0;
  std::vector<RankLoad> published_;

  // What the router is shown, rebuilt for each call.
  std::vector<RankLoad> ranks_;
  std::vector<PendingRequest> pending_;
  std::vector<CacheHit> hits_;      // [pending, ranks]
  std::vector<double> localities_;  // [pending, ranks]
  std::vector<Assignment> assignments_;
};

/// What a router is built with in this experiment.
RouterContext router_context(const Experiment&);

}  // namespace moesim
