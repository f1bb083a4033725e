// SPDX-License-Identifier: Apache-2.0
#include "sim/report/measurement.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "hardware/at.hpp"

namespace moesim {

namespace {

constexpr std::size_t hot_ranks_kept = 20;
// With so many the steps that a window cuts at its ends are less than half of it.
constexpr std::int64_t several_steps = 4;

// Into a list in order of ratio; of equals the earlier one stays first.
void keep_worst(std::vector<HotRank>& worst, const HotRank& event) {
  if (worst.size() == hot_ranks_kept && worst.back().ratio >= event.ratio) return;
  const auto place = std::find_if(worst.begin(), worst.end(),
                                  [&](const HotRank& other) { return other.ratio < event.ratio; });
  worst.insert(place, event);
  if (worst.size() > hot_ranks_kept) worst.pop_back();
}

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

std::int64_t nanoseconds(Seconds time) { return std::llround(time.count() * 1e9); }

}  // namespace

double Totals::busy_seconds() const {
  return by_kind[0].seconds + by_kind[1].seconds + by_kind[2].seconds;
}

Measurement::Measurement(const Deployment& deployment, std::int64_t total_blocks)
    : deployment_(deployment),
      total_blocks_(total_blocks),
      warmup_requests_(static_cast<std::int64_t>(
          deployment.warmup * static_cast<double>(deployment.workload.requests))) {
  if (!deployment.expert_counts) return;
  const RoutingTrace& prefill =
      deployment.prefill_trace ? *deployment.prefill_trace : deployment.trace;
  row_uses_[0].resize(static_cast<std::size_t>(prefill.tokens()));
  row_uses_[1].resize(static_cast<std::size_t>(deployment.trace.tokens()));
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
  ++arrived_;
  start_if_warm(now);
  ++running_.arrived;
}

void Measurement::request_left(Time now) {
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
    std::vector<std::uint32_t>& uses = row_uses_[static_cast<std::size_t>(range.phase)];
    if (uses.empty() || batch.ranks[static_cast<std::size_t>(range.rank)].dummy) continue;
    for (std::int64_t row = 0; row < range.count; ++row) {
      ++uses[static_cast<std::size_t>(range.first_row + row)];
    }
  }
  WindowTokens tokens{
      .output = double(record.tokens),
      .computed = double(record.step.prefill_tokens) + double(record.step.decode_tokens),
      .hbm_bytes = record.cost.hbm_bytes,
      .energy = record.cost.energy};
  if (!deployment_.scheduler->prompts_arrive_computed()) {
    for (const Milestone& token : record.milestones)
      if (token.first) tokens.prompt += requests[token.request].prompt_tokens;
  }
  for (const TokenGap& gap : record.gaps) add_gap(gap);
  add(running_, record, tokens, now);
  // Of two pools the one that decodes says what is measured of both.
  if (measuring_ && (deployment_.prefill_only || !long_enough_)) {
    add(whole_, record, tokens, now);
    long_enough_ = running_.arrived > 0 && holds_several_steps(running_);
  }
  if (before_drain_) add_share(*before_drain_, record, tokens, now, before_drain_->end);
}

void Measurement::add(Totals& totals, const StepRecord& record, const WindowTokens& tokens,
                      Time now) const {
  add_step(totals, record, now);
  add_share(totals, record, tokens, now, now);
  for (std::size_t phase = 0; phase < 2; ++phase) {
    totals.coverage[phase].recorded += record.step.coverage[phase].recorded;
    totals.coverage[phase].borrowed += record.step.coverage[phase].borrowed;
    totals.coverage[phase].wrapped += record.step.coverage[phase].wrapped;
    totals.coverage[phase].synthetic += record.step.coverage[phase].synthetic;
  }
  totals.groups[record.instance].output_tokens += record.tokens;
  totals.completed += std::ranges::count(record.milestones, true, &Milestone::last);
  totals.end = now;
}

