// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "sim/experiment/experiment.hpp"
#include "sim/kv_tiers/kv_tier.hpp"
#include "sim/pool_roles/pool_roles.hpp"
#include "sim/report/measurement.hpp"
#include "sim/report/sections/outages.hpp"
#include "sim/report/sections/sampling.hpp"

namespace moesim {

struct Report;

/// An EP group, as a run leaves it.
struct InstanceRun {
  int number = 0;  ///< StepRecord::instance
  int shown = 0;   ///< the number that reports show: a group that changes pools keeps its own
  RebalancingLog rebalancing;
  std::vector<OutageRecord> outages;
};

/// A tier of the KV cache, as a run leaves it.
struct TierRun {
  std::size_t depth = 0;  ///< 0: the first one below HBM
  KvTierTally tally;
  std::int64_t capacity = 0;  ///< blocks
  std::int64_t ranks = 0;     ///< that shared it
};

/// Decisions of a router that takes time.
struct RouterTally {
  std::int64_t decisions = 0;
  Duration waited{};  ///< from a request's arrival at the router to its decision
  Time idle_from{};   ///< when the last decision is made: after the end if its client leaves before
};

/// EP groups alike that served behind one router, as a run leaves them.
struct PoolRun {
  const Deployment& deployment;
  Measurement& measurement;
  RouterTally router;
  std::vector<InstanceRun> instances;
  std::optional<SampledStats> sampled;  ///< nothing where every token was routed
  std::vector<TierRun> tiers;           ///< those of a depth are alike but for their ranks
};

/// Transfers from the prefill pool to the decode pool.
struct KvTransferTally {
  std::int64_t transfers = 0;
  Bytes bytes{};
  Seconds on_links{};
  Seconds waited{};   ///< for a link that was taken
  Seconds exposed{};  ///< between first tokens and the KV caches' arrivals, waiting included
};

/// Traffic between two pools.
struct BetweenPools {
  KvTransferTally kv;
  std::vector<RoleChange> role_changes;
};

/// Writes up a run that ended at `now`: of one pool, or of a prefill and a decode pool.
Report write_up(const Experiment&, std::span<const PoolRun> pools, const BetweenPools&,
                const Requests&, std::span<const SessionLife>, Time now);

}  // namespace moesim
