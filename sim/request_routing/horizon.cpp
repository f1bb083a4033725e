// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/horizon.hpp"

#include <numeric>

namespace moesim {

void OutputLengths::catch_up(std::span<const std::int32_t> finished) {
  if (seen_ == finished.size()) return;
  for (; seen_ < finished.size(); ++seen_) {
    const auto output = at(finished[seen_]);
    if (longer_.size() < output) longer_.resize(output);
    for (std::size_t h = 0; h < output; ++h) ++longer_[h];
  }
  longer_beyond_.resize(longer_.size());
  std::partial_sum(longer_.rbegin(), longer_.rend(), longer_beyond_.rbegin());
}

// E[O] = sum over h >= 0 of P(O > h).
double OutputLengths::mean() const {
  return static_cast<double>(longer_beyond_.empty() ? 0 : longer_beyond_.front()) / count();
}

// sum over h >= 0 of P(output > age + h | output > age).
double OutputLengths::remaining(std::int32_t age) const {
  if (age >= longest()) return 0;
  return static_cast<double>(longer_beyond_[at(age)]) / exceed(age);
}

std::int32_t OutputLengths::quantile(double q) const {
  const auto found = std::partition_point(longer_.begin(), longer_.end(), [&](std::int64_t longer) {
    return static_cast<double>(longer) > (1 - q) * count() + 1e-9;
  });
  return static_cast<std::int32_t>(found - longer_.begin());
}

HorizonPoints trapezoid(std::vector<std::int32_t> h) {
  h.erase(std::unique(h.begin(), h.end()), h.end());
  std::vector<double> weight(h.size());
  for (std::size_t k = 0; k < h.size(); ++k) {
    const std::int32_t before = h[k == 0 ? 0 : k - 1], after = h[k + 1 == h.size() ? k : k + 1];
    weight[k] = h.size() == 1 ? 1 : (after - before) / 2.0;
  }
  return {std::move(h), std::move(weight)};
}

std::vector<double> overflow(const HorizonPoints& points, std::span<const double> loads,
                             std::span<const RankLoad> ranks, double s, bool grow) {
  const auto groups = groups_of(ranks);
  std::vector<double> scores(ranks.size()), envelopes(groups.size());
  for (std::size_t k = 0; k < points.h.size(); ++k) {
    const auto at = loads.subspan(k * ranks.size(), ranks.size());
    auto first = at.begin();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto last = first + std::ssize(groups[i]);
      envelopes[i] = *std::max_element(first, last);
      first = last;
    }
    const double least = *std::min_element(envelopes.begin(), envelopes.end());
    const double size = s + (grow ? points.h[k] : 0);
    std::size_t g = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (const std::size_t end = g + groups[i].size(); g < end; ++g) {
        const double growth = std::max(size - (envelopes[i] - at[g]), 0.0);
        scores[g] += points.weight[k] * (growth + (envelopes[i] - least));
      }
    }
  }
  return scores;
}

std::vector<double> drift(const HorizonPoints& points, std::span<const double> loads,
                          std::size_t ranks, double s) {
  std::vector<double> scores(ranks);
  for (std::size_t k = 0; k < points.h.size(); ++k) {
    const auto at = loads.subspan(k * ranks, ranks);
    const double mean = std::accumulate(at.begin(), at.end(), 0.0) / static_cast<double>(ranks);
    for (std::size_t g = 0; g < ranks; ++g) {
      scores[g] += points.weight[k] * (at[g] - mean) * (s + points.h[k]);
    }
  }
  return scores;
}

HorizonPoints survived(HorizonPoints points, const OutputLengths& outputs) {
  for (std::size_t k = 0; k < points.h.size() && !outputs.empty(); ++k) {
    points.weight[k] *= outputs.survival(points.h[k]);
  }
  return points;
}

std::vector<double> project_survivors(std::span<const std::int32_t> points,
                                      std::span<const RankLoad> ranks,
                                      const OutputLengths& outputs) {
  return project(points, ranks, [&](const RankRequest& r) {
    return [&outputs, age = r.generated](std::int32_t h) {
      return outputs.empty() ? 1.0 : outputs.survival(h, age);
    };
  });
}

std::size_t least(std::span<const double> scores, std::span<const double> loads) {
  std::size_t best = 0;
  for (std::size_t g = 1; g < scores.size(); ++g) {
    if (std::pair(scores[g], loads[g]) < std::pair(scores[best], loads[best])) best = g;
  }
  return best;
}

}  // namespace moesim
