// SPDX-License-Identifier: Apache-2.0
#include "sim/gain/gain.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "hardware/units.hpp"

namespace moesim {

namespace {

constexpr std::size_t worlds = 1000;
constexpr double share = 0.9;

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

template <class Holds>
bool in_all(const Sampled& a, const Sampled& b, Holds holds) {
  return std::ranges::equal(a.values, b.values, holds) &&
         (a.off_price.empty() || std::ranges::equal(a.off_price, b.off_price, holds));
}

}  // namespace

SampledGain gain_of(double change, std::vector<double> in_worlds) {
  std::ranges::sort(in_worlds);
  const auto [least, end_of_ties] = std::equal_range(in_worlds.begin(), in_worlds.end(), 0.0);
  const auto n = static_cast<double>(in_worlds.size());
  const auto at = [&](double quantile) {
    return in_worlds[static_cast<std::size_t>(std::lround(quantile * (n - 1)))];
  };
  const double less = static_cast<double>(least - in_worlds.begin()),
               not_more = static_cast<double>(end_of_ties - in_worlds.begin());
  return {change, at((1 - share) / 2), at((1 + share) / 2), (less + not_more) / 2 / n};
}

Worlds::Worlds(std::size_t samples, std::size_t deals)
    : samples_(samples), units_(deals > 1 ? deals : samples) {
  check(units_ > 1 && samples % deals == 0, "worlds need two samples or deals, of equal size");
  const auto n = static_cast<double>(units_);
  constexpr double normal = 1.644854;
  widening_ = student_t(units_ - 1) / normal * std::sqrt(n / (n - 1));
  Rng rng(1, fmt::format("worlds {} {}", samples, deals));
  const std::size_t together = samples / units_;
  for (std::size_t world = 0; world < worlds; ++world) {
    for (std::size_t unit = 0; unit < units_; ++unit) {
      const std::size_t first = together * rng.below(units_);
      for (std::size_t i = 0; i < together; ++i)
        drawn_.push_back(static_cast<std::uint32_t>(first + i));
    }
    price_.push_back(static_cast<std::uint32_t>(rng.below(samples)));
  }
}

std::vector<double> Worlds::means(const Sampled& of) const {
  const double middle = mean_of(of.values);
  std::vector<double> all;
  for (std::size_t world = 0; world < worlds; ++world) {
    double sum = 0;
    for (std::size_t i = 0; i < samples_; ++i) sum += of.values[drawn_[world * samples_ + i]];
    double mean = middle + widening_ * (sum / static_cast<double>(samples_) - middle);
    if (!of.off_price.empty()) mean += of.off_price[price_[world]] - of.values[price_[world]];
    all.push_back(mean);
  }
  return all;
}

SampledGain Worlds::unanimous(SampledGain gain, bool all_less, bool all_more) const {
  const double by_chance = std::pow(0.5, static_cast<double>(units_));
  if (all_less) gain.p_less = std::max(gain.p_less, 1 - by_chance);
  if (all_more) gain.p_less = std::min(gain.p_less, by_chance);
  return gain;
}

SampledGain Worlds::percent(const Sampled& candidate, const Sampled& baseline) const {
  const auto change = [](double a, double b) { return 100 * (a / b - 1); };
  std::vector<double> changes = means(candidate);
  std::ranges::transform(changes, means(baseline), changes.begin(), change);
  return unanimous(
      gain_of(change(mean_of(candidate.values), mean_of(baseline.values)), std::move(changes)),
      in_all(candidate, baseline, std::less()), in_all(candidate, baseline, std::greater()));
}

SampledGain Worlds::mean(std::span<const double> differences) const {
  return unanimous(gain_of(mean_of(differences), means({differences})),
                   std::ranges::all_of(differences, [](double one) { return one < 0; }),
                   std::ranges::all_of(differences, [](double one) { return one > 0; }));
}

double student_t(std::size_t degrees) {
  // The share of outcomes within tan(angle) sqrt(degrees) of 0 is a finite sum
  // (Abramowitz, Stegun 26.7.3 and 26.7.4).
  const auto within = [&](double angle) {
    const double cosine = std::cos(angle);
    const bool odd = degrees % 2 == 1;
    double term = odd ? cosine : 1, sum = degrees == 1 ? 0 : term;
    for (std::size_t k = odd ? 3 : 2; k + 1 < degrees; k += 2) {
      term *= cosine * cosine * double(k - 1) / double(k);
      sum += term;
    }
    return odd ? 2 / std::numbers::pi * (angle + std::sin(angle) * sum) : std::sin(angle) * sum;
  };
  double low = 0, high = std::numbers::pi / 2;
  for (int halving = 0; halving < 60; ++halving) {
    const double middle = (low + high) / 2;
    (within(middle) < share ? low : high) = middle;
  }
  return std::tan(low) * std::sqrt(double(degrees));
}

}  // namespace moesim
