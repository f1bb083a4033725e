// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/fields.hpp"

namespace moesim {

struct PoolRun;

/// Transfers over one direction of the links to a tier.
struct TierLinkStats {
  std::int64_t transfers = 0;
  double bytes = 0, busy_share = 0;
};

/// A memory below HBM that keeps blocks of the KV cache: over all of the pool's, whole run.
struct TierStats {
  std::string per;
  std::int64_t tiers = 0, capacity_blocks = 0;  ///< each
  double capacity_bytes = 0;                    ///< each
  TierLinkStats read, write;
  std::optional<double> passed_bytes, kept_bytes;  ///< of the first of several tiers
  double evicted_bytes = 0, dead_bytes = 0, refused_bytes = 0;
  double mean_fill = 0, peak_fill = 0;
  std::int64_t given_up_loads = 0;
  double mean_wait_ms = 0, p99_wait_ms = 0;
  std::optional<double> held_up_seconds;  ///< where the first one's link is shared
};

Named<TierStats> tiers_of(const PoolRun&);

Fields<TierStats> rows_of(const TierStats*);

}  // namespace moesim
