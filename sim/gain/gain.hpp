// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesim {

/// Change of a candidate against a baseline: below 0 the candidate has less.
struct SampledGain {
  double change = 0;         ///< as measured
  double low = 0, high = 0;  ///< the middle 90 % of worlds
  double p_less = 0.5;       ///< share of worlds where the candidate has less; a tie is half of one
};

/// Gain by its changes in worlds that could as well be true.
SampledGain gain_of(double change, std::vector<double> in_worlds);

/// Samples of one quantity, in an order that all candidates share.
struct Sampled {
  std::span<const double> values;
  /// The same samples, each under prices that could as well be true; or none.
  std::span<const double> off_price{};
};

/// Worlds that could as well have been sampled, the same for all candidates. Deals are drawn with
/// replacement, each with all its samples; of one deal samples are. Prices are off as in one sample
/// at random.
///
/// Resampled means of few samples lie too close together. So they are drawn apart as far as
/// Student's t is wider than a normal, and by sqrt(n / (n - 1)). Then the interval of two to five
/// samples holds the truth about as often as that of many.
class Worlds {
 public:
  /// Samples stand deal by deal, as many of each: at least two deals, or two samples of one.
  explicit Worlds(std::size_t samples, std::size_t deals = 1);

  /// The mean in each world.
  std::vector<double> means(const Sampled&) const;
  /// Change of the mean, in percent. A candidate that has less in every sample has P >= 1 - 2^-n
  /// by n deals, or by n samples of one: so rarely does a fair coin fall n times on that side.
  SampledGain percent(const Sampled& candidate, const Sampled& baseline) const;
  /// The mean of differences, likewise.
  SampledGain mean(std::span<const double> differences) const;

 private:
  SampledGain unanimous(SampledGain, bool all_less, bool all_more) const;

  std::size_t samples_, units_;
  double widening_;
  std::vector<std::uint32_t> drawn_, price_;  // [worlds][samples], [worlds]
};

/// Standard errors on either side of a mean that hold the truth in 90 % of cases.
double student_t(std::size_t degrees_of_freedom);

}  // namespace moesim
