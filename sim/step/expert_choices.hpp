// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include <tsl/robin_map.h>

#include "hardware/at.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/step/step_cost.hpp"

namespace moesim {

/// Data of a step's rows that is kept with its counts.
enum class KeptRows {
  none,
  different,     ///< the ids of each row, and the runs that replay them
  of_each_token  ///< ids and source of every token
};

/// Choices of the trace rows of one step: tokens that chose each expert of each MoE layer. On
/// request also where every token is, and its choices. Prompts that replay the same recordings
/// share rows, which are read once. Keeps its memory from step to step.
class StepRows {
 public:
  StepRows(const MoeModel&, const ParallelPlan&);

  /// Begins a new step, of which some consecutive layers will be read.
  void start(const StepBatch&, int first_layer, int last_layer, KeptRows);
  /// Reads these layers of the step. Threads may read different ones at a time.
  void read(const RowSource&, int first_layer, int last_layer);

  /// Number of tokens, each counted as often as it is sent.
  std::int64_t tokens() const { return tokens_; }
  /// [MoE layers, experts]: the step's own, in exchange for memory that the next step may use.
  void hand_over(std::vector<std::int32_t>& tokens_of_expert) {
    tokens_of_expert_.swap(tokens_of_expert);
  }
  std::span<std::int32_t> tokens_of_expert(int layer) {
    return std::span(tokens_of_expert_).subspan(at(layer) * experts_, experts_);
  }
  KeptRows kept() const { return kept_; }
  /// How many rows ids() has: of each token its own, or different ones.
  std::size_t rows() const { return rows_.size(); }
  /// The experts that one layer's rows chose, [rows, k].
  std::span<const std::uint16_t> ids(int layer) const {
    return std::span(ids_).subspan(at(layer - first_layer_) * layer_ids_, rows() * k_);
  }
  /// Which rows the tokens take, in the order of tokens.
  const std::vector<TokenRun>& runs() const { return token_runs_; }
  /// GPU that holds each token; the next one is the EP rank that policies count it to. [tokens],
  /// never decreasing.
  const std::vector<std::int32_t>& source_gpu() const { return source_gpu_; }
  const std::vector<std::int32_t>& source_rank() const { return source_rank_; }
  const std::vector<double>& tokens_of_gpu() const { return tokens_of_gpu_; }

 private:
  void find_rows(const StepBatch&);
  void take(const RowRange&, int gpu);
  void take_by_shares(std::span<const RowRange>, std::int64_t tokens, int gpu);
  void join_runs();
  void carry(std::size_t first, std::size_t layers);

  std::size_t layers_, experts_, k_;
  ParallelPlan plan_;
  std::int64_t tokens_ = 0;
  std::vector<std::int32_t> tokens_of_expert_;
  std::vector<std::uint8_t> small_counts_;  // tokens_of_expert_ while it is counted, else zero
  KeptRows kept_ = KeptRows::none;
  int first_layer_ = 0;  // of those in ids_
  std::vector<std::uint16_t> ids_;
  std::size_t layer_ids_ = 0;  // distance in ids_ from layer to layer
  // Rows that as many tokens take begin at `first`, and are of one trace.
  struct Block {
    Phase phase;
    bool prompt;  // may be shared
    std::int32_t times;
    std::size_t first;
  };
  std::vector<Block> blocks_;
  std::vector<std::size_t> rows_;  // of the blocks, in their traces
  std::vector<TokenRun> token_runs_;
  // Rows of a prompt: phase, first row, count.
  using Prompt = std::tuple<Phase, std::int64_t, std::int32_t>;
  struct PromptHash {
    std::size_t operator()(const Prompt&) const;
  };
  tsl::robin_map<Prompt, std::size_t, PromptHash> blocks_of_prompts_;
  std::vector<std::int32_t> source_gpu_, source_rank_;
  std::vector<double> tokens_of_gpu_;
};

}  // namespace moesim
