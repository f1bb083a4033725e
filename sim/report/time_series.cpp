// SPDX-License-Identifier: Apache-2.0
#include "sim/report/time_series.hpp"

#include <numeric>

#include "sim/report/statistics.hpp"

namespace moesim {

OverTime::Bucket& OverTime::Bucket::operator+=(const Bucket& later) {
  end = later.end;
  add_members<&Bucket::steps, &Bucket::seconds, &Bucket::rebalancing_seconds, &Bucket::max_tokens,
              &Bucket::mean_tokens, &Bucket::gaps_ms, &Bucket::sequence_seconds,
              &Bucket::kv_block_seconds, &Bucket::gaps, &Bucket::tokens>(*this, later);
  return *this;
}

void OverTime::add(const StepRecord& record, Time now) {
  const StepCost& cost = record.cost;
  Bucket step;
  step.begin = record.step.start;
  step.end = now;
  step.steps = 1;
  step.seconds = cost.total.count();
  for (const RankStep& rank : record.batch.ranks) {
    if (!rank.dummy) step.sequence_seconds += double(rank.sequences.size()) * step.seconds;
  }
  step.kv_block_seconds = double(record.step.kv_blocks_used) * step.seconds;
  const auto& moving = cost.parts[at(Part::rebalancing)];
  step.rebalancing_seconds = std::accumulate(moving.begin(), moving.end(), 0.0);
  const TokenBalance balance = cost.token_balance();
  step.max_tokens = balance.max_tokens;
  step.mean_tokens = balance.mean_tokens;
  step.tokens = record.tokens;
  for (const TokenGap& gap : record.gaps) {
    step.gaps_ms += to_seconds(gap.length).count() * 1e3 * double(gap.tokens);
    step.gaps += gap.tokens;
  }

  if (!buckets_.empty() && buckets_.back().steps < steps_per_bucket_) {
    buckets_.back() += step;
    return;
  }
  if (buckets_.size() == most_buckets) {  // all full: pairs become one
    steps_per_bucket_ *= 2;
    for (std::size_t i = 0; i < most_buckets / 2; ++i) {
      buckets_[i] = buckets_[2 * i];
      buckets_[i] += buckets_[2 * i + 1];
    }
    buckets_.resize(most_buckets / 2);
  }
  buckets_.push_back(step);
}

std::vector<TimeBucket> OverTime::buckets(std::int64_t kv_blocks) const {
  std::vector<TimeBucket> all;
  for (const Bucket& b : buckets_) {
    TimeBucket& bucket = all.emplace_back();
    bucket.begin_s = to_seconds(b.begin).count();
    bucket.end_s = to_seconds(b.end).count();
    bucket.steps = b.steps;
    bucket.mean_step_ms = ratio(b.seconds * 1e3, double(b.steps));
    if (b.gaps > 0) bucket.mean_itl_ms = b.gaps_ms / double(b.gaps);
    bucket.output_tokens = b.tokens;
    bucket.imbalance = ratio(b.max_tokens, b.mean_tokens);
    bucket.balancedness = ratio(b.mean_tokens, b.max_tokens);
    bucket.rebalancing_seconds = b.rebalancing_seconds;
    bucket.concurrency = ratio(b.sequence_seconds, b.seconds);
    bucket.kv_utilization = ratio(b.kv_block_seconds, b.seconds * double(kv_blocks));
  }
  return all;
}

Fields<TimeBucket> rows_of(const TimeBucket*) {
  using enum Better;
  using S = TimeBucket;
  return {
      {"begin_s", &S::begin_s, "when its first step began", "s"},
      {"end_s", &S::end_s, "when its last step ended", "s"},
      {"steps", &S::steps, "steps of the bucket"},
      {"mean_step_ms", &S::mean_step_ms, "a step", "ms", less},
      {"mean_itl_ms", &S::mean_itl_ms,
       "time between two tokens of a request; null where no second token fell", "ms", less},
      {"output_tokens", &S::output_tokens, "tokens emitted", "tokens", more},
      {"imbalance", &S::imbalance, "tokens of the busiest EP rank over the mean", "max/mean", less},
      {"balancedness", &S::balancedness, "the inverse", "mean/max", more},
      {"rebalancing_seconds", &S::rebalancing_seconds, "time that rebalancing took from steps", "s",
       less},
      {"concurrency", &S::concurrency, "requests in a step, weighted with its time"},
      {"kv_utilization", &S::kv_utilization, "blocks held, over steps' time", "share"}};
}

}  // namespace moesim
