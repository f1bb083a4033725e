// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/scores.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hardware/at.hpp"

namespace moesim {

double barrier_gain(std::int64_t s, std::int64_t margin, std::int64_t ranks) {
  return static_cast<double>(s - ranks * std::max<std::int64_t>(s - margin, 0));
}

std::size_t cache_aware_choice(const CacheAwareLimits& limits,
                               std::span<const std::int64_t> requests,
                               std::span<const double> match, std::span<const std::int64_t> tree) {
  const auto index = [](auto range, auto found) { return at(found - range.begin()); };
  const auto [fewest, most] = std::ranges::minmax_element(requests);
  const bool imbalanced =
      *most - *fewest > limits.absolute &&
      static_cast<double>(*most) > limits.relative * static_cast<double>(*fewest);
  if (imbalanced) return index(requests, std::ranges::min_element(requests));
  const auto best = std::ranges::max_element(match);
  if (*best > limits.cache_threshold) return index(match, best);
  const std::span<const std::int64_t> least = limits.miss_by_load ? requests : tree;
  return index(least, std::ranges::min_element(least));
}

std::vector<double> dynamo_probabilities(std::span<const double> logits, double temperature) {
  const auto [min, max] = std::ranges::minmax(logits);
  std::vector<double> p(logits.size(), 1);
  for (std::size_t i = 0; i < p.size() && max > min; ++i) {
    p[i] = std::exp(-(logits[i] - min) / ((max - min) * temperature));
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& each : p) each /= sum;
  return p;
}

double joint_seed_cost(const JointWeights& weights, const JointTerms& terms, int experts) {
  return weights.kv * (1 - terms.hit) * terms.prompt_tokens +
         weights.expert * (1 - terms.locality) * experts +
         weights.load * 100 * terms.load / std::max(terms.max_load, 1.0);
}

}  // namespace moesim
