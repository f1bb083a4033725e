// SPDX-License-Identifier: Apache-2.0
#include "sim/step/expert_choices.hpp"

#include <algorithm>
#include <limits>

namespace moesim {

namespace {

// Where the counts and ids of one token's row go.
struct RowTarget {
  std::size_t layers, k, experts;
  std::uint8_t* counts;   // [layers, experts]
  std::uint16_t* kept;    // ids of the token in the first layer; null where ids are not asked for
  std::size_t layer_ids;  // from there to the next layer

  // K is k where it is known beforehand, else 0.
  template <std::size_t K, class Id>
  void add(const Id* row) const {
    // Copies: a byte that is written may be one of this object's as far as a compiler knows.
    const std::size_t n = K > 0 ? K : k, width = experts;
    const Id* of_row = row;
    std::uint8_t* const end = counts + layers * width;
    for (std::uint8_t* of_layer = counts; of_layer != end; of_layer += width, of_row += n) {
      for (std::size_t j = 0; j < n; ++j) ++of_layer[of_row[j]];
    }
    if (kept == nullptr) return;
    std::uint16_t* to = kept;
    for (std::size_t layer = 0; layer < layers; ++layer, row += n, to += layer_ids)
      std::copy_n(row, n, to);
  }
};

// How many rows ahead: while so many ids are counted, a row comes from the farthest memory.
std::size_t rows_ahead(std::size_t ids_of_row) {
  constexpr std::size_t ids_meanwhile = 1024, most = 16;
  return std::clamp<std::size_t>(ids_meanwhile / std::max<std::size_t>(ids_of_row, 1), 2, most);
}

template <class Id>
void prefetch(const Id* row, std::size_t ids) {
  constexpr std::size_t line = 64 / sizeof(Id);
  for (std::size_t i = 0; i < ids; i += line) __builtin_prefetch(row + i);
  __builtin_prefetch(row + ids - 1);
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
  tokens_ *= plan_.times_sent();
  source_gpu_.resize(static_cast<std::size_t>(tokens_));
  source_rank_.resize(static_cast<std::size_t>(tokens_));
  row_of_token_.resize(static_cast<std::size_t>(tokens_));
  runs_.clear();
  tokens_of_gpu_.assign(at(plan_.attention_gpus()), 0.0);
  std::size_t token = 0;
  const std::span rows(batch.rows);
  for (std::size_t first = 0, end = 0; first < rows.size(); first = end) {
    const std::int32_t rank = rows[first].rank;
    while (end < rows.size() && rows[end].rank == rank) ++end;
    const std::int64_t of_rank = batch.ranks[at(rank)].tokens;
    for (int copy = 0; copy < plan_.times_sent(); ++copy) {
      std::int64_t in_rank = 0;
      for (const RowRange& range : rows.subspan(first, end - first)) {
        if (runs_.empty() || runs_.back().phase != range.phase)
          runs_.push_back({range.phase, token});
        for (std::int32_t i = 0; i < range.count; ++i, ++in_rank) {
          // With tensor parallelism every GPU of the rank dispatches its share of the tokens, or
          // each dispatches all of them.
          int gpu = rank * plan_.tp + copy;
          if (plan_.tp > 1 && plan_.moe_sequence_parallel)
            gpu += static_cast<int>(in_rank * plan_.tp / of_rank);
          row_of_token_[token] = static_cast<std::size_t>(range.first_row + i);
          source_gpu_[token] = gpu;
          source_rank_[token++] = plan_.source_rank(gpu);
          tokens_of_gpu_[at(gpu)] += 1;
        }
      }
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
  std::int32_t* const sums = tokens_of_expert_.data() + first * experts_;
  std::uint8_t* const counts = small_counts_.data() + first * experts_;
  for (std::size_t i = 0; i < layers * experts_; ++i) sums[i] += counts[i];
  std::fill_n(counts, layers * experts_, std::uint8_t{0});
}

void StepRows::read(const RowSource& rows, int first_layer, int last_layer) {
  const std::size_t first = at(first_layer), layers = at(last_layer) - first;
  // Counts of a byte stay in the nearest cache. A token counts once at most for an expert, so that
  // so many tokens are counted without a carry.
  constexpr std::size_t countable = std::numeric_limits<std::uint8_t>::max();
  RowTarget to{layers,
               k_,
               experts_,
               small_counts_.data() + first * experts_,
               has_ids_ ? ids_.data() + at(first_layer - first_layer_) * layer_ids_ : nullptr,
               layer_ids_};
  const std::size_t row_ids = layers_ * k_, ahead = rows_ahead(layers * k_);
  std::size_t counted = 0;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::size_t end = run + 1 < runs_.size() ? runs_[run + 1].first : row_of_token_.size();
    rows.trace(runs_[run].phase).visit([&](auto choices) {
      const auto* const of_layers = choices.data() + first * k_;
      for (std::size_t token = runs_[run].first; token < end; ++token) {
        // A request's rows are anywhere in memory, and are asked for before they are needed.
        prefetch(of_layers + row_of_token_[std::min(token + ahead, end - 1)] * row_ids,
                 layers * k_);
        if (++counted % countable == 0) carry(first, layers);
        const auto* const row = of_layers + row_of_token_[token] * row_ids;
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
