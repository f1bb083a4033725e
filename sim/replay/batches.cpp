// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/batches.hpp"

#include <array>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/rng.hpp"
#include "traces/halves.hpp"

namespace moesim {

Usable usable_requests(const RoutingTrace& trace, const ReplayConfig& config) {
  Usable usable;
  const std::vector<char> fitted = fitted_half(trace);
  const bool half = config.fit_workloads.empty() && config.fit == ReplayFit::half;
  for (std::size_t i = 0; i < trace.requests().size(); ++i) {
    // A batch is of decode, unless its tokens follow each other.
    const TraceRequest request = config.sample == ReplaySample::consecutive
                                     ? trace.requests()[i]
                                     : trace.decoding(trace.requests()[i]);
    const std::string& tag = trace.workloads()[at(request.workload)];
    if (half && fitted[i] != 0) continue;
    if (has(config.fit_workloads, tag)) continue;
    if (!config.score_workloads.empty() && !has(config.score_workloads, tag)) continue;
    if (!is_usable(request)) continue;
    usable.requests.push_back(request);
    usable.indices.push_back(i);
  }
  usable.described =
      fmt::format("{} of its {} requests are usable (without repetition{})", usable.requests.size(),
                  trace.requests().size(),
                  half                              ? ", of the half that is not fitted on"
                  : !config.score_workloads.empty() ? ", of the workloads that are scored on"
                  : !config.fit_workloads.empty()   ? ", of workloads that are not fitted on"
                                                    : "");
  return usable;
}

namespace {

// Tokens of requests in random order, the same again when they run out.
BatchRows rows_of_requests(const Usable& usable, int batch, int samples, bool distinct, Rng rng) {
  if (distinct && at(batch) > usable.requests.size()) {
    throw ConfigError(
        "replay: a batch of {} distinct requests cannot be drawn from the trace: {}; "
        "the sample \"several\" takes several tokens of each",
        batch, usable.described);
  }
  if (usable.requests.empty())
    throw ConfigError("replay: the trace has no usable request: {}", usable.described);
  std::vector<std::size_t> order(usable.requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  BatchRows rows(at(samples));
  for (auto& batch_rows : rows) {
    for (std::size_t drawn = 0; drawn < at(batch); ++drawn) {
      const std::size_t i = drawn % order.size();  // a step of a Fisher-Yates shuffle
      std::swap(order[i], order[i + rng.below(order.size() - i)]);
      const TraceRequest& request = usable.requests[order[i]];
      const auto token = rng.below(static_cast<std::uint64_t>(request.num_tokens));
      batch_rows.push_back(request.row_start + static_cast<std::int64_t>(token));
    }
  }
  return rows;
}

BatchRows consecutive_rows(const Usable& usable, int batch, int samples, Rng rng) {
  std::vector<std::int64_t> windows_before{0};
  std::int64_t longest = 0;
  for (const TraceRequest& request : usable.requests) {
    const auto windows = std::max<std::int64_t>(request.num_tokens - batch + 1, 0);
    windows_before.push_back(windows_before.back() + windows);
    longest = std::max(longest, request.num_tokens);
  }
  if (windows_before.back() == 0) {
    throw ConfigError(
        "replay: no request of the trace has {} consecutive tokens; the longest has "
        "{}; {}",
        batch, longest, usable.described);
  }
  BatchRows rows(at(samples));
  for (auto& batch_rows : rows) {
    const auto window =
        static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(windows_before.back())));
    const auto after = std::upper_bound(windows_before.begin(), windows_before.end(), window);
    const auto request = at(after - windows_before.begin()) - 1;
    batch_rows.resize(at(batch));
    std::iota(batch_rows.begin(), batch_rows.end(),
              usable.requests[request].row_start + window - windows_before[request]);
  }
  return rows;
}

Batches sample_batches(const RoutingTrace& trace, const Usable& usable, int batch,
                       const ReplayConfig& config) {
  const bool consecutive = config.sample == ReplaySample::consecutive;
  // A batch that needs no second token of any request is the same under "several" as under
  // "distinct".
  const auto name = replay_sample_names[consecutive ? 1 : 0];
  const Rng rng(config.seed, fmt::format("replay/{}/{}", name, batch));
  BatchRows rows = consecutive ? consecutive_rows(usable, batch, config.sampled_batches, rng)
                               : rows_of_requests(usable, batch, config.sampled_batches,
                                                  config.sample == ReplaySample::distinct, rng);
  const double per_request =
      consecutive ? batch : std::max(1.0, batch / static_cast<double>(usable.requests.size()));
  return {trace, std::move(rows), config.gpus, per_request};
}

}  // namespace

std::vector<Batches> draw_batches(const RoutingTrace& trace, const ReplayConfig& config,
                                  const Usable& usable) {
  std::vector<Batches> draws;
  for (const int batch : config.batches)
    draws.push_back(sample_batches(trace, usable, batch, config));
  return draws;
}

std::string leave_out_large_batches(const RoutingTrace& trace, ReplayConfig& config) {
  if (config.sample == ReplaySample::several) return "";
  const Usable usable = usable_requests(trace, config);
  std::int64_t most = std::ssize(usable.requests);
  if (config.sample == ReplaySample::consecutive) {
    most = 0;
    for (const TraceRequest& request : usable.requests)
      most = std::max<std::int64_t>(most, request.num_tokens);
  }
  const auto large = std::stable_partition(config.batches.begin(), config.batches.end(),
                                           [&](int batch) { return batch <= most; });
  const std::vector<int> out(large, config.batches.end());
  if (out.empty() || out.size() == config.batches.size()) return "";
  config.batches.erase(large, config.batches.end());
  const std::string why = config.sample == ReplaySample::consecutive
                              ? fmt::format("the longest usable request has {} tokens", most)
                              : usable.described;
  return fmt::format(
      "batches of {} are left out: {}; --sample several takes several tokens of each "
      "request",
      fmt::join(out, ", "), why);
}

RoutingTrace drawn_again(const RoutingTrace& trace, Rng& rng) {
  const auto recorded = trace.requests();
  const std::vector<char> fitted = fitted_half(trace);
  std::map<std::pair<int, bool>, std::vector<std::size_t>> places_of;
  for (std::size_t i = 0; i < recorded.size(); ++i)
    places_of[{recorded[i].workload, is_usable(recorded[i])}].push_back(i);
  std::vector<TraceRequest> drawn(recorded.begin(), recorded.end());
  for (const auto& [kind, places] : places_of) {
    std::vector<std::size_t> dealt = places;
    for (std::size_t i = dealt.size(); i > 1; --i) std::swap(dealt[i - 1], dealt[rng.below(i)]);
    std::array<std::vector<std::size_t>, 2> halves;
    for (std::size_t i = 0; i < places.size(); ++i)
      halves[at(fitted[places[i]])].push_back(dealt[i]);
    for (const std::size_t place : places) {
      const std::vector<std::size_t>& half = halves[at(fitted[place])];
      drawn[place] = recorded[half[rng.below(half.size())]];
    }
  }
  return trace.with_requests(std::move(drawn));
}

}  // namespace moesim