void Measurement::add_step(Totals& totals, const StepRecord& record, Time now) const {
  const StepSummary& step = record.step;
  const StepCost& cost = record.cost;
  const double seconds = cost.total.count();
  StepTotals& kind = totals.by_kind[static_cast<std::size_t>(step.kind)];
  ++kind.steps;
  kind.seconds += seconds;
  kind.prefill_tokens += step.prefill_tokens;
  kind.decode_tokens += step.decode_tokens;
  kind.dummy_ranks += step.dummy_ranks;
  ++totals.steps_by_rule[static_cast<std::size_t>(step.rule)];
  totals.seconds_by_rule[static_cast<std::size_t>(step.rule)] += seconds;
  for (std::size_t part = 0; part < totals.parts.size(); ++part) {
    for (std::size_t resource = 0; resource < totals.parts[part].size(); ++resource) {
      totals.parts[part][resource] += cost.parts[part][resource];
      kind.parts[part] += cost.parts[part][resource];
    }
    for (std::size_t ground = 0; ground < totals.by_evidence[part].size(); ++ground) {
      totals.by_evidence[part][ground] += cost.by_evidence[part][ground];
    }
  }
  totals.dispatch += cost.dispatch;
  totals.combine += cost.combine;
  totals.all_reduce += cost.all_reduce;
  totals.idle.resize(cost.idle.size());
  for (std::size_t gpu = 0; gpu < cost.idle.size(); ++gpu) totals.idle[gpu] += cost.idle[gpu];
  if (cost.afd) totals.afd += *cost.afd;
  totals.flops += cost.flops;
  totals.hbm_bytes += cost.hbm_bytes;
  totals.kv_block_seconds += static_cast<double>(step.kv_blocks_used) * seconds;
  totals.kv_blocks_peak = std::max(totals.kv_blocks_peak, step.kv_blocks_used);
  totals.preemptions += step.preemptions;
  totals.recomputed += step.recomputed;
  totals.prefix_queried += step.prefix_queried;
  totals.prefix_hit += step.prefix_hit;
  totals.prefix_loaded += step.prefix_loaded;
  for (std::size_t t = 0; t < step.prefix_of_lower.size(); ++t)
    totals.prefix_of_lower[t] += step.prefix_of_lower[t];
  totals.steps_held += step.held.prompts > 0 ? 1 : 0;
  totals.tokens_held += step.held.tokens;
  totals.prompt_seconds_held += step.held.prompts * seconds;
  totals.cut_rank_steps += step.cut_ranks;
  totals.cut_steps += step.cut_ranks > 0 ? 1 : 0;
  totals.expert_memory += cost.expert_memory;
  totals.speculation += record.speculation;
  GroupTotals& group = totals.groups[record.instance];
  ++group.steps;
  group.seconds += seconds;
  group.idle += std::accumulate(cost.idle.begin(), cost.idle.end(), 0.0);
  group.prefill_tokens += step.prefill_tokens;
  group.decode_tokens += step.decode_tokens;
  group.preemptions += step.preemptions;
  group.prefix_queried += step.prefix_queried;
  group.prefix_hit += step.prefix_hit;
  group.kv_block_seconds += static_cast<double>(step.kv_blocks_used) * seconds;
  group.kv_blocks_peak = std::max(group.kv_blocks_peak, step.kv_blocks_used);
  if (!cost.samples.empty()) {
    ++kind.experts.steps_by_samples[cost.samples];
  } else {
    add_layers(kind.experts, totals, {cost.layers, cost.tokens_of_expert, cost.passes}, 1, now);
  }
}

namespace {

// What EP ranks did in one layer of a step.
struct RankSums {
  double ranks = 0, activated = 0, tokens = 0, squares = 0;
  double mean() const { return tokens / ranks; }
  double variation() const {
    return std::sqrt(std::max(0.0, squares / ranks - mean() * mean())) / mean();
  }
};

RankSums add_ranks(const LayerLoad& load, std::int64_t steps, ExpertTotals::Layer& layer) {
  layer.tokens_of_rank.resize(load.tokens.size());
  layer.activated_of_rank.resize(load.tokens.size());
  RankSums sums{.ranks = static_cast<double>(load.tokens.size())};
  for (std::size_t rank = 0; rank < load.tokens.size(); ++rank) {
    sums.activated += load.activated[rank];
    sums.tokens += load.tokens[rank];
    sums.squares += double(load.tokens[rank]) * load.tokens[rank];
    layer.tokens_of_rank[rank] += load.tokens[rank] * steps;
    layer.activated_of_rank[rank] += load.activated[rank] * steps;
  }
  layer.rank_tokens.add(load.tokens, steps);
  layer.rank_activated.add(load.activated, steps);
  return sums;
}

// With a shared expert that is a slot: adds the rows of each rank, those of the shared expert
// included.
void add_shared_rows(const LayerOutcome& outcome, double times, ExpertTotals& totals) {
  if (outcome.shared_tokens.empty()) return;
  double most = 0, sum = 0;
  for (std::size_t rank = 0; rank < outcome.shared_tokens.size(); ++rank) {
    const double rows = double(outcome.load.tokens[rank]) + outcome.shared_tokens[rank];
    most = std::max(most, rows);
    sum += rows;
  }
  totals.max_rows += most * times;
  totals.mean_rows += sum / static_cast<double>(outcome.shared_tokens.size()) * times;
}

}  // namespace

