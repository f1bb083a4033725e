// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/instance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/serving/padding.hpp"
#include "sim/step/cut_anew.hpp"

namespace moesim {

Instance::Instance(const Deployment& deployment, RowSource& rows, Requests& requests,
                   InstanceLinks links)
    : deployment_(deployment),
      sampler_(links.sampler),
      price_(links.price),
      rows_(rows),
      requests_(requests),
      number_(links.number),
      below_(std::move(links.below)),
      speculation_(deployment, number_),
      layout_(deployment),
      alignment_(deployment.prefill_alignment.policy ? deployment.prefill_alignment.policy()
                                                     : nullptr) {
  if (sampler_ == nullptr) models_.emplace(deployment);
  for (int r = 0; r < deployment.parallel.dp; ++r)
    ranks_.push_back({.queue = RankQueue(deployment.kv_layout), .kv = empty_cache(at(r))});
  if (deployment.in_decode && deployment.parallel.decode_weights == DecodeWeights::moved) {
    const Bytes weights =
        expert_bytes(deployment.model, deployment.parallel, deployment.precision) *
        (deployment.parallel.moe_tp() * double(deployment.model.experts) *
         deployment.model.moe_layers());
    recut_ = cut_anew(Fabric(deployment.cluster), deployment.parallel,
                      deployment.in_decode->parallel, weights);
  }
  batch_.ranks.resize(ranks_.size());
}

KvCache Instance::empty_cache(std::size_t rank) const {
  return {deployment_.kv_layout,
          deployment_.memory.kv_blocks,
          deployment_.prefix_caching,
          deployment_.speculation.has_module(),
          below_.empty() ? TierPort{} : below_[rank],
          remembers_agents(deployment_)};
}

std::int64_t Instance::total_blocks() const {
  return deployment_.memory.kv_blocks * static_cast<std::int64_t>(ranks_.size());
}

std::int64_t Instance::used_blocks() const {
  std::int64_t used = 0;
  for (const Rank& rank : ranks_) used += rank.kv.blocks() - rank.kv.free_blocks();
  return used;
}

// The last output token is never fed back, so it needs no room. Drafts behind it do, as it is not
// known to be the last one before.
std::int64_t Instance::tokens_at_end(const RequestRecord& request) const {
  const std::int32_t outputs = deployment_.prefill_only ? 1 : request.output_tokens;
  const std::int32_t drafts = deployment_.prefill_only ? 0 : deployment_.speculation.tokens;
  return std::int64_t{request.prompt_tokens} + outputs - 1 + drafts;
}

bool Instance::can_ever_hold(const RequestRecord& request) const {
  const std::int64_t limit = deployment_.max_model_len;
  if (limit > 0 && std::int64_t{request.prompt_tokens} + request.output_tokens > limit)
    return false;
  const std::int64_t tokens = tokens_at_end(request);
  const std::int32_t chunk = deployment_.scheduler->max_num_batched_tokens();
  return deployment_.kv_layout.blocks_at_most(tokens, chunk) <=
         deployment_.memory.kv_blocks - for_experts_;
}

void Instance::submit(std::uint32_t id, std::size_t index) {
  ++changes_;
  RequestRecord& request = requests_[id];
  request.instance = number_;
  request.rank = static_cast<std::int32_t>(index);
  check(can_ever_hold(request), "a request was sent to a rank that can never hold it");
  Rank& rank = ranks_[index];
  // If tokens arrive computed (a prompt, or a prompt and the first output token), the last one is
  // left, and its step emits the next. The first is emitted again where clients see it then. What
  // was generated before a failure is lost with the KV cache.
  if (deployment_.shows_first(FirstToken::decode) && request.first_token == Time{})
    request.generated = 0;
  const bool computed = request.kv_arrived || (request.generated == 0 &&
                                               deployment_.scheduler->prompts_arrive_computed());
  const std::int32_t tokens = request.prompt_tokens + request.generated;
  Sequence sequence{id, tokens, computed ? tokens - 1 : 0,
                    computed ? tokens - 1 : request.prompt_tokens, 0};
  sequence.at_end = static_cast<std::int32_t>(tokens_at_end(request));
  if (request.routing.locality > 0) sequence.locality = request.routing.locality;
  if (deployment_.scheduler->reorders()) {
    constexpr Seconds longest{2.592e6};  // 30 days, of the clock's 106
    if (!deployment_.classes.empty())
      sequence.priority = deployment_.classes[request.of_class].priority;
    if (const auto& ttft = deployment_.slo_of(request.of_class).ttft) {
      sequence.deadline =
          request.arrival + to_duration(std::min(*ttft / deployment_.anchored_ttft, longest));
    }
    sequence.topic = rows_.workload(request.binding);
  }
  if (deployment_.prefix_caching) {
    rank.kv.expect(id, request.prompt_tokens,
                   known_hashes(request.prompt_ids.get(), id, request.prompt_tokens,
                                deployment_.kv_layout.block_tokens),
                   request.agent());
  }
  rank.kv_tokens += tokens;
  rank.queue.arrive(sequence);
}

void Instance::open(bool takes_requests) {
  ++changes_;
  open_ = takes_requests;
  if (!takes_requests) return;
  for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].kv = empty_cache(r);
}

