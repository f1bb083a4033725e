// SPDX-License-Identifier: Apache-2.0
#include "traces/trace_rows.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/config.hpp"
#include "hardware/units.hpp"
#include "traces/halves.hpp"

namespace moesim {

RowSource::PhaseRows RowSource::phase_rows(RoutingTrace trace, Phase phase, bool other_half,
                                           const BindingOrder& order) {
  PhaseRows rows{std::move(trace), false, {}, {}, {}, {}};
  rows.borrowed = !rows.trace.recorded(phase_names[index(phase)]);
  rows.workloads.resize(rows.trace.workloads().size());
  const std::vector<char> fitted = fitted_half(rows.trace);
  for (std::uint32_t i = 0; i < rows.trace.requests().size(); ++i) {
    const TraceRequest& recorded = rows.trace.requests()[i];
    Rows own{recorded.row_start, recorded.num_tokens, static_cast<std::uint32_t>(recorded.workload),
             0};
    if (!rows.borrowed && phase == Phase::prefill) own.count = recorded.prompt_rows;
    if (!rows.borrowed && phase == Phase::decode) {
      own.first += recorded.prompt_rows;
      own.count = recorded.decode_rows();
    }
    Workload& workload = rows.workloads[own.workload];
    own.offset = workload.rows;
    rows.requests.push_back(own);
    if (own.count == 0 || (other_half && fitted[i] != 0)) continue;
    workload.rows += own.count;
    workload.requests.push_back(i);
    rows.bindable.push_back(i);
  }
  if (rows.bindable.empty()) {
    throw ConfigError("routing trace of {} has no request to replay in {}", rows.trace.meta().model,
                      phase_names[index(phase)]);
  }
  for (const std::vector<std::string>& tags : order.phases) {
    std::vector<std::uint32_t>& chosen = rows.bindable_in_turn.emplace_back();
    for (const std::uint32_t request : rows.bindable) {
      const std::string& tag = rows.trace.workloads()[rows.requests[request].workload];
      if (std::find(tags.begin(), tags.end(), tag) != tags.end()) chosen.push_back(request);
    }
    if (chosen.empty()) {
      throw ConfigError("routing trace of {} has no request of \"{}\" to replay in {}; it has: {}",
                        rows.trace.meta().model, fmt::join(tags, "\", \""),
                        phase_names[index(phase)], fmt::join(rows.trace.workloads(), ", "));
    }
  }
  return rows;
}

RowSource::RowSource(RoutingTrace trace, std::optional<RoutingTrace> prefill, bool other_half,
                     std::uint64_t seed, const BindingOrder& order)
    : phases_{phase_rows(prefill ? *prefill : trace, Phase::prefill, other_half, order),
              phase_rows(std::move(trace), Phase::decode, other_half, order)},
      one_trace_(!prefill),
      requests_(std::max<std::int64_t>(1, order.requests)),
      by_session_(order.by_session),
      binding_rng_(seed, "row_source/binding"),
      place_rng_(seed, "row_source/place"),
      dummy_rng_(seed, "row_source/dummy") {}

Binding RowSource::bind(std::optional<std::uint32_t> session) {
  Binding binding;
  const auto known = by_session_ && session ? first_of_.find(*session) : first_of_.end();
  const std::int64_t place = std::min(bound_++, requests_ - 1);
  for (const Phase phase : {Phase::decode, Phase::prefill}) {
    const PhaseRows& source = phases_[index(phase)];
    const std::int64_t turns = std::ssize(source.bindable_in_turn);
    const std::vector<std::uint32_t>* bindable =
        turns == 0 ? &source.bindable
                   : &source.bindable_in_turn[static_cast<std::size_t>(place * turns / requests_)];
    if (known != first_of_.end()) {
      const Rows& first = source.requests[known->second.request[index(phase)]];
      bindable = &source.workloads[first.workload].requests;
    }
    binding.request[index(phase)] = (*bindable)[binding_rng_.below(bindable->size())];
  }
  // A recording serves both phases when it holds both.
  const Rows& prompt = phases_[0].requests[binding.request[index(Phase::decode)]];
  if (one_trace_ && prompt.count > 0) {
    binding.request[index(Phase::prefill)] = binding.request[index(Phase::decode)];
  }
  if (by_session_ && session && known == first_of_.end()) first_of_[*session] = binding;
  return binding;
}

void RowSource::append(const Binding& binding, RowRange tokens, std::vector<RowRange>& out,
                       RoutingCoverage& coverage) const {
  auto [phase, rank, count, first] = tokens;
  const PhaseRows& source = phases_[index(phase)];
  const Rows& own = source.requests[binding.request[index(phase)]];
  const auto from_own =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(own.count - first, 0, count));
  if (source.trace.meta().synthetic) {
    coverage.synthetic += count;
  } else if (source.borrowed) {
    coverage.borrowed += from_own;
    coverage.wrapped += count - from_own;
  } else {
    coverage.recorded += from_own;
    coverage.wrapped += count - from_own;
  }
  if (from_own > 0) {
    out.push_back({phase, rank, from_own, own.first + first});
    first += from_own;
    count -= from_own;
  }
  // Past its end the recording goes on with the next request of its workload, round and round.
  const Workload& workload = source.workloads[own.workload];
  while (count > 0) {
    const std::int64_t place = (own.offset + first) % workload.rows;
    const auto after = std::upper_bound(
        workload.requests.begin(), workload.requests.end(), place,
        [&](std::int64_t p, std::uint32_t r) { return p < source.requests[r].offset; });
    const Rows& next = source.requests[*(after - 1)];
    const std::int64_t skipped = place - next.offset;
    const auto taken =
        static_cast<std::int32_t>(std::min<std::int64_t>(count, next.count - skipped));
    out.push_back({phase, rank, taken, next.first + skipped});
    first += taken;
    count -= taken;
  }
}

std::int64_t RowSource::random_place(const Binding& binding, Phase phase) {
  const std::int64_t rows = recorded(binding, phase);
  return rows == 0 ? 0
                   : static_cast<std::int64_t>(place_rng_.below(static_cast<std::uint64_t>(rows)));
}

RowRange RowSource::dummy(std::int32_t rank) {
  const PhaseRows& source = phases_[index(Phase::decode)];
  const Rows& rows = source.requests[source.bindable[dummy_rng_.below(source.bindable.size())]];
  const auto row =
      static_cast<std::int64_t>(dummy_rng_.below(static_cast<std::uint64_t>(rows.count)));
  return {Phase::decode, rank, 1, rows.first + row};
}

}  // namespace moesim