// What so many steps did in their MoE layers; `now`, if it was one.
void Measurement::add_layers(ExpertTotals& totals, Totals& all, const LayersDone& done,
                             std::int64_t steps, std::optional<Time> now) const {
  const MoeModel& model = deployment_.model;
  const auto experts = at(model.experts);
  const auto times = static_cast<double>(steps);
  totals.layers.resize(done.layers.size());
  for (std::size_t l = 0; l < done.layers.size(); ++l) {
    const LayerOutcome& outcome = done.layers[l];
    const LayerLoad& load = outcome.load;
    ExpertTotals::Layer& layer = totals.layers[l];
    const RankSums sums = add_ranks(load, steps, layer);
    const auto tokens_of_layer = done.tokens_of_expert.subspan(l * experts, experts);
    layer.expert_tokens.add(tokens_of_layer, steps);
    // As whole numbers, of which several are added at a time.
    const auto selections = static_cast<double>(
        std::accumulate(tokens_of_layer.begin(), tokens_of_layer.end(), std::int64_t{0}));
    const double ratio = load.max_tokens / sums.mean();
    const bool hot = ratio > deployment_.hot_rank_threshold;
    totals.layer_steps += times;
    totals.max_activated += load.max_activated * times;
    totals.mean_activated += sums.activated / sums.ranks * times;
    totals.max_tokens += load.max_tokens * times;
    totals.mean_tokens += sums.mean() * times;
    totals.cv += sums.variation() * times;
    totals.active_experts += outcome.active_experts * times;
    totals.uniformly_active +=
        done.passes *
        uniformly_active(model.experts, model.experts_per_token,
                         selections / model.experts_per_token / done.passes) *
        times;
    totals.useful_rows += static_cast<double>(outcome.useful_rows) * times;
    totals.padded_rows += static_cast<double>(outcome.padded_rows) * times;
    add_shared_rows(outcome, times, totals);
    totals.step_copies += outcome.step_copies * times;
    totals.step_copy_bytes += (outcome.bringing.nvlink + outcome.bringing.network).value() * times;
    for (std::int64_t Locality::*count :
         {&Locality::selections, &Locality::own_gpu, &Locality::own_domain})
      totals.locality.*count += outcome.locality.*count * steps;
    totals.capacity += outcome.capacity;
    totals.hot_layer_steps += hot ? steps : 0;
    totals.hottest = std::max(totals.hottest, ratio);
    if (hot && now) {
      const auto busiest = std::max_element(load.tokens.begin(), load.tokens.end());
      keep_worst(all.hot_ranks, {*now, static_cast<std::int32_t>(l),
                                 static_cast<std::int32_t>(busiest - load.tokens.begin()), ratio});
    }
    if (!outcome.exchange.name.empty()) all.layers_by_dispatch[outcome.exchange.name] += steps;
    all.dispatch_ns.add(nanoseconds(outcome.exchange.dispatch.time), steps);
    all.combine_ns.add(nanoseconds(outcome.exchange.combine.time), steps);
  }
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

bool Measurement::steady() const {
  return before_drain_ && before_drain_->end > before_drain_->begin &&
         holds_several_steps(*before_drain_) &&
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
  for (StepTotals& kind : totals.by_kind) {
    for (const auto& [samples, steps] : kind.experts.steps_by_samples) {
      const StepSample& first = *samples.front();
      std::vector<LayerOutcome> layers = first.layers();
      std::vector<std::int32_t> tokens_of_expert = first.tokens_of_expert();
      for (const StepSample* sample : std::span(samples).subspan(1)) {
        moesim::add_layers(layers, sample->layers());
        std::ranges::transform(tokens_of_expert, sample->tokens_of_expert(),
                               tokens_of_expert.begin(), std::plus());
      }
      add_layers(kind.experts, totals, {layers, tokens_of_expert, static_cast<int>(samples.size())},
                 steps, std::nullopt);
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
