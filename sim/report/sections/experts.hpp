// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "sim/experiment/deployment.hpp"
#include "sim/report/fields.hpp"
#include "sim/report/statistics.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

class Measurement;

/// The order of first use: the same in every run.
struct BySampleNumber {
  bool operator()(const std::vector<const StepSample*>& a,
                  const std::vector<const StepSample*>& b) const {
    return std::ranges::lexicographical_compare(a, b, {}, &StepSample::number, &StepSample::number);
  }
};

/// Sums over the expert layers of steps of one kind.
struct ExpertTotals {
  struct Layer {
    CountHistogram rank_tokens, rank_activated, expert_tokens;
    std::vector<std::int64_t> tokens_of_rank, activated_of_rank;  ///< sums over steps, [ep]
  };
  double layer_steps = 0;  ///< (layer, step) pairs
  double max_activated = 0, mean_activated = 0;
  double max_tokens = 0, mean_tokens = 0;
  double cv = 0;                ///< of tokens over ranks, summed over (layer, step)
  double active_experts = 0;    ///< logical
  double uniformly_active = 0;  ///< as many tokens, in as many micro-batches, under uniform routing
  double useful_rows = 0, padded_rows = 0;
  double max_rows = 0, mean_rows = 0;  ///< of EP ranks, with a shared expert that is a slot
  double step_copies = 0, step_copy_bytes = 0;  ///< brought for one layer of one step
  Locality locality;
  CapacityTally capacity;
  std::int64_t hot_layer_steps = 0;  ///< busiest rank above the threshold times the mean
  double hottest = 0;                ///< the largest such ratio
  std::vector<Layer> layers;
  /// Steps by the samples that they took their layers from; what these did is counted at the end.
  std::map<std::vector<const StepSample*>, std::int64_t, BySampleNumber> steps_by_samples;
};

/// A layer of a step whose busiest rank held more tokens than the threshold allows.
struct HotRank {
  Time at{};  ///< when the step ended
  std::int32_t layer = 0;
  std::int32_t rank = 0;
  double ratio = 0;  ///< its tokens over the mean of all ranks
};

/// The MoE layers of a step, and its tokens by expert: [MoE layers, experts].
struct LayersDone {
  std::span<const LayerOutcome> layers;
  std::span<const std::int32_t> tokens_of_expert;
  int passes = 1;  ///< over which they are sums
};

/// Sums over MoE layers, by what steps held.
struct ExpertSum {
  std::array<ExpertTotals, 3> by_kind;
  std::vector<HotRank> hot_ranks;  ///< the worst, by ratio then time
  /// Adds steps of a kind by their layers, and their tokens by expert: [MoE layers, experts]. `now`
  /// if it was one step.
  void add_layers(const Deployment&, StepKind, const LayersDone&, std::int64_t steps,
                  std::optional<Time> now);
};

struct RankDistribution {
  CountHistogram steps;
  std::vector<std::int64_t> total_by_rank;
};

struct ExpertLayerStats {
  int layer = 0;
  RankDistribution rank_activated, rank_tokens;
  CountHistogram expert_tokens;
};

struct ExpertSummary {
  double max_activated_mean = 0, activated_mean = 0, active_experts_mean = 0;
  double uniform_experts_mean = 0;
  double max_tokens_mean = 0, tokens_mean = 0;
  double balancedness = 0, imbalance = 0, cv = 0, gemm_occupancy = 0;
  std::optional<double> imbalance_with_shared;            ///< where the shared expert is a slot
  std::optional<double> own_gpu_share, own_domain_share;  ///< where selections are counted
  std::optional<double> step_copies_mean, step_copy_bytes_mean;  ///< where steps bring any
  std::int64_t hot_layer_steps = 0;
  double hottest = 0;
};

struct ExpertKindStats {
  ExpertSummary summary;
  std::vector<ExpertLayerStats> layers;
};

struct HottestRank {
  double time_s = 0;
  int layer = 0;
  std::int32_t rank = 0;
  double ratio = 0;
};

/// [layer][expert]
using ExpertCounts = std::vector<std::vector<std::int64_t>>;

struct ExpertStats {
  ExpertSummary summary;
  Named<ExpertKindStats> by_step_kind;
  int replicas = 0;
  double replication_effective = 1;
  double dropped = 0, rerouted = 0, delayed = 0;
  double hot_rank_threshold = 0;
  std::vector<HottestRank> hottest_ranks;
  std::optional<Named<ExpertCounts>> tokens_per_expert_by_workload;
};

ExpertStats experts_of(const Deployment&, const ExpertSum&, const Measurement&);

Fields<ExpertStats> rows_of(const ExpertStats*);

}  // namespace moesim
