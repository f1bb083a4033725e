// SPDX-License-Identifier: Apache-2.0
#include "sim/report/measurement.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "hardware/at.hpp"
#include "traces/requests/arrivals.hpp"

namespace moesim {

namespace {

// With so many the steps that a window cuts at its ends are less than half of it.
constexpr std::int64_t several_steps = 4;

// The share of a step from `start` to `end` that lies in the window.
double share_within(Time start, Time end, Time window_begin, Time window_end) {
  if (end <= start) return 1;
  const Duration inside = std::min(end, window_end) - std::max(start, window_begin);
  return std::max(0.0, to_seconds(inside) / to_seconds(end - start));
}

void add_share(Totals& totals, const StepRecord& record, const WindowTokens& of_step, Time now,
               Time window_end) {
  const double share = share_within(record.step.start, now, totals.begin, window_end);
  totals.tokens.output += share * of_step.output;
  totals.tokens.prompt += share * of_step.prompt;
  totals.tokens.computed += share * of_step.computed;
  totals.tokens.hbm_bytes += share * of_step.hbm_bytes;
  totals.tokens.energy.add(of_step.energy, share);
  // By the clock, like the window: it rounds a step's cost to whole picoseconds.
  totals.groups[record.instance].busy += share * to_seconds(now - record.step.start).count();
}

}  // namespace

Measurement::Measurement(const Deployment& deployment, std::int64_t total_blocks)
    : deployment_(deployment),
      total_blocks_(total_blocks),
      warmup_requests_(static_cast<std::int64_t>(
          deployment.warmup * static_cast<double>(deployment.workload.requests))),
      closed_(deployment.workload.arrivals->closed_for(deployment.workload.requests)) {
  if (!deployment.expert_counts) return;
  const RoutingTrace& prefill =
      deployment.prefill_trace ? *deployment.prefill_trace : deployment.trace;
  row_uses_[0].resize(at(prefill.tokens()));
  row_uses_[1].resize(at(deployment.trace.tokens()));
}

void Measurement::start_if_warm(Time now) {
  if (measuring_ || arrived_ <= warmup_requests_ || left_ < warmup_requests_) return;
  measuring_ = true;
  whole_ = std::exchange(running_, {});
  running_.begin = now;
  running_.first_gap = running_.end_gap = gaps_.size();
  before_drain_.reset();
}

void Measurement::request_arrived(Time now) {
  count_in_flight(now);
  ++arrived_;
  start_if_warm(now);
  ++running_.arrived;
}

void Measurement::request_left(Time now) {
  count_in_flight(now);
  ++left_;
  start_if_warm(now);
}

void Measurement::no_more_arrivals(Time now) {
  running_.end = now;
  before_drain_ = running_;
}

void Measurement::add_gap(TokenGap gap) {
  constexpr std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  // Gaps before the first open one are in totals that have ended.
  const std::size_t first_open = before_drain_ ? before_drain_->end_gap : running_.first_gap;
  if (gaps_.size() > first_open && gaps_.back().duration() == gap.length) {
    const std::uint32_t again = std::min(most - gaps_.back().count(), gap.tokens);
    gaps_.back().repeat(again);
    gap.tokens -= again;
  }
  if (gap.tokens == 0) return;
  gaps_.emplace_back(gap.length, gap.tokens);
  running_.end_gap = gaps_.size();
}

void Measurement::step_ended(const StepRecord& record, const Requests& requests, Time now) {
  ++steps_;
  ++steps_of_group_[record.instance];
  over_time_.add(record, now);
  const StepBatch& batch = record.batch;
  for (const RowRange& range : batch.rows) {
    routed_ids_ += range.count * deployment_.trace.row_ids();
    std::vector<std::uint32_t>& uses = row_uses_[at(range.phase)];
    if (uses.empty() || batch.ranks[at(range.rank)].dummy) continue;
    for (std::int64_t row = 0; row < range.count; ++row) {
      ++uses[at(range.first_row + row)];
    }
  }
  WindowTokens tokens{
      .output = double(record.tokens),
      .computed = double(record.step.prefill_tokens) + double(record.step.decode_tokens),
      .hbm_bytes = record.cost.hbm_bytes,
      .energy = record.cost.energy};
  // Prompts count in the pool that computes them.
  const bool computes = deployment_.prefill_only || deployment_.first_token == FirstToken::prefill;
  if (computes && !deployment_.scheduler->prompts_arrive_computed()) {
    for (const Milestone& token : record.milestones)
      if (token.first) tokens.prompt += requests[token.request].prompt_tokens;
  }
  for (const TokenGap& gap : record.gaps) add_gap(gap);
  add(running_, record, tokens, now);
  // Of two pools the one that decodes says what is measured of both.
  if (measuring_ && (deployment_.prefill_only || !long_enough_)) {
    add(whole_, record, tokens, now);
    long_enough_ = running_.arrived > 0 && holds_several_steps(running_) &&
                   !(closed_ && before_drain_) && lasts(running_);
  }
  if (before_drain_) add_share(*before_drain_, record, tokens, now, before_drain_->end);
}

void Measurement::add(Totals& totals, const StepRecord& record, const WindowTokens& tokens,
                      Time now) const {
  add_step(totals, record, now);
  add_share(totals, record, tokens, now, now);
  totals.groups[record.instance].output_tokens += record.tokens;
  totals.completed += std::ranges::count(record.milestones, true, &Milestone::last);
  totals.end = now;
}

void Measurement::add_step(Totals& totals, const StepRecord& record, Time now) const {
  std::apply(
      [&](auto&... sum) {
        const auto add = [&](auto& one) {
          if constexpr (requires { one.add(record); }) one.add(record);
        };
        (add(sum), ...);
      },
      totals.sums);
  const StepSummary& step = record.step;
  const StepCost& cost = record.cost;
  GroupTotals& group = totals.groups[record.instance];
  ++group.steps;
  group.seconds += cost.total.count();
  group.idle += std::accumulate(cost.idle.begin(), cost.idle.end(), 0.0);
  group.prefill_tokens += step.prefill_tokens;
  group.decode_tokens += step.decode_tokens;
  group.kv.add(record);
  if (cost.samples.empty()) {
    add_layers(totals, step.kind, {cost.layers, cost.tokens_of_expert, cost.passes}, 1, now);
  } else {
    auto& of_kind = std::get<ExpertSum>(totals.sums).by_kind[at(step.kind)];
    ++of_kind.steps_by_samples[cost.samples];
  }
}

void Measurement::add_layers(Totals& totals, StepKind kind, const LayersDone& done,
                             std::int64_t steps, std::optional<Time> now) const {
  std::get<ExpertSum>(totals.sums).add_layers(deployment_, kind, done, steps, now);
  std::get<CommunicationSum>(totals.sums).add_layers(done.layers, steps);
}

bool Measurement::holds_several_steps(const Totals& totals) const {
  // A group that may change pools need not have computed in this one all the time.
  if (deployment_.may_join > 0) {
    const auto enough = [](const auto& group) { return group.second.steps >= several_steps; };
    return std::ranges::count_if(totals.groups, enough) > 0;
  }
  return std::ranges::all_of(steps_of_group_, [&](const auto& group) {
    const auto found = totals.groups.find(group.first);
    return found != totals.groups.end() && found->second.steps >= several_steps;
  });
}

bool Measurement::lasts(const Totals& totals) const {
  constexpr double least = 0.9;  // of the mean time that requests are in flight
  return !closed_ || (left_ > 0 && to_seconds(totals.end - totals.begin).count() >=
                                       least * in_flight_seconds_ / double(left_));
}

void Measurement::count_in_flight(Time now) {
  in_flight_seconds_ += double(arrived_ - left_) * to_seconds(now - changed_).count();
  changed_ = now;
}

bool Measurement::steady() const {
  return before_drain_ && before_drain_->end > before_drain_->begin &&
         holds_several_steps(*before_drain_) && lasts(*before_drain_) &&
         2 * (before_drain_->completed + before_drain_->abandoned) >= before_drain_->arrived;
}

Measurement::Window Measurement::window() const {
  if (steady()) return Window::steady;
  return measuring_ && !long_enough_ ? Window::whole : Window::after_warm_up;
}

Totals Measurement::finish(Time now, Window window) {
  if (window == Window::whole && measuring_) {
    whole_.arrived += running_.arrived;
    whole_.abandoned += running_.abandoned;
  }
  Totals& last = window == Window::whole && measuring_ ? whole_ : running_;
  last.end = now;
  last.end_gap = gaps_.size();
  Totals totals = window == Window::steady ? *before_drain_ : last;
  for (const StepKind kind : {StepKind::prefill, StepKind::decode, StepKind::mixed}) {
    for (const auto& [samples, steps] : totals.of<ExpertSum>().by_kind[at(kind)].steps_by_samples) {
      const StepSample& first = *samples.front();
      std::vector<LayerOutcome> layers = first.layers();
      std::vector<std::int32_t> tokens_of_expert = first.tokens_of_expert();
      for (const StepSample* sample : std::span(samples).subspan(1)) {
        moesim::add_layers(layers, sample->layers());
        std::ranges::transform(tokens_of_expert, sample->tokens_of_expert(),
                               tokens_of_expert.begin(), std::plus());
      }
      add_layers(totals, kind, {layers, tokens_of_expert, static_cast<int>(samples.size())}, steps,
                 std::nullopt);
    }
  }
  return totals;
}

std::vector<Repeated> Measurement::take_gaps(const Totals& totals) {
  const auto begin = gaps_.begin();
  gaps_.erase(begin + std::ptrdiff_t(totals.end_gap), gaps_.end());
  gaps_.erase(begin, begin + std::ptrdiff_t(totals.first_gap));
  return std::move(gaps_);
}

}  // namespace moesim
