// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Consecutive steps of a run.
struct TimeBucket {
  double begin_s = 0, end_s = 0;
  std::int64_t steps = 0;
  double mean_step_ms = 0;
  std::optional<double> mean_itl_ms{};  ///< none where no second token fell
  std::int64_t output_tokens = 0;
  double imbalance = 0, balancedness = 0;
  double rebalancing_seconds = 0;
  double concurrency = 0;     ///< requests that step, weighted with the time of the steps
  double kv_utilization = 0;  ///< of the blocks over all ranks
};
Fields<TimeBucket> rows_of(const TimeBucket*);

/// A run as it went, from its first step to its last, the warm-up included. It has buckets of
/// equally many steps: between half of `most_buckets` and all once the run is that long.
class OverTime {
 public:
  static constexpr std::size_t most_buckets = 100;

  /// A step that ended at `now`.
  void add(const StepRecord&, Time now);
  /// For a group, or groups, with so many KV blocks.
  std::vector<TimeBucket> buckets(std::int64_t kv_blocks) const;

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
