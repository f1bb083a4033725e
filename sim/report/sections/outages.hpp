// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/failures/recovery.hpp"
#include "sim/rebalancing/relocation.hpp"
#include "sim/report/fields.hpp"

namespace moesim {

struct PoolRun;

/// An outage in a run that ended at some time.
struct OutageStats {
  OutageRecord outage;
  double gpu_seconds_down = 0;
  std::optional<std::int64_t> kv_blocks;  ///< given up for experts, as the next two, if any were
  std::optional<std::int64_t> preempted;
  std::optional<double> kv_seconds;
  std::optional<int> instance;  ///< where there are several
};

RebalancingLog rebalancing_of(const PoolRun&);
std::vector<OutageStats> failures_of(const PoolRun&, Time now);

Fields<RebalancingLog> rows_of(const RebalancingLog*);
Fields<OutageStats> rows_of(const OutageStats*);

}  // namespace moesim
