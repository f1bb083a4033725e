// SPDX-License-Identifier: Apache-2.0
#include "sim/step/expert_choices.hpp"

#include <algorithm>
#include <limits>

namespace moesim {

namespace {

// Targets of the counts and ids of one row. Counts are [layers, experts].
struct RowTarget {
  std::size_t layers, k, experts;
  std::uint16_t* kept;    // ids of the row in the first layer; null where ids are not asked for
  std::size_t layer_ids;  // from there to the next layer

  // K is k where it is known beforehand, else 0.
  template <std::size_t K, class Id, class Count>
  void add(const Id* row, Count* counts, Count times) const {
    // Copies: a byte that is written may be one of this object's as far as a compiler knows.
    const std::size_t n = K > 0 ? K : k, width = experts;
    const Id* of_row = row;
    Count* const end = counts + layers * width;
    for (Count* of_layer = counts; of_layer != end; of_layer += width, of_row += n) {
      for (std::size_t j = 0; j < n; ++j)
        of_layer[of_row[j]] = static_cast<Count>(of_layer[of_row[j]] + times);
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

std::size_t StepRows::PromptHash::operator()(const Prompt& prompt) const {
  const auto [phase, first_row, count] = prompt;
  const auto bits = static_cast<std::uint64_t>(first_row) << 1 | static_cast<std::uint64_t>(phase);
  return ((bits ^ std::uint64_t{static_cast<std::uint32_t>(count)} << 40) * 0x9e3779b97f4a7c15U) >>
         20;
}

void StepRows::take(const RowRange& range, int gpu) {
  tokens_ += range.count;
  tokens_of_gpu_[at(gpu)] += range.count;
  const bool each_token = kept_ == KeptRows::of_each_token;
  if (each_token) {
    source_gpu_.insert(source_gpu_.end(), at(range.count), gpu);
    source_rank_.insert(source_rank_.end(), at(range.count), plan_.source_rank(gpu));
  }
  const std::size_t first = rows_.size();
  // Decodes hardly ever meet in a row.
  const bool prompt = range.count > 1 && !each_token;
  if (prompt) {
    const auto [found, anew] = blocks_of_prompts_.try_emplace(
        Prompt{range.phase, range.first_row, range.count}, blocks_.size());
    if (!anew) {
      Block& block = blocks_[found->second];
      ++block.times;
      token_runs_.push_back({gpu, range.count, block.first});
      return;
    }
  }
  for (std::int32_t i = 0; i < range.count; ++i) rows_.push_back(at(range.first_row + i));
  const bool joins =
      !prompt && !blocks_.empty() && !blocks_.back().prompt && blocks_.back().phase == range.phase;
  if (!joins) blocks_.push_back({range.phase, prompt, 1, first});
  if (joins && token_runs_.back().gpu == gpu &&
      token_runs_.back().first_row + at(token_runs_.back().rows) == first) {
    token_runs_.back().rows += range.count;
  } else {
    token_runs_.push_back({gpu, range.count, first});
  }
}

// Rows of a rank's tokens, cut where the next of its GPUs begins.
void StepRows::take_by_shares(std::span<const RowRange> ranges, std::int64_t tokens, int gpu) {
  const std::int64_t shares = plan_.tp;
  std::int64_t taken = 0;
  for (RowRange range : ranges) {
    for (std::int32_t left = range.count; left > 0; left -= range.count) {
      const std::int64_t share = taken * shares / tokens;
      const std::int64_t end_of_share = ((share + 1) * tokens + shares - 1) / shares;
      range.count = static_cast<std::int32_t>(std::min<std::int64_t>(left, end_of_share - taken));
      take(range, gpu + static_cast<int>(share));
      range.first_row += range.count;
      taken += range.count;
    }
  }
}

void StepRows::find_rows(const StepBatch& batch) {
  tokens_ = 0;
  tokens_of_gpu_.assign(at(plan_.attention_gpus()), 0.0);
  source_gpu_.clear();
  source_rank_.clear();
  rows_.clear();
  blocks_.clear();
  token_runs_.clear();
  if (!blocks_of_prompts_.empty()) blocks_of_prompts_.clear();
  const std::span ranges(batch.rows);
  for (std::size_t first = 0, end = 0; first < ranges.size(); first = end) {
    const std::int32_t rank = ranges[first].rank;
    while (end < ranges.size() && ranges[end].rank == rank) ++end;
    const auto of_rank = ranges.subspan(first, end - first);
    const int gpu = rank * plan_.tp;
    // With tensor parallelism every GPU of the rank dispatches its share of the tokens, or each
    // dispatches all of them.
    if (plan_.moe_sequence_parallel && plan_.tp > 1) {
      take_by_shares(of_rank, batch.ranks[at(rank)].tokens, gpu);
      continue;
    }
    for (int copy = 0; copy < plan_.times_sent(); ++copy) {
      for (const RowRange& range : of_rank) take(range, gpu + copy);
    }
  }
  // Where nothing is shared, longer runs count faster.
  if (static_cast<std::int64_t>(rows_.size()) == tokens_) join_runs();
}

void StepRows::join_runs() {
  std::size_t joined = 0;
  for (const TokenRun& run : token_runs_) {
    if (joined > 0 && token_runs_[joined - 1].gpu == run.gpu) {
      token_runs_[joined - 1].rows += run.rows;
    } else {
      token_runs_[joined++] = run;
    }
  }
  token_runs_.resize(joined);
}

void StepRows::start(const StepBatch& batch, int first_layer, int last_layer, KeptRows kept) {
  kept_ = kept;
  find_rows(batch);
  tokens_of_expert_.assign(layers_ * experts_, 0);
  small_counts_.assign(layers_ * experts_, 0);
  first_layer_ = first_layer;
  // A stride of a power of two would have all layers share a few lines of the cache.
  layer_ids_ = rows() * k_ + 32;
  if (kept != KeptRows::none) ids_.resize(at(last_layer - first_layer) * layer_ids_);
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
  RowTarget to{
      layers, k_, experts_,
      kept_ != KeptRows::none ? ids_.data() + at(first_layer - first_layer_) * layer_ids_ : nullptr,
      layer_ids_};
  std::uint8_t* const small_counts = small_counts_.data() + first * experts_;
  std::int32_t* const counts = tokens_of_expert_.data() + first * experts_;
  const auto add = [&](const auto* row, auto* to_counts, auto times) {
    if (k_ == 8) {
      to.add<8>(row, to_counts, times);
    } else {
      to.add<0>(row, to_counts, times);
    }
  };
  const std::size_t row_ids = layers_ * k_, ahead = rows_ahead(layers * k_);
  const auto end_of = [&](std::size_t block) {
    return block + 1 < blocks_.size() ? blocks_[block + 1].first : rows_.size();
  };
  std::size_t counted = 0;
  for (std::size_t block = 0, end = 0; block < blocks_.size(); block = end) {
    const Phase phase = blocks_[block].phase;
    while (end < blocks_.size() && blocks_[end].phase == phase) ++end;
    const std::size_t last = end_of(end - 1) - 1;
    rows.trace(phase).visit([&](auto choices) {
      const auto* const of_layers = choices.data() + first * k_;
      for (std::size_t b = block; b < end; ++b) {
        const std::int32_t times = blocks_[b].times;
        for (std::size_t row = blocks_[b].first; row < end_of(b); ++row) {
          // A request's rows are anywhere in memory, and are asked for before they are needed.
          prefetch(of_layers + rows_[std::min(row + ahead, last)] * row_ids, layers * k_);
          const auto* const ids = of_layers + rows_[row] * row_ids;
          if (times > 1) {
            add(ids, counts, times);
          } else {
            if (++counted % countable == 0) carry(first, layers);
            add(ids, small_counts, std::uint8_t{1});
          }
          if (to.kept != nullptr) to.kept += k_;
        }
      }
    });
  }
  carry(first, layers);
}

}  // namespace moesim
