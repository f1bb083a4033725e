// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hardware/at.hpp"
#include "sim/step/step_cost.hpp"

namespace moesim {

/// What the trace rows of one step say: how many tokens chose each expert of each MoE layer, where
/// every token stands and, if asked for, every choice. Reads each row once, and keeps its
/// memory from step to step.
class StepRows {
 public:
  StepRows(const MoeModel&, const ParallelPlan&);

  /// Begins a new step, of which some consecutive layers will be read; `keep_ids` asks for their
  /// ids().
  void start(const StepBatch&, int first_layer, int last_layer, bool keep_ids);
  /// Reads these layers of the step. Threads may read different ones at a time.
  void read(const RowSource&, int first_layer, int last_layer);

  /// As often as each is sent.
  std::int64_t tokens() const { return tokens_; }
  /// [MoE layers, experts]: the step's own, in exchange for memory that the next step may use.
  void hand_over(std::vector<std::int32_t>& tokens_of_expert) {
    tokens_of_expert_.swap(tokens_of_expert);
  }
  std::span<std::int32_t> tokens_of_expert(int layer) {
    return std::span(tokens_of_expert_).subspan(at(layer) * experts_, experts_);
  }
  bool has_ids() const { return has_ids_; }
  /// The experts that one layer's tokens chose, [tokens, k].
  std::span<const std::uint16_t> ids(int layer) const {
    return std::span(ids_).subspan(at(layer - first_layer_) * layer_ids_, at(tokens_) * k_);
  }
  /// The GPU that holds each token, and the EP rank that policies count it to: [tokens], never
  /// decreasing.
  const std::vector<std::int32_t>& source_gpu() const { return source_gpu_; }
  const std::vector<std::int32_t>& source_rank() const { return source_rank_; }
  const std::vector<double>& tokens_of_gpu() const { return tokens_of_gpu_; }

 private:
  void find_sources(const StepBatch&);
  void carry(std::size_t first, std::size_t layers);

  std::size_t layers_, experts_, k_;
  ParallelPlan plan_;
  std::int64_t tokens_ = 0;
  std::vector<std::int32_t> tokens_of_expert_;
  std::vector<std::uint8_t> small_counts_;  // tokens_of_expert_ while it is counted, else zero
  bool has_ids_ = false;
  int first_layer_ = 0;  // of those in ids_
  std::vector<std::uint16_t> ids_;
  std::size_t layer_ids_ = 0;  // distance in ids_ from layer to layer
  // Tokens in a row whose rows are of one trace begin at `first`.
  struct Run {
    Phase phase;
    std::size_t first;
  };
  std::vector<Run> runs_;
  std::vector<std::size_t> row_of_token_;
  std::vector<std::int32_t> source_gpu_, source_rank_;
  std::vector<double> tokens_of_gpu_;
};

}  // namespace moesim
