// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hardware/sums.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// The first over the second; 0 where the second is.
inline double ratio(double a, double b) { return b == 0 ? 0 : a / b; }

/// Mean, population standard deviation and percentiles (linear interpolation, as numpy does) of a
/// set of samples. All zero when there are none.
struct Summary {
  std::size_t count = 0;
  double mean = 0, std = 0, min = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
Summary summarize(std::vector<double> samples);

/// The quantile of values, straight between the two around it, as numpy has it; 0 of none.
double interpolated(std::vector<double> values, double share);
/// The smallest of the values that at least `share` of them do not exceed; 0 of none.
double nearest_rank(std::vector<double> values, double share);

/// The middle one of these values, the mean of two; 0 of none.
double median(std::vector<double> values);

/// Experts of a layer with tokens where tokens choose k of them independently and each is as
/// likely: experts x (1 - (1 - k / experts)^tokens). Expert groups leave that as it is.
double uniformly_active(int experts, int k, double tokens);

/// A duration that occurred `count` times. Twelve bytes, as a long run holds millions.
class Repeated {
 public:
  Repeated(Duration duration, std::uint32_t count)
      : high_(static_cast<std::uint32_t>(duration.count() >> 32)),
        low_(static_cast<std::uint32_t>(duration.count())),
        count_(count) {}
  Duration duration() const { return Duration((std::int64_t{high_} << 32) | low_); }
  std::uint32_t count() const { return count_; }
  /// Occurred so many times more.
  void repeat(std::uint32_t times) { count_ += times; }

 private:
  std::uint32_t high_, low_, count_;
};
static_assert(sizeof(Repeated) == 12);
/// The summary of durations in ms, each of which stands for `count` alike.
Summary summarize(std::vector<Repeated> samples);

/// Counts of whole numbers >= 0 in constant memory: exact below 1,024, in buckets at most 0.8 %
/// wide above.
class CountHistogram {
 public:
  void add(std::int64_t value, std::int64_t times = 1);
  /// Each of the values so many times.
  void add(std::span<const std::int32_t> values, std::int64_t times);
  std::int64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  std::int64_t max() const { return max_; }
  /// The smallest recorded value (bucket floor) that at least a share `q` of the samples does not
  /// exceed.
  std::int64_t quantile(double q) const;

 private:
  void carry();

  std::vector<std::int64_t> buckets_;
  // Counts of `uncarried_` values below 1,024 more: a quarter of the size. Steps of many layers
  // fill many histograms, which leave the near caches from step to step.
  std::vector<std::uint16_t> narrow_;
  std::int64_t uncarried_ = 0;
  std::int64_t count_ = 0;
  double sum_ = 0;
  std::int64_t max_ = 0;
};

}  // namespace moesim
