// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/observation.hpp"

#include <algorithm>
#include <functional>

#include "hardware/at.hpp"
#include "hardware/config.hpp"
#include "hardware/rng.hpp"
#include "traces/halves.hpp"
#include "traces/trace_statistics.hpp"

namespace moesim {

namespace {

std::vector<std::size_t> requests_seen(const RoutingTrace& trace, const Observation& what) {
  const std::vector<char> fitted = fitted_half(trace);
  std::vector<std::size_t> requests;
  for (std::size_t i = 0; i < trace.requests().size(); ++i) {
    const std::string& tag = trace.workloads()[at(trace.requests()[i].workload)];
    const bool wanted =
        what.workloads.empty() ||
        std::find(what.workloads.begin(), what.workloads.end(), tag) != what.workloads.end();
    // As replay and recorded gating do, which clears the mark of loops that are to be kept.
    if (trace.requests()[i].has_repetition) continue;
    if (wanted && (!what.fitted_half || fitted[i] != 0)) requests.push_back(i);
  }
  if (requests.empty()) {
    throw ConfigError("no request of the trace of {} has tokens to place experts by",
                      trace.meta().model);
  }
  return requests;
}

// Rows of one request that decode batches may take.
struct DecodeRows {
  const RoutingTrace* trace;
  std::int64_t first, count;
};

void append_decode_rows(const RoutingTrace& trace, std::span<const std::size_t> requests,
                        std::vector<DecodeRows>& out) {
  for (const std::size_t i : requests) {
    const TraceRequest request = trace.decoding(trace.requests()[i]);
    if (request.num_tokens > 0) out.push_back({&trace, request.row_start, request.num_tokens});
  }
}

std::vector<int> sizes(const RoutingTrace& trace, const BatchSample& sample) {
  if (!sample.tokens.empty()) return sample.tokens;
  const int one_each = std::max(1, trace.num_experts() / trace.experts_per_token());
  return {one_each, 2 * one_each, 4 * one_each};
}

// Draws a batch: requests in random order, the same again when they run out. Marks what it
// activates, [layers, experts].
void draw_batch(std::vector<DecodeRows>& requests, int tokens, Rng& rng,
                std::vector<char>& active) {
  for (std::size_t drawn = 0; drawn < at(tokens); ++drawn) {
    const std::size_t i = drawn % requests.size();  // a step of a Fisher-Yates shuffle
    std::swap(requests[i], requests[i + rng.below(requests.size() - i)]);
    const auto& [trace, first, count] = requests[i];
    const auto row =
        first + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(count)));
    const auto k = at(trace->experts_per_token()), experts = at(trace->num_experts());
    const std::int64_t row_ids = trace->row_ids();
    trace->visit([&](auto recorded) {
      const auto ids = recorded.subspan(at(row * row_ids), at(row_ids));
      for (std::size_t j = 0; j < ids.size(); ++j) active[j / k * experts + at(ids[j])] = 1;
    });
  }
}

void draw_batches(std::vector<DecodeRows> requests, const RoutingTrace& shape,
                  const BatchSample& sample, ExpertStatistics& seen) {
  if (requests.empty()) {
    throw ConfigError(
        "no request of the trace of {} has tokens without repetition to draw batches "
        "from",
        shape.meta().model);
  }
  seen.batches.resize(at(shape.layers()));
  const auto experts = at(shape.num_experts());
  Rng rng(sample.seed, "placement/batches");
  for (const int tokens : sizes(shape, sample)) {
    for (int batch = 0; batch < sample.batches; ++batch) {
      std::vector<char> active(seen.batches.size() * experts);
      draw_batch(requests, tokens, rng, active);
      for (std::size_t layer = 0; layer < seen.batches.size(); ++layer) {
        BatchExperts& ids = seen.batches[layer].emplace_back();
        for (std::size_t e = 0; e < experts; ++e) {
          if (active[layer * experts + e] != 0) ids.push_back(static_cast<std::uint16_t>(e));
        }
      }
    }
  }
}

}  // namespace

LayerStatistics ExpertStatistics::layer(std::size_t i) const {
  const std::size_t pairs = load[i].size() * load[i].size();
  LayerStatistics layer(load[i]);
  if (!coactivation.empty()) {
    layer.coactivation = std::span(coactivation).subspan(i * pairs, pairs);
  }
  if (!batches.empty()) layer.batches = batches[i];
  return layer;
}

ExpertStatistics observe(std::span<const RoutingTrace* const> traces, const Observation& what) {
  ExpertStatistics seen;
  // Decode batches come from traces of decode, where there are any.
  const bool any_decode = std::any_of(traces.begin(), traces.end(),
                                      [](const auto* trace) { return trace->recorded("decode"); });
  std::vector<DecodeRows> decode;
  for (const RoutingTrace* trace : traces) {
    const std::vector<std::size_t> requests = requests_seen(*trace, what);
    const std::vector<std::int64_t> counts = trace->expert_counts(requests);
    const std::size_t experts = at(trace->num_experts());
    seen.load.resize(at(trace->layers()), ExpertLoad(experts));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      seen.load[i / experts][i % experts] += static_cast<double>(counts[i]);
    }
    if (!any_decode || trace->recorded("decode")) append_decode_rows(*trace, requests, decode);
    if (!what.coactivation) continue;
    const std::vector<std::int64_t> pairs = coactivation_counts(*trace, requests);
    seen.coactivation.resize(pairs.size());
    std::transform(pairs.begin(), pairs.end(), seen.coactivation.begin(), seen.coactivation.begin(),
                   std::plus<>());
  }
  if (what.sample.batches > 0) draw_batches(std::move(decode), *traces[0], what.sample, seen);
  return seen;
}

}  // namespace moesim
