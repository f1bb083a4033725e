// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"
#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

struct KvSum {
  double block_seconds = 0;
  std::int64_t blocks_peak = 0;
  std::int64_t preemptions = 0, recomputed = 0;
  std::int64_t prefix_queried = 0, prefix_hit = 0, prefix_loaded = 0;
  OfLowerTiers<std::int64_t> prefix_of_lower{};
  void add(const StepRecord&);
};

struct KvStats {
  int block_tokens = 0;
  std::int64_t blocks_per_rank = 0;
  double mean_utilization = 0, peak_utilization = 0;
  std::int64_t preemptions = 0;
  bool prefix_caching = false;
  std::int64_t prefix_queried_tokens = 0, prefix_hit_tokens = 0;
  double prefix_hit_rate = 0;
  Named<std::int64_t> prefix_hit_tokens_by_tier;  ///< HBM first; where there is a tier
  std::optional<double> prefix_loaded_rate;       ///< where there is a tier
  std::optional<std::int64_t> recomputed_tokens;  ///< where requests were preempted
};

/// Statistics of a group, or groups, with so many blocks that computed for `busy` seconds.
KvStats kv_of(const Deployment&, const KvSum&, std::int64_t total_blocks, double busy);

Fields<MemoryBudget> rows_of(const MemoryBudget*);
Fields<KvStats> rows_of(const KvStats*);

}  // namespace moesim
