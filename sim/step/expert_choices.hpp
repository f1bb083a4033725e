// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hardware/at.hpp"
#include "sim/step/step_cost.hpp"

namespace moesim {

/// The experts that the tokens of a few layers chose: of one thread, which keeps its memory.
class LayerIds {
 public:
  /// Begins anew, with room for so many choices of each of some consecutive layers.
  void start(int first_layer, int last_layer, std::size_t selections);
  /// [tokens, k].
  std::span<const std::uint16_t> of(int layer) const {
    return std::span(ids_).subspan(at(layer - first_layer_) * stride(), selections_);
  }
  std::uint16_t* of_layer(int layer) { return ids_.data() + at(layer - first_layer_) * stride(); }
  /// From layer to layer. A power of two would have all layers share a few lines of the cache.
  std::size_t stride() const { return selections_ + 32; }

 private:
  int first_layer_ = 0;
  std::size_t selections_ = 0;
  std::vector<std::uint16_t> ids_;
};

/// What the trace rows of one step say: how many tokens chose each expert of each MoE layer, where
/// every token stands and, if asked for, every choice. Keeps its memory from step to step.
class StepRows {
 public:
  StepRows(const MoeModel&, const ParallelPlan&);

  /// Begins a new step; `keep_ids` asks for every choice.
  void start(const StepBatch&, bool keep_ids);
  /// Reads these layers of the step, with their choices if they were asked for. Threads may read
  /// different ones at a time.
  void read(const RowSource&, int first_layer, int last_layer, LayerIds&);

  std::int64_t tokens() const { return tokens_; }
  /// [MoE layers, experts]; a caller that prices several batches for one step may add them up.
  std::vector<std::int32_t>& tokens_of_expert() { return tokens_of_expert_; }
  std::span<std::int32_t> tokens_of_expert(int layer) {
    return std::span(tokens_of_expert_).subspan(at(layer) * experts_, experts_);
  }
  bool has_ids() const { return has_ids_; }
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
