// SPDX-License-Identifier: Apache-2.0
#include "sim/step/expert_choices.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace moesim {

namespace {

// Where the counts and ids of one token's row go.
struct RowTarget {
  std::size_t layers, k, experts;
  std::uint16_t* counts;  // [layers, experts]
  std::uint16_t* kept;    // ids of the token in the first layer; null where ids are not asked for
  std::size_t layer_ids;  // from there to the next layer

  // K is k where it is known beforehand, else 0.
  template <std::size_t K, class Id>
  void add(const Id* row) const {
    const std::size_t n = K > 0 ? K : k;
    std::uint16_t* of_layer = counts;
    std::uint16_t* to = kept;
    for (std::size_t layer = 0; layer < layers; ++layer, of_layer += experts, row += n) {
      for (std::size_t j = 0; j < n; ++j) ++of_layer[row[j]];
      if (to == nullptr) continue;
      for (std::size_t j = 0; j < n; ++j) to[j] = static_cast<std::uint16_t>(row[j]);
      to += layer_ids;
    }
  }
};

// A request's rows are anywhere in memory: they are asked for before they are needed.
template <class Id>
void prefetch(const Id* row, std::size_t ids) {
  constexpr std::size_t line = 64 / sizeof(Id);
  for (std::size_t i = 0; i < ids; i += line) __builtin_prefetch(row + i);
}

}  // namespace

StepRows::StepRows(const MoeModel& model, const ParallelPlan& plan)
    : layers_(at(model.moe_layers())),
      experts_(at(model.experts)),
      k_(at(model.experts_per_token)),
      plan_(plan),
      small_counts_(layers_ * experts_) {}

void StepRows::find_sources(const StepBatch& batch) {
  tokens_ = 0;
  for (const RowRange& range : batch.rows) tokens_ += range.count;
  source_gpu_.resize(static_cast<std::size_t>(tokens_));
  source_rank_.resize(static_cast<std::size_t>(tokens_));
  tokens_of_gpu_.assign(at(plan_.attention_gpus()), 0.0);
  std::size_t token = 0;
  std::int32_t rank = -1;
  std::int64_t in_rank = 0;
  for (const RowRange& range : batch.rows) {
    if (range.rank != rank) in_rank = 0;
    rank = range.rank;
    const std::int64_t of_rank = batch.ranks[at(rank)].tokens;
    for (std::int32_t i = 0; i < range.count; ++i, ++in_rank) {
      // With tensor parallelism every GPU of the rank dispatches its share of the tokens.
      const int gpu =
          plan_.tp == 1 ? rank : rank * plan_.tp + static_cast<int>(in_rank * plan_.tp / of_rank);
      source_gpu_[token] = gpu;
      source_rank_[token++] = plan_.source_rank(gpu);
      tokens_of_gpu_[at(gpu)] += 1;
    }
  }
}

void StepRows::start(const StepBatch& batch, int first_layer, int last_layer, bool keep_ids) {
  find_sources(batch);
  const std::size_t selections = static_cast<std::size_t>(tokens_) * k_;
  tokens_of_expert_.assign(layers_ * experts_, 0);
  small_counts_.assign(layers_ * experts_, 0);
  has_ids_ = keep_ids;
  first_layer_ = first_layer;
  // A stride of a power of two would have all layers share a few lines of the cache.
  layer_ids_ = selections + 32;
  if (keep_ids) ids_.resize(at(last_layer - first_layer) * layer_ids_);
}

// Adds narrow counts to the step's.
void StepRows::carry(std::size_t first, std::size_t layers) {
  for (std::size_t i = first * experts_; i < (first + layers) * experts_; ++i) {
    tokens_of_expert_[i] += std::exchange(small_counts_[i], std::uint16_t{0});
  }
}

void StepRows::read(const StepBatch& batch, const RowSource& rows, int first_layer,
                    int last_layer) {
  const std::size_t first = at(first_layer), layers = at(last_layer) - first;
  // Half as wide counts stay in the nearest cache; none may get beyond what it can count.
  const std::size_t countable =
      std::numeric_limits<std::uint16_t>::max() / std::max<std::size_t>(k_, 1);
  RowTarget to{layers,
               k_,
               experts_,
               small_counts_.data() + first * experts_,
               has_ids_ ? ids_.data() + at(first_layer - first_layer_) * layer_ids_ : nullptr,
               layer_ids_};
  const std::size_t row_ids = layers_ * k_;
  const auto place = [&](const RowRange& range) {
    return static_cast<std::size_t>(range.first_row) * row_ids + first * k_;
  };
  std::size_t counted = 0;
  for (std::size_t r = 0; r < batch.rows.size(); ++r) {
    constexpr std::size_t ahead = 2;
    if (r + ahead < batch.rows.size()) {
      const RowRange& next = batch.rows[r + ahead];
      rows.trace(next.phase).visit([&](auto ids) {
        prefetch(ids.data() + place(next), layers * k_);
      });
    }
    const RowRange& range = batch.rows[r];
    rows.trace(range.phase).visit([&](auto ids) {
      const auto* row = ids.data() + place(range);
      for (std::int32_t i = 0; i < range.count; ++i, row += row_ids) {
        if (++counted % countable == 0) carry(first, layers);
        if (k_ == 8) {
          to.add<8>(row);
        } else {
          to.add<0>(row);
        }
        if (has_ids_) to.kept += k_;
      }
    });
  }
  carry(first, layers);
}

}  // namespace moesim
