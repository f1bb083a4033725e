// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sim/serving/instance.hpp"

namespace moesim {

/// A run as it went, from its first step to its last, the warm-up included: buckets of equally many
/// steps, of which there are between half of `most_buckets` and all once the run is that long.
class OverTime {
 public:
  static constexpr std::size_t most_buckets = 100;

  /// A step that ended at `now`.
  void add(const Instance&, const StepOutcome&, Time now);
  /// [{begin_s, end_s, steps, mean_step_ms, mean_itl_ms, output_tokens, imbalance, balancedness,
  ///   rebalancing_seconds, concurrency, kv_utilization}]; mean_itl_ms is null where no second
  /// token fell. Concurrency counts the requests that step, weighted with the time of the steps;
  /// KV utilisation is of `kv_blocks` over all ranks.
  OrderedJson report(std::int64_t kv_blocks) const;

 private:
  struct Bucket {
    Time begin{}, end{};
    std::int64_t steps = 0;
    double seconds = 0, rebalancing_seconds = 0;
    double max_tokens = 0, mean_tokens = 0;
    double gaps_ms = 0;
    double sequence_seconds = 0, kv_block_seconds = 0;
    std::int64_t gaps = 0, tokens = 0;
    Bucket& operator+=(const Bucket&);
  };

  std::int64_t steps_per_bucket_ = 1;
  std::vector<Bucket> buckets_;
};

}  // namespace moesim
