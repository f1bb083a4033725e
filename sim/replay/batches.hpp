// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "sim/replay/replay.hpp"

namespace moesim {

/// True if a list of workload tags has the tag.
inline bool has(std::span<const std::string> tags, std::string_view tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

/// True if batches may have its tokens.
inline bool is_usable(const TraceRequest& request) {
  return !request.has_repetition && request.num_tokens > 0;
}

/// Requests that batches may be drawn from, and what was left out of the trace, for messages.
struct Usable {
  std::vector<TraceRequest> requests;
  std::vector<std::size_t> indices;  // of these requests, in the trace
  std::string described;
};
Usable usable_requests(const RoutingTrace&, const ReplayConfig&);

/// Trace rows of the sampled batches, [samples][batch].
using BatchRows = std::vector<std::vector<std::int64_t>>;

/// The sampled batches: tokens per expert, [samples][layers][experts], and the choices behind them.
class Batches {
 public:
  Batches(const RoutingTrace& trace, BatchRows rows, int gpus, double tokens_per_request)
      : trace_(trace),
        rows_(std::move(rows)),
        layers_(at(trace.layers())),
        experts_(at(trace.num_experts())),
        k_(at(trace.experts_per_token())),
        tokens_(rows_.size() * layers_ * experts_),
        tokens_per_request_(tokens_per_request) {
    trace.visit([&](auto ids) {
      tbb::parallel_for(std::size_t{0}, rows_.size(), [&](std::size_t sample) {
        std::int32_t* const tokens = tokens_.data() + sample * layers_ * experts_;
        for (const std::int64_t row : rows_[sample]) {
          const auto row_ids = ids.subspan(at(row * trace.row_ids()), at(trace.row_ids()));
          for (std::size_t i = 0; i < row_ids.size(); ++i) {
            ++tokens[i / k_ * experts_ + at(row_ids[i])];
          }
        }
      });
    });
    const std::size_t batch = rows_[0].size();
    for (std::size_t token = 0; token < batch; ++token) {
      source_rank_.push_back(static_cast<std::int32_t>(token * at(gpus) / batch));
    }
  }

  std::size_t samples() const { return rows_.size(); }
  double tokens_per_request() const { return tokens_per_request_; }
  std::span<const std::int32_t> tokens(std::size_t sample, std::size_t layer) const {
    return std::span(tokens_).subspan((sample * layers_ + layer) * experts_, experts_);
  }
  /// `ids` is where the choices are put together.
  TokenRows rows(std::size_t sample, std::size_t layer, std::vector<std::uint16_t>& ids) const {
    ids.clear();
    trace_.visit([&](auto recorded) {
      for (const std::int64_t row : rows_[sample]) {
        const auto chosen = recorded.subspan(at(row * trace_.row_ids()) + layer * k_, k_);
        for (const auto id : chosen) ids.push_back(static_cast<std::uint16_t>(id));
      }
    });
    return {ids, source_rank_};
  }

 private:
  const RoutingTrace& trace_;
  BatchRows rows_;
  std::size_t layers_, experts_, k_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> source_rank_;
  double tokens_per_request_;
};

/// Tokens of all batches of one size: their rows take 512 MB.
inline constexpr std::int64_t most_sampled_tokens = 1 << 26;

/// The sampled batches that all placements and routings are scored on, [config.batches].
std::vector<Batches> draw_batches(const RoutingTrace&, const ReplayConfig&, const Usable&);

/// The recording drawn again: requests are dealt anew to the halves and drawn from there with
/// replacement. Each workload keeps its number in either half, and so do requests without batches.
RoutingTrace drawn_again(const RoutingTrace&, Rng&);

}  // namespace moesim
