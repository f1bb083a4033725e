// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hardware/at.hpp"
#include "sim/placement/observation.hpp"

namespace moesim {

/// Which experts stand on which GPUs while copies are moved about: never two copies of an expert on
/// one GPU.
class CopyTable {
 public:
  /// `experts_on_gpu[g]` lists the experts in GPU g's slots, distinct.
  CopyTable(int experts, std::vector<std::vector<int>> experts_on_gpu);

  int experts() const { return static_cast<int>(hosts_.size()); }
  int gpus() const { return static_cast<int>(slots_.size()); }
  const std::vector<std::vector<int>>& experts_on_gpu() const { return slots_; }
  std::span<const int> on_gpu(int gpu) const { return slots_[at(gpu)]; }
  /// GPUs that hold a copy, ascending.
  std::span<const int> hosts_of(int expert) const { return hosts_[at(expert)]; }
  bool holds(int gpu, int expert) const;
  /// Puts another expert, of which the GPU has no copy, into a slot of a GPU.
  void replace(int gpu, int slot, int expert);

 private:
  std::vector<std::vector<int>> slots_, hosts_;
};

/// Keeps, for each of many batches, the least maximum over the GPUs of experts that must be
/// activated, exactly, while copies of the table move. The state is an assignment of active experts
/// to hosts. No path takes an expert from a fullest GPU to a GPU with two fewer (see MinExp in
/// ../token_routing, which also balances the GPUs below the fullest).
class BatchMatching {
 public:
  /// `table` must outlive this.
  BatchMatching(const CopyTable& table, std::span<const BatchExperts> batches);

  std::size_t batches() const { return state_.size(); }
  /// The least maximum of a batch.
  int activated(std::size_t batch) const { return state_[batch].most; }
  /// Lower bound of any placement: ceil(active experts / GPUs).
  int bound(std::size_t batch) const { return bound_[batch]; }
  double bound_mean() const { return bound_mean_; }
  /// Mean over batches of activated(). While above the bound it is a little lower the fewer GPUs
  /// are at the maximum. So coming near to lowering it counts.
  double mean_value() const { return value_ / static_cast<double>(batches()); }

  /// Adapts to copies of `experts` that were taken away or added, and remembers what was before.
  void adapt(std::span<const int> experts);
  /// Takes the last adapt() back. The table must be as it was before it.
  void undo();

 private:
  struct State {
    std::int16_t most = 0, at_most = 0;  // the least maximum, and on how many GPUs
  };
  std::span<std::int16_t> on_gpu(std::size_t batch);
  std::span<std::int16_t> gpu_of(std::size_t batch);
  double value(std::size_t batch) const;
  void serve(std::size_t batch, int expert);
  void improve(std::size_t batch);
  int path_from(int start, std::span<const std::int16_t> load,
                std::span<const std::int16_t> assigned);
  void save(std::size_t batch);

  const CopyTable& table_;
  std::vector<State> state_;
  std::vector<int> bound_;
  double bound_mean_ = 0, value_ = 0, value_before_ = 0;
  std::vector<std::int16_t> on_gpu_;            // active experts assigned, [batches, GPUs]
  std::vector<std::int16_t> gpu_of_;            // -1 for idle ones, [batches, experts]
  std::vector<std::vector<int>> batches_with_;  // by expert
  std::vector<std::size_t> saved_;              // batches
  std::vector<State> saved_state_;
  std::vector<std::int16_t> saved_on_gpu_, saved_gpu_of_;
  std::vector<int> visited_;  // the last adapt() that saw the batch
  int adapted_ = 0;
  std::vector<int> queue_, reached_from_, reached_by_;
  std::vector<char> seen_;
};

}  // namespace moesim
