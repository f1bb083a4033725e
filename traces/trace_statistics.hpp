// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "traces/routing_trace.hpp"

namespace moesim {

/// A figure that every MoE layer has its own value of.
struct LayerSpread {
  double mean = 0, min = 0, max = 0;
};

/// How unevenly the tokens of a trace fall on the experts of a layer.
struct PopularitySkew {
  LayerSpread max_over_mean;  ///< tokens of the hottest expert over those of the mean expert
  LayerSpread min_over_mean;
  LayerSpread variation;         ///< standard deviation over mean
  LayerSpread top_eighth_share;  ///< share of the tokens that the hottest 12.5 % of experts take
  LayerSpread gini;
};
/// `counts` is [layers, experts], as RoutingTrace::expert_counts() answers.
PopularitySkew popularity_skew(std::span<const std::int64_t> counts, int experts);

/// Tokens that picked both of two experts, [layers, experts, experts]: symmetric, zero on the
/// diagonal. Counts rows of the given requests (of all requests when empty), and reads those rows.
std::vector<std::int64_t> coactivation_counts(const RoutingTrace&,
                                              std::span<const std::size_t> of_requests = {});

/// Distinct experts a batch activates in a layer, mean over layers.
struct DistinctExperts {
  int batch = 0;
  double decode = 0;            ///< one token of each of `batch` requests
  double independent = 0;       ///< tokens drawn independently from the popularity of experts
  double uniform = 0;           ///< tokens drawn uniformly
  std::optional<double> chunk;  ///< consecutive tokens of one request; none when all are shorter
  /// Variance over decode batches of the sum over layers, over the sum of the layers' variances: 1
  /// where layers are independent, the number of layers where they move as one; 1 where none moves.
  double variance_ratio = 1;
};
/// Samples batches. Requests repeat within a batch only when it is larger than their number.
std::vector<DistinctExperts> distinct_experts(const RoutingTrace&, std::span<const int> batches,
                                              std::uint64_t seed);

/// Tokens on the busiest of `ranks` ranks over those on the mean rank, experts placed in order.
/// Decode batches as above, mean over layers and batches.
struct RankImbalance {
  int ranks = 0;
  int batch = 0;
  double max_over_mean = 0;
};
/// For every pair of `ranks` (those that divide the experts) and `batches`.
std::vector<RankImbalance> rank_imbalance(const RoutingTrace&, std::span<const int> ranks,
                                          std::span<const int> batches, std::uint64_t seed);

/// Share of a token's k experts that another token also picks, mean over layers and sampled pairs.
struct TokenOverlap {
  struct Lag {
    int tokens = 0;
    std::optional<LayerSpread> share;  ///< none when every request is shorter
  };
  std::vector<Lag> lags;                     ///< two tokens of one request, this far apart
  std::optional<double> same_request;        ///< a random token and another of its request
  std::optional<double> different_requests;  ///< random tokens; none when there is one request only
  double independent = 0;                    ///< two tokens drawn independently from the popularity
  double uniform = 0;                        ///< k / experts
};
TokenOverlap token_overlap(const RoutingTrace&, std::span<const int> lags, std::uint64_t seed);

/// Predictability of a token's experts in the next recorded layer by those in one. It is the share
/// of the true k experts among the k (2k) guessed, mean over pairs of layers. The guess is naive
/// Bayes, trained on every other request and scored on the rest.
struct LayerPredictability {
  LayerSpread recall_k, recall_2k;
  double popularity_recall_k = 0;  ///< guessing the most popular k whatever the token
};
/// None when the trace has one layer, one request or more than 4,096 experts: the guess is a table
/// of all pairs of experts.
std::optional<LayerPredictability> layer_predictability(const RoutingTrace&, std::uint64_t seed);

}  // namespace moesim
