// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesim {

/// F = s - G max(s - m, 0) of [BalanceRoute]: minus the growth of the barrier idle G
/// max L - sum L when s tokens go to a rank that is m below the most loaded one.
double barrier_gain(std::int64_t s, std::int64_t margin, std::int64_t ranks);

/// Limits of cache_aware of [SGLang]. If the requests on workers differ by more than `absolute` and
/// by more than a factor `relative` it takes the shortest queue. Else it takes the best match, if
/// it is above the threshold, else the smallest tree. Ties lowest index.
struct CacheAwareLimits {
  double cache_threshold = .3;
  std::int64_t absolute = 64;
  double relative = 1.5;
  bool miss_by_load = false;  ///< without such a match: the shortest queue, not the smallest tree
};
std::size_t cache_aware_choice(const CacheAwareLimits&, std::span<const std::int64_t> requests,
                               std::span<const double> match, std::span<const std::int64_t> tree);

/// Dynamo's softmax over logits of which the lowest is the best: p ~ exp(-(x - min) / ((max - min)
/// T)); all equal -> uniform.
std::vector<double> dynamo_probabilities(std::span<const double> logits, double temperature);

/// Terms of one rank in the joint score [expert-locality].
struct JointTerms {
  double prompt_tokens = 0;
  double hit = 0;       ///< share of the prompt that is cached
  double locality = 0;  ///< share of the predicted experts that are on the rank
  double load = 0, max_load = 0;
};
struct JointWeights {
  double kv = 1, expert = .5, load = .3;
};
/// The formula of [expert-locality], in its own scale: kv (1 - hit) prompt + expert (1 - locality)
/// experts + load 100 load / max(max load, 1).
double joint_seed_cost(const JointWeights&, const JointTerms&, int experts);

}  // namespace moesim