bool Instance::idle() const {
  return !stepping_ && std::ranges::all_of(ranks_, [](const Rank& rank) {
    return rank.running.empty() && rank.queue.sequences() == 0 && rank.sending.empty();
  });
}

std::int64_t Instance::requests() const {
  std::int64_t all = waiting();
  for (const Rank& rank : ranks_) all += std::ssize(rank.running) + std::ssize(rank.sending);
  return all;
}

std::int64_t Instance::waiting() const {
  std::int64_t waiting = 0;
  for (const Rank& rank : ranks_) waiting += rank.queue.sequences();
  return waiting;
}

void Instance::abandon(std::uint32_t id) {
  ++changes_;
  Rank& rank = ranks_[at(requests_[id].rank)];
  rank.abandoned = true;
  const auto running = std::ranges::find(rank.running, id, &Sequence::request);
  if (running != rank.running.end()) {
    const auto place = at(running - rank.running.begin());
    write_back(rank, place);
    rank.progress[place].abandoned = true;
  }
  if (!stepping_) drop_abandoned();
}

// Brings the record of a running request up to date.
void Instance::write_back(const Rank& rank, std::size_t place) {
  RequestRecord& request = requests_[rank.running[place].request];
  request.generated = rank.progress[place].generated;
  request.last_token = rank.progress[place].last_token;
}

namespace {

// Erases sequences that run no more, asked for once each, in order.
template <class Rank, class Gone>
void erase_running(Rank& rank, Gone&& gone) {
  std::size_t kept = 0;
  for (std::size_t place = 0; place < rank.running.size(); ++place) {
    if (gone(place)) continue;
    if (kept != place) {
      rank.running[kept] = rank.running[place];
      rank.progress[kept] = rank.progress[place];
    }
    ++kept;
  }
  rank.running.resize(kept);
  rank.progress.resize(kept);
}

}  // namespace

void Instance::drop_abandoned() {
  const auto gone = [&](const Sequence& s) { return requests_[s.request].left(); };
  for (Rank& rank : ranks_) {
    if (!std::exchange(rank.abandoned, false)) continue;
    const auto let_go = [&](Sequence& sequence) {
      rank.kv_tokens -= sequence.tokens;
      rank.kv.finish(sequence);
    };
    erase_running(rank, [&](std::size_t place) {
      if (rank.progress[place].abandoned) let_go(rank.running[place]);
      return rank.progress[place].abandoned;
    });
    rank.queue.drop(gone, let_go);
  }
}

void Instance::loads(bool requests, std::vector<RankLoad>& loads) {
  loads.clear();
  if (!open_) return;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].down) loads.push_back(load(r, requests));
  }
}

