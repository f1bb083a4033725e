// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include <tbb/enumerable_thread_specific.h>

#include "hardware/at.hpp"
#include "sim/step/expert_choices.hpp"
#include "sim/step/rank_costs.hpp"
#include "sim/step/routed_layer.hpp"
#include "sim/step/step_model.hpp"

// Memory of a StepModel, for its own files alone.
namespace moesim {

/// The costs of grouped GEMMs by their rows: in decode the same few come again from layer to layer
/// and from step to step. A place may be taken by other rows.
class ExpertCosts {
 public:
  template <class Price>
  const Cost& of(const GroupedRows& rows, std::int64_t tokens, Price&& price) {
    if (entries_.empty()) entries_.resize(remembered);  // most kernels run in no step
    Entry& entry = entries_[at((rows.tokens * 31 + rows.padded) * 31 + rows.slots) % remembered];
    if (entry.rows != rows || entry.tokens != tokens) entry = {rows, tokens, price(rows)};
    return entry.cost;
  }

 private:
  struct Entry {
    GroupedRows rows{};
    std::int64_t tokens = 0;  // of the whole group
    Cost cost{};
  };
  static constexpr std::size_t remembered = 1 << 11;
  std::vector<Entry> entries_;
};

/// Per-layer work of one thread.
struct StepModel::Worker {
  RoutedLayer routed;
  CopyCounter counter;
  LinkTraffic copies, selections;
  std::array<ExpertCosts, expert_kernels> expert_costs;  // by ExpertKernel
  std::vector<std::int32_t> shared_rank;                 // of each token
  std::vector<std::int32_t> tokens_of_slot;  // of one rank, with the shared expert behind them
};

/// Memory that price() reuses from step to step.
struct StepModel::Scratch {
  explicit Scratch(const StepModelSpec& spec)
      : rows(spec.model, spec.plan),
        ranks(beside_slots(spec.model, spec.shared_expert), spec.plan, spec.precision,
              spec.cluster.gpu),
        backlog(at(spec.model.moe_layers())) {}

  StepRows rows;
  RankPrices ranks;
  std::vector<std::vector<DelayedSelection>> backlog;  // [MoE layers]
  tbb::enumerable_thread_specific<Worker> workers;
  StepCost second_half;
};

/// True if a rank has no prompt: a token of each sequence, or its drafts.
inline bool all_decode(const RankStep& rank) {
  return rank.decode_context || std::ranges::all_of(rank.sequences, [](const SequenceWork& work) {
           return work.new_tokens == 1 || work.verifies;
         });
}

}  // namespace moesim
