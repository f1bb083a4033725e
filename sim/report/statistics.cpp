// SPDX-License-Identifier: Apache-2.0
#include "sim/report/statistics.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace moesim {

namespace {

constexpr int exact_bits = 10;  // values below 2^10 have a bucket each
constexpr int split_bits = 7;   // above, 2^7 buckets per power of two

std::size_t bucket_of(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (bits < (1U << exact_bits)) return at(bits);
  const int exponent = static_cast<int>(std::bit_width(bits)) - 1;
  const std::uint64_t mantissa = (bits >> (exponent - split_bits)) & ((1U << split_bits) - 1);
  return (std::size_t{1} << exact_bits) + (at(exponent - exact_bits) << split_bits) + at(mantissa);
}

std::int64_t floor_of(std::size_t bucket) {
  if (bucket < (std::size_t{1} << exact_bits)) return static_cast<std::int64_t>(bucket);
  const std::size_t above = bucket - (std::size_t{1} << exact_bits);
  const int exponent = exact_bits + static_cast<int>(above >> split_bits);
  const std::uint64_t mantissa = above & ((1U << split_bits) - 1);
  return static_cast<std::int64_t>(((std::uint64_t{1} << split_bits) + mantissa)
                                   << (exponent - split_bits));
}

double value_of(double sample) { return sample; }
double value_of(const Repeated& sample) { return to_seconds(sample.duration()).count() * 1e3; }
std::int64_t count_of(double /*sample*/) { return 1; }
std::int64_t count_of(const Repeated& sample) { return sample.count(); }

// The value at `index` of sorted samples written out one by one.
double value_at(std::span<const double> samples, std::int64_t index) { return samples[at(index)]; }
double value_at(std::span<const Repeated> samples, std::int64_t index) {
  auto sample = samples.begin();
  while (index >= sample->count()) index -= (sample++)->count();
  return value_of(*sample);
}

// The quantile of `count` sorted values.
template <class Samples>
double between(const Samples& samples, std::int64_t count, double share) {
  const double place = share * static_cast<double>(count - 1);
  const auto below = static_cast<std::int64_t>(place);
  const double low = value_at(samples, below);
  const double high = value_at(samples, std::min(below + 1, count - 1));
  return low + (high - low) * (place - static_cast<double>(below));
}

template <class Sample>
Summary summary_of(std::vector<Sample> samples) {
  Summary summary;
  if (samples.empty()) return summary;
  std::sort(samples.begin(), samples.end(),
            [](const Sample& a, const Sample& b) { return value_of(a) < value_of(b); });
  std::int64_t count = 0;
  double sum = 0;
  for (const Sample& sample : samples) {
    count += count_of(sample);
    sum += value_of(sample) * static_cast<double>(count_of(sample));
  }
  const auto n = static_cast<double>(count);
  summary.count = at(count);
  summary.mean = sum / n;
  double squares = 0;
  for (const Sample& sample : samples) {
    const double deviation = value_of(sample) - summary.mean;
    squares += deviation * deviation * static_cast<double>(count_of(sample));
  }
  summary.std = std::sqrt(squares / n);
  const auto percentile = [&](double q) {
    return between(std::span<const Sample>(samples), count, q);
  };
  summary.min = value_of(samples.front());
  summary.p50 = percentile(.50);
  summary.p90 = percentile(.90);
  summary.p95 = percentile(.95);
  summary.p99 = percentile(.99);
  summary.max = value_of(samples.back());
  return summary;
}

}  // namespace

Summary summarize(std::vector<double> samples) { return summary_of(std::move(samples)); }

Summary summarize(std::vector<Repeated> samples) {
  std::erase_if(samples, [](const Repeated& sample) { return sample.count() == 0; });
  return summary_of(std::move(samples));
}

double uniformly_active(int experts, int k, double tokens) {
  if (experts == 0) return 0;
  return experts * (1 - std::pow(1 - static_cast<double>(k) / experts, tokens));
}

double interpolated(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return between(std::span<const double>(values), std::ssize(values), share);
}

double nearest_rank(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

double median(std::vector<double> values) { return interpolated(std::move(values), 0.5); }

void CountHistogram::add(std::int64_t value, std::int64_t times) {
  const std::size_t bucket = bucket_of(value);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  buckets_[bucket] += times;
  count_ += times;
  sum_ += static_cast<double>(value) * static_cast<double>(times);
  max_ = std::max(max_, value);
}

void CountHistogram::add(std::span<const std::int32_t> values, std::int64_t times) {
  std::int64_t sum = 0;
  std::int32_t bits = 0;  // of all values: the largest is no more
  for (const std::int32_t value : values) {
    sum += value;
    bits |= value;
  }
  if (bucket_of(bits) >= buckets_.size()) buckets_.resize(bucket_of(bits) + 1);
  constexpr std::int64_t countable = std::numeric_limits<std::uint16_t>::max();
  if (times == 1 && bits < 1 << exact_bits && std::ssize(values) <= countable) {
    if (uncarried_ + std::ssize(values) > countable) carry();
    uncarried_ += std::ssize(values);
    narrow_.resize(std::size_t{1} << exact_bits);
    for (const std::int32_t value : values) ++narrow_[at(value)];
  } else {
    for (const std::int32_t value : values) buckets_[bucket_of(value)] += times;
  }
  count_ += std::ssize(values) * times;
  sum_ += static_cast<double>(sum) * static_cast<double>(times);
  if (bits > max_) max_ = std::max<std::int64_t>(max_, std::ranges::max(values));
}

void CountHistogram::carry() {
  const std::size_t used = std::min(narrow_.size(), buckets_.size());
  for (std::size_t bucket = 0; bucket < used; ++bucket)
    buckets_[bucket] += std::exchange(narrow_[bucket], std::uint16_t{0});
  uncarried_ = 0;
}

std::int64_t CountHistogram::quantile(double q) const {
  const auto wanted = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(count_)));
  std::int64_t seen = 0;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    seen += buckets_[bucket] + (bucket < narrow_.size() ? narrow_[bucket] : 0);
    if (seen >= wanted && seen > 0) return floor_of(bucket);
  }
  return 0;
}

}  // namespace moesim