RankLoad Instance::load(std::size_t r, bool requests) {
  Rank& rank = ranks_[r];
  RankLoad load;
  load.kv_tokens = rank.kv_tokens;
  load.waiting = rank.queue.sequences();
  load.running = std::ssize(rank.running);
  load.rank = static_cast<std::int32_t>(r);
  load.seats = deployment_.scheduler->max_num_seqs() - load.waiting - load.running;
  load.total_blocks = rank.kv.blocks();
  load.blocks = rank.kv.blocks() - rank.kv.free_blocks() + rank.queue.blocks();
  if (!requests) return load;
  rank.shown.clear();
  for (std::size_t i = 0; i < rank.running.size(); ++i)
    rank.shown.push_back(show_request(rank.running[i], rank.progress[i].generated));
  for (const Sequence& s : rank.queue.waiting())
    rank.shown.push_back(show_request(s, requests_[s.request].generated));
  for (const Parked& parked : rank.queue.parked())
    rank.shown.push_back(
        show_request(parked.sequence, requests_[parked.sequence.request].generated));
  load.requests = rank.shown;
  return load;
}

RankRequest Instance::show_request(const Sequence& sequence, std::int32_t generated) const {
  const RequestRecord& request = requests_[sequence.request];
  // Tokens that the router found cached for a waiting request count as computed.
  const auto expected =
      static_cast<std::int32_t>(std::lround(request.routing.hit_share * request.prompt_tokens));
  const std::int32_t computed = std::max(sequence.computed, expected);
  return {sequence.request, request.prompt_tokens, generated, request.output_tokens,
          std::max(request.prompt_tokens - computed, 0)};
}

CacheHit Instance::find(std::size_t rank, std::span<const BlockHash> prompt,
                        std::int32_t tokens) const {
  return deployment_.prefix_caching ? ranks_[rank].kv.find(prompt, tokens) : CacheHit{};
}

void Instance::classify_step() {
  const bool prefill = summary_.prefill_tokens > 0;
  const bool decode = summary_.decode_tokens > 0;
  summary_.kind = prefill ? (decode ? StepKind::mixed : StepKind::prefill) : StepKind::decode;
  summary_.rule = rule_kind(deployment_.mixed, summary_.kind, summary_.prefill_tokens);
  const bool looks_again = prefill && deployment_.scheduler->separates_phases();
  decodes_since_received_ =
      looks_again ? deployment_.api_server.receive_interval : decodes_since_received_ + 1;
}

// Tokens that were generated before each single token of the step, in its order.
std::span<const std::int32_t> Instance::decode_places() {
  if (!decode_places_.empty()) return decode_places_;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (batch_.ranks[r].dummy) decode_places_.push_back(0);
    const Rank& rank = ranks_[r];
    for (std::size_t i = 0; i < rank.running.size(); ++i) {
      const Sequence& sequence = rank.running[i];
      if (rank.plan.running_tokens[i] == 1)
        decode_places_.push_back(std::max(0, sequence.computed - sequence.prompt_tokens));
    }
  }
  return decode_places_;
}

// If a config has no kernels but two terms, the parts of a step keep their shares of it.
void Instance::take_two_terms() {
  if (!deployment_.two_term) return;
  const auto up = std::ranges::count(ranks_, false, &Rank::down);
  scale_times(cost_, deployment_.two_term->of(batch_, up) / cost_.total);
}

// Prices the step, routed token by token or drawn from samples.
void Instance::price_step(Time now) {
  if (sampler_ != nullptr) {
    sampler_->price(
        summary_.rule, batch_, [this] { return decode_places(); }, cost_);
    take_two_terms();
  } else {
    const auto step = [&](StepKind rule) -> StepInput {
      // Experts of another cut do not move.
      if (&deployment_.of_steps(rule) != &deployment_)
        return step_input(deployment_, rule, batch_, rows_);
      return {batch_, layout_.rules().of(rule), layout_.placement(), rows_};
    };
    models_->of(summary_.rule).price(step(summary_.rule), cost_);
    speculation_.clear_tally();
    speculation_.draft(step(StepKind::decode), cost_);
    take_two_terms();
    layout_.after_step(batch_, request_of_range_, rows_, now, cost_);
  }
}

// Weights move before a step whose experts are cut otherwise than those of the step before.
void Instance::move_experts() {
  const bool for_decode = summary_.rule == StepKind::decode;
  if (!recut_ || std::exchange(cut_for_decode_, for_decode) == for_decode) return;
  charge(cost_, Part::rebalancing, {recut_->time, recut_->bound, {}, recut_->evidence});
  cost_.total += recut_->time;
  cost_.segments.push_back({false, recut_->time.count()});
}

