// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sim/request_routing/request_router.hpp"

namespace moesim {

inline constexpr std::array<Key, 2> pool_keys{
    {{"window", form::integer(positive_count), "1024", "pool: requests looked at, the oldest"},
     {"greedy_above", form::integer(non_negative), "7",
      "pool: free seats of the group above which requests go one by one"}}};
enum class PoolForm { one_by_one, pool };
inline constexpr std::array<std::string_view, 2> pool_forms{"one_by_one", "pool"};
inline constexpr Key pool_form_key{"form", form::choice(pool_forms), "one_by_one",
                                   "one request at a time, or sets from a pool"};

/// Constants of the selection from a pool.
struct PoolRules {
  /// Gain of a token that fits under the envelope.
  double alpha = 1;
  /// Cost of a token above the envelope.
  double beta = 1;
  /// Weights of the steps 0..T of the horizon.
  std::vector<double> weights;
  /// Free seats over all ranks above which requests go one by one.
  std::int64_t greedy_above = 7;
  /// Pending requests among which subsets are sought.
  std::size_t subset_window = 64;
};

/// The ranks as the selection changes them.
struct PoolRanks {
  std::vector<double> loads;                ///< projected, [T + 1, ranks]
  std::vector<std::int64_t> seats, blocks;  ///< free, [ranks]
  std::vector<std::int32_t> group;          ///< RankLoad::group, [ranks]
};
PoolRanks pool_ranks(std::span<const RankLoad> ranks, std::vector<double> loads);

/// Worth of adding S tokens to one rank: F(S) = alpha S sum_t d_t - beta sum_t d_t max(S - m_t, 0).
/// Here m_t is how far the rank's load is below the envelope, the largest load of any rank of its
/// EP group.
class PoolGain {
 public:
  PoolGain(const PoolRules&, const PoolRanks&, std::size_t rank);
  double operator()(std::int64_t tokens) const;
  /// The most tokens that stay below the envelope everywhere.
  std::int64_t margin() const { return margin_; }

 private:
  double alpha_, beta_;
  std::vector<double> margins_;                 // ascending
  std::vector<double> weight_, weight_margin_;  // sums over the first i margins
  std::int64_t margin_;
};

/// The two stages of [BalanceRoute] and [BF-IO].
///   1. While more than greedy_above seats are free in all: the rank with most free (ties:
///      least load, lowest rank) takes the request of largest F.
///   2. Then the rank of smallest (1 - lambda) L(0) + lambda L(T) takes a subset of k requests, k
///      from its free seats down to 1: the one of largest sum within the margin, or of smallest sum
///      beyond it; of these the largest F, ending at the first within the margin. Is F <= 0 the
///      best single request goes instead.
/// Ties go to the first of equal requests, and to the subset that takes the last one. A request
/// that does not find the blocks for its prompt on the rank is passed over.
void select_from_pool(const PoolRules&, PoolRanks, std::span<const PendingRequest> pending,
                      std::span<const RankLoad> ranks, double lambda, std::vector<Assignment>&);

/// Returns the requests (ascending) of the subset of exactly `count` of `sizes` whose sum is the
/// largest up to `margin`, else the smallest above it. Of equal sums it is the one of late
/// requests. Empty when there are fewer.
std::vector<std::size_t> subset_of(std::span<const std::int64_t> sizes, std::size_t count,
                                   std::int64_t margin);

}  // namespace moesim