std::optional<Seconds> Instance::begin_step(Time now) {
  if (asleep_at_ == changes_) return std::nullopt;
  ++changes_;
  planned_at_ = now;
  const bool acts_when_idle = !below_.empty() || remembers_agents(deployment_);
  if (acts_when_idle) {
    for (Rank& rank : ranks_) rank.kv.pass(now);
  }
  if (!plan_step()) {
    if (!below_.empty()) move_blocks(now);
    for (const Rank& rank : ranks_) {
      const bool idle = rank.running.empty() && rank.queue.empty();
      check(idle || !rank.sending.empty() || rank.kv.moves(), "a rank with work was left idle");
    }
    if (!acts_when_idle && idle()) asleep_at_ = changes_;
    return std::nullopt;
  }
  layout_.pass(to_seconds(now - busy_until_));
  layout_.switch_arrived();
  summary_ = {};
  summary_.start = now;
  batch_.start = now;
  batch_.rows.clear();
  milestones_.clear();
  request_of_range_.clear();
  decode_places_.clear();
  for (RankStep& step : batch_.ranks) {
    step.sequences.clear();
    step.tokens = step.sampled = step.padding = 0;
    step.dummy = false;
    step.decode_context.reset();
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto index = static_cast<std::int32_t>(r);
    RankStep& step = batch_.ranks[r];
    apply_plan(ranks_[r], index);
    if (step.tokens > 0 || ranks_[r].down) continue;
    // An idle rank runs one token, so that the collectives complete [vLLM].
    step = {{{1, 0}}, 1, 0, 0, true};
    ++summary_.dummy_ranks;
    if (sampler_ != nullptr) continue;
    batch_.rows.push_back(rows_.dummy(index));
    request_of_range_.push_back(StepSeen::no_request);
  }
  if (!below_.empty()) batch_.start = summary_.start = move_blocks(now);
  summary_.kv_blocks_used = used_blocks();
  summary_.held = held_;
  classify_step();
  pad(deployment_, summary_.kind, batch_);
  // A prompt finds the stages behind the first without one where no prompt came just before.
  const bool prompts = summary_.prefill_tokens > 0;
  batch_.fills_pipeline = prompts && !(had_prompts_ && busy_until_ == now);
  had_prompts_ = prompts;
  if (shares_host_link()) share_host_links(now);
  price_step(now);
  move_experts();
  if (shares_host_link()) hold_up_loads(now);
  if (deployment_.anchored_tpot != 1) scale_times(cost_, deployment_.anchored_tpot);
  if (!below_.empty()) stretch_by_loads(now);
  stepping_ = true;
  return to_seconds(summary_.start - now) + cost_.total;
}

// The first and the last of a request's tokens of this step, where they are such.
void Instance::note_milestones(std::uint32_t request, std::int32_t tokens, bool starts,
                               bool finished) {
  if (tokens == 1 || !finished) {
    milestones_.push_back({request, starts, finished});
  } else {
    if (starts) milestones_.push_back({request, true, false});
    milestones_.push_back({request, false, true});
  }
}

// Tokens that came so long after those before them.
[[gnu::always_inline]] inline void Instance::note_gap(Duration length, std::int32_t tokens) {
  if (tokens == 0) return;
  const auto more = static_cast<std::uint32_t>(tokens);
  if (!gaps_.empty() && gaps_.back().length == length) {
    gaps_.back().tokens += more;
  } else {
    gaps_.push_back({length, more});
  }
}

// A step has computed all that was due of a sequence: its next token is known and, if it verified
// drafts, those that hold before it. What was computed of the others is dropped. Answers whether it
// runs no more.
[[gnu::always_inline]] inline bool Instance::emit(Rank& rank, std::size_t place, Time now) {
  Sequence& sequence = rank.running[place];
  Progress& progress = rank.progress[place];
  const std::int32_t drafts = -sequence.due();
  const std::int32_t known = 1 + (drafts > 0 ? speculation_.accept(drafts) : 0);
  const std::int32_t tokens = std::min(known, progress.output_tokens - progress.generated);
  const bool starts = progress.generated == 0;
  const bool shows_first = progress.generated < deployment_.api_server.first_chunk;
  progress.generated += tokens;
  const bool finished = progress.generated == progress.output_tokens;
  const bool hidden =
      deployment_.prefill_only && !finished && deployment_.first_token != FirstToken::prefill;
  // Tokens of one step come as if evenly spaced, as SGLang's benchmark counts them.
  note_gap(tokens == 1 ? now - progress.last_token : (now - progress.last_token) / tokens,
           tokens - (starts ? 1 : 0));
  progress.last_token = now;
  // A token that is computed again counts once.
  if (!hidden || deployment_.first_token == FirstToken::admission) emitted_ += tokens;
  if (starts || finished || deployment_.prefill_only)
    note_milestones(sequence.request, tokens, starts, finished);
  if (shows_first && !hidden) {
    requests_[sequence.request].first_token = now;
    write_back(rank, place);
  }
  sequence.tokens += tokens;
  rank.kv_tokens += tokens;
  if (drafts > 0) {
    sequence.computed = sequence.tokens - 1;
    rank.kv.shrink(sequence);
  }
  if (!finished && !deployment_.prefill_only) return false;
  leave(rank, place, finished);
  return true;
}

// A request runs no more: it has finished, or goes on in another pool.
void Instance::leave(Rank& rank, std::size_t place, bool finished) {
  write_back(rank, place);
  Sequence& sequence = rank.running[place];
  requests_[sequence.request].state =
      finished ? RequestRecord::State::finished : RequestRecord::State::waiting;
  rank.kv_tokens -= sequence.tokens;
  if (finished) {
    rank.kv.finish(sequence);
  } else {
    rank.sending.push_back(sequence);
  }
}

// Replaces emit() for every sequence of a rank if none starts, finishes or was abandoned.
void Instance::emit_one_each(Rank& rank, Time now) {
  const auto sequences = static_cast<std::int32_t>(rank.running.size());
  if (sequences > 0) note_gap(now - rank.progress.front().last_token, sequences);
  for (Sequence& sequence : rank.running) {
    ++sequence.computed;
    ++sequence.tokens;
  }
  for (Progress& progress : rank.progress) {
    progress.last_token = now;
    ++progress.generated;
  }
  emitted_ += sequences;
  rank.kv_tokens += sequences;
  --rank.steps_left;
}

// Looks at each sequence of a rank as a step ends.
void Instance::end_each(Rank& rank, Time now) {
  const std::vector<std::int32_t>& tokens = rank.plan.running_tokens;
  rank.steady = deployment_.speculation.tokens == 0 && !deployment_.prefill_only;
  rank.steps_left = std::numeric_limits<std::int32_t>::max();
  erase_running(rank, [&](std::size_t place) {
    Sequence& sequence = rank.running[place];
    sequence.computed += tokens[place];
    const Progress& progress = rank.progress[place];
    const bool emits = tokens[place] > 0 && sequence.due() <= 0 && !progress.abandoned;
    if (emits && emit(rank, place, now)) {
      ++rank.finished;
      return true;
    }
    rank.steady = rank.steady && emits && progress.generated >= deployment_.api_server.first_chunk;
    rank.steps_left = std::min(rank.steps_left, progress.output_tokens - progress.generated);
    return false;
  });
}

StepRecord Instance::end_step(Time now) {
  ++changes_;
  busy_until_ = now;
  stepping_ = false;
  layout_.switch_arrived();
  emitted_ = 0;
  gaps_.clear();
  for (Rank& rank : ranks_) {
    rank.kv.store(now);
    if (rank.plan.one_each && rank.steps_left > 1 && !rank.abandoned) {
      emit_one_each(rank, now);
    } else {
      end_each(rank, now);
    }
  }
  if (summary_.kind == StepKind::decode) speculation_.decoded(batch_, cost_.total, emitted_);
  drop_abandoned();
  return {number_,  summary_,    cost_, batch_,       speculation_.tally(),
          emitted_, milestones_, gaps_, used_blocks()};
}

bool Instance::sent(std::uint32_t id) {
  ++changes_;
  for (Rank& rank : ranks_) {
    const auto sequence = std::ranges::find(rank.sending, id, &Sequence::request);
    if (sequence == rank.sending.end()) continue;
    rank.kv.finish(*sequence);
    rank.sending.erase(sequence);
    return true;
  }
  return false;
}

}  // namespace moesim
