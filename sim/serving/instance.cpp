// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/instance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
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
    ranks_.push_back(
        {.queue = RankQueue(deployment.kv_layout), .kv = empty_cache(static_cast<std::size_t>(r))});
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
  // left, and its step emits the next. What was generated before a failure is lost with the KV
  // cache.
  const bool computed = request.generated == 0 ? deployment_.scheduler->prompts_arrive_computed()
                                               : request.kv_arrived;
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
  Rank& rank = ranks_[static_cast<std::size_t>(requests_[id].rank)];
  rank.abandoned = true;
  const auto running = std::ranges::find(rank.running, id, &Sequence::request);
  if (running != rank.running.end()) {
    const auto place = static_cast<std::size_t>(running - rank.running.begin());
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

// Shows the scheduler the waiting sequences that it may see: one beyond the seats of a step cannot
// be admitted.
std::span<const Sequence> Instance::show_waiting(Rank& rank) {
  if (deployment_.scheduler->reorders()) order_waiting(rank);
  return rank.queue.show(static_cast<std::size_t>(deployment_.scheduler->max_num_seqs()));
}

void Instance::order_waiting(Rank& rank) const {
  Seconds between_seats(std::numeric_limits<double>::infinity());
  if (rank.finished > 0)
    between_seats = to_seconds(planned_at_ - *rank.runs_since) / double(rank.finished);
  const QueueView view{planned_at_, rank.running, price_, running_of_topic_, between_seats};
  rank.queue.reorder(
      [&](std::vector<Sequence>& waiting) { deployment_.scheduler->order_waiting(view, waiting); });
}

// Sequences that give up their blocks first come last.
void Instance::order_running(Rank& rank) const {
  const auto longer = [&](std::size_t a, std::size_t b) {
    return deployment_.scheduler->keeps_longer(rank.running[a], rank.running[b]);
  };
  std::vector<std::size_t> places(rank.running.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (std::ranges::is_sorted(places, longer)) return;
  std::ranges::stable_sort(places, longer);
  const std::vector<Sequence> running = rank.running;
  const std::vector<Progress> progress = rank.progress;
  for (std::size_t i = 0; i < places.size(); ++i) {
    rank.running[i] = running[places[i]];
    rank.progress[i] = progress[places[i]];
  }
}

// Plans within the room of the expert buffers. A rank that fills it is planned without them too, to
// see whether they made the step smaller.
void Instance::plan_rank(Rank& rank, Turn turn) {
  const Scheduler& scheduler = *deployment_.scheduler;
  const KvCache* cache = deployment_.prefix_caching ? &rank.kv : nullptr;
  RankView view{rank.running,
                show_waiting(rank),
                rank.kv.free_blocks(),
                deployment_.kv_layout,
                deployment_.buffer_tokens,
                price_,
                cache,
                rank.steady,
                rank.prompts};
  scheduler.plan(view, turn, rank.plan);
  // A running sequence gives up its own blocks only where loads hold the others.
  const auto stuck = [&] {
    return rank.plan.empty() && !rank.plan.parks() &&
           (rank.plan.preempted > 0 || (turn != Turn::decode && rank.running.empty()));
  };
  const auto gives_up = [&] {
    if ((stuck() || rank.plan.preempted > 0) && rank.kv.release_one()) return true;
    return !below_.empty() && stuck() && give_up_load(rank);
  };
  while (gives_up()) {
    view.waiting = show_waiting(rank);
    view.free_blocks = rank.kv.free_blocks();
    scheduler.plan(view, turn, rank.plan);
  }
  rank.cut_by_buffers = false;
  if (rank.plan.new_tokens() < deployment_.buffer_tokens) return;
  StepPlan unbounded;
  view.token_room = std::numeric_limits<std::int32_t>::max();
  scheduler.plan(view, turn, unbounded);
  rank.cut_by_buffers = unbounded.new_tokens() > rank.plan.new_tokens();
}

// Plans every rank for one turn, and answers whether any has something to do in it.
bool Instance::plan_turn(Turn turn) {
  bool any = false;
  for (Rank& rank : ranks_) {
    if (deployment_.scheduler->reorders()) order_running(rank);
    if (deployment_.speculation.tokens > 0) {
      for (Sequence& sequence : rank.running)
        sequence.drafts = sequence.decoding() ? deployment_.speculation.tokens : 0;
    }
    plan_rank(rank, turn);
    any = any || !rank.plan.empty();
  }
  if (!any && !below_.empty()) park_alone();
  return any;
}

// Looks for new requests if it is time to, or if there is nothing else to do.
void Instance::receive() {
  const ApiServer& server = deployment_.api_server;
  if (server.receive_interval == 1 && server.admission_steps == 0) return;
  const bool idle = std::ranges::all_of(ranks_, [](const Rank& r) { return r.running.empty(); });
  const bool looks = idle || decodes_since_received_ >= server.receive_interval;
  if (looks) decodes_since_received_ = 0;
  const auto steps = static_cast<std::size_t>(idle ? 0 : server.admission_steps);
  for (Rank& rank : ranks_) rank.queue.pass_step(looks, steps);
}

// Prompts in the plan of a rank.
RankPrompts Instance::prompts_of(Rank& rank) {
  RankPrompts prompts{.up = !rank.down, .preempts = rank.plan.preempted > 0};
  if (rank.down) return prompts;
  const std::vector<std::int32_t>& tokens = rank.plan.running_tokens;
  for (std::size_t i = 0; i < rank.running.size(); ++i) {
    if (rank.plan.one_each || rank.running[i].decoding()) {
      ++prompts.decoding;
    } else if (i < tokens.size() && tokens[i] > 0) {
      ++prompts.under_way;
      prompts.tokens += tokens[i];
    }
  }
  for (const std::int32_t admitted : rank.plan.admitted_tokens) {
    if (admitted > 1) ++prompts.admits, prompts.tokens += admitted;
  }
  prompts.left =
      static_cast<std::int32_t>(show_waiting(rank).size() - rank.plan.admitted_tokens.size());
  const auto blocks = static_cast<double>(std::max<std::int64_t>(rank.kv.blocks(), 1));
  prompts.kv_usage = 1 - static_cast<double>(rank.kv.free_blocks()) / blocks;
  return prompts;
}

// Prompts in all plans, of which prompts_ then has those of each.
HeldPrompts Instance::planned_prompts() {
  HeldPrompts all;
  prompts_.clear();
  for (Rank& rank : ranks_) {
    prompts_.push_back(prompts_of(rank));
    all.prompts += prompts_.back().admits + prompts_.back().under_way;
    all.tokens += prompts_.back().tokens;
  }
  return all;
}

void Instance::allow(std::span<const PromptWork> prompts) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].prompts = prompts[r];
}

bool Instance::plan_turns() {
  if (!deployment_.scheduler->separates_phases()) return plan_turn(Turn::any);
  return plan_turn(Turn::prefill) || plan_turn(Turn::decode);
}

// Plans a step without the prompts that are held back; with them if nothing else is left to do.
bool Instance::plan_step() {
  receive();
  if (deployment_.scheduler->reorders()) {
    running_of_topic_.assign(rows_.trace(Phase::decode).workloads().size(), 0);
    for (const Rank& rank : ranks_) {
      for (const Sequence& sequence : rank.running) ++running_of_topic_[sequence.topic];
    }
  }
  held_ = {};
  if (!alignment_) return plan_turns();
  allowed_.assign(ranks_.size(), PromptWork::all);
  allow(allowed_);
  const bool any = plan_turns();
  const HeldPrompts wanted = planned_prompts();
  const Scheduler& scheduler = *deployment_.scheduler;
  alignment_->align(
      {planned_at_, prompts_, scheduler.max_num_batched_tokens(), scheduler.max_num_seqs()},
      allowed_);
  if (wanted.prompts == 0 || std::ranges::count(allowed_, PromptWork::all) == std::ssize(allowed_))
    return any;
  allow(allowed_);
  if (!plan_turns()) {
    allow(std::vector<PromptWork>(ranks_.size(), PromptWork::all));
    return plan_turns();
  }
  const HeldPrompts done = planned_prompts();
  held_ = {wanted.prompts - done.prompts, wanted.tokens - done.tokens};
  return true;
}

// Adds a sequence's next tokens to the step: attention work and trace rows. This and what ends a
// step is done for each sequence of each step, where calls would be a third of the time.
[[gnu::always_inline]] inline void Instance::compute(const Sequence& sequence, std::int32_t tokens,
                                                     std::int32_t index) {
  RankStep& step = batch_.ranks[static_cast<std::size_t>(index)];
  step.sequences.push_back({tokens, sequence.computed, sequence.decoding() && tokens > 1});
  step.tokens += tokens;
  // Logits: of the last token that is due, and of every draft.
  step.sampled += std::max(0, tokens - sequence.due() + 1);
  if (sequence.decoding()) {
    summary_.decode_tokens += tokens;
  } else {
    summary_.prefill_tokens += tokens;
  }
  if (sampler_ != nullptr) return;
  // After a preemption generated tokens are prefilled again, but their rows stay those of decode.
  const Binding& binding = requests_[sequence.request].binding;
  const std::int32_t of_prompt = std::clamp(sequence.prompt_tokens - sequence.computed, 0, tokens);
  if (of_prompt > 0) {
    rows_.append(binding, {Phase::prefill, index, of_prompt, sequence.computed}, batch_.rows,
                 summary_.coverage[0]);
  }
  if (of_prompt < tokens) {
    const std::int32_t first = sequence.computed + of_prompt - sequence.prompt_tokens;
    rows_.append(binding, {Phase::decode, index, tokens - of_prompt, first}, batch_.rows,
                 summary_.coverage[1]);
  }
  request_of_range_.resize(batch_.rows.size(), sequence.request);
}

// Gives a sequence what is cached of it: what the scheduler found as it composed the step.
void Instance::admit(Rank& rank, Sequence& sequence) {
  const bool arrived_computed = sequence.computed > 0 && sequence.blocks == 0;
  RequestRecord& request = requests_[sequence.request];
  const bool first_time = request.preemptions == 0 && !arrived_computed;
  if (rank.kv.below().read != TierRead::parked && sequence.computed == 0)
    note_loads(sequence, rank.kv.begin_load(sequence));
  rank.kv.take_cached(sequence);
  request.state = RequestRecord::State::running;
  if (request.generated == 0 && request.preemptions == 0) request.begun = summary_.start;
  summary_.recomputed += std::max(0, std::exchange(request.lost_tokens, 0) - sequence.computed);
  if (!first_time) return;
  request.cached_tokens = sequence.computed;
  summary_.prefix_queried += sequence.tokens;
  summary_.prefix_hit += sequence.computed;
  summary_.prefix_loaded += request.loaded_tokens;
  for (std::size_t t = 0; t < request.loaded_of_lower.size(); ++t)
    summary_.prefix_of_lower[t] += request.loaded_of_lower[t];
}

// Replaces apply_plan() for a sampled step in which every running sequence computes one token: all
// that differs are contexts and blocks.
void Instance::compute_one_each(Rank& rank, std::int32_t index) {
  RankStep& step = batch_.ranks[static_cast<std::size_t>(index)];
  step.sequences.resize(rank.running.size());
  auto work = step.sequences.begin();
  std::int64_t context = 0;
  for (Sequence& sequence : rank.running) {
    *work++ = {1, sequence.computed};
    context += sequence.computed;
    rank.kv.grow(sequence, sequence.computed + 1);
  }
  step.decode_context = context;
  const auto sequences = static_cast<std::int32_t>(rank.running.size());
  step.tokens = step.sampled = sequences;
  summary_.decode_tokens += sequences;
}

// The sequence that came last waits again, first of all, and has lost its KV cache.
void Instance::preempt_last(Rank& rank) {
  write_back(rank, rank.running.size() - 1);
  Sequence sequence = rank.running.back();
  rank.running.pop_back();
  rank.progress.pop_back();
  requests_[sequence.request].lost_tokens = sequence.computed;
  rank.kv.preempt(sequence);
  sequence.drafts = 0;
  rank.queue.put_first(sequence);
  ++requests_[sequence.request].preemptions;
  requests_[sequence.request].state = RequestRecord::State::waiting;
}

void Instance::apply_plan(Rank& rank, std::int32_t index) {
  summary_.cut_ranks += rank.cut_by_buffers ? 1 : 0;
  if (rank.plan.one_each && sampler_ != nullptr) return compute_one_each(rank, index);
  for (std::size_t i = 0; i < rank.plan.preempted; ++i) preempt_last(rank);
  summary_.preemptions += static_cast<std::int32_t>(rank.plan.preempted);
  const std::size_t stay = rank.running.size();
  if (!rank.runs_since && !rank.plan.admitted_tokens.empty()) rank.runs_since = planned_at_;
  std::vector<std::pair<std::size_t, Sequence>> parked;  // with how many run that came before
  for (const std::int32_t tokens : rank.plan.admitted_tokens) {
    const Sequence sequence = rank.queue.take_first();
    if (tokens == 0) {
      parked.emplace_back(rank.running.size(), sequence);
      continue;
    }
    rank.running.push_back(sequence);
    const RequestRecord& request = requests_[sequence.request];
    rank.progress.push_back({request.last_token, request.generated, request.output_tokens});
    rank.plan.running_tokens.push_back(tokens);
  }
  auto parks = parked.begin();
  const auto park_before = [&](std::size_t place) {
    for (; parks != parked.end() && parks->first <= place; ++parks) park(rank, parks->second);
  };
  for (std::size_t i = 0; i < rank.running.size(); ++i) {
    if (i >= stay) park_before(i);
    Sequence& sequence = rank.running[i];
    const std::int32_t tokens = rank.plan.running_tokens[i];
    if (i >= stay) admit(rank, sequence);
    check(tokens <= sequence.need(), "a sequence was given more tokens than it needs");
    sequence.skipped = tokens == 0 ? sequence.skipped + 1 : 0;
    if (tokens == 0) continue;
    compute(sequence, tokens, index);
    rank.kv.grow(sequence, sequence.computed + tokens,
                 sequence.computed + std::min(tokens, sequence.due()));
  }
  park_before(rank.running.size());
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
  if (shares_host_link()) share_host_links(now);
  price_step(now);
  move_experts();
  if (shares_host_link()) hold_up_loads(now);
  if (deployment_.anchored_tpot != 1) scale_times(cost_, deployment_.anchored_tpot);
  if (!below_.empty()) stretch_by_loads(now);
  stepping_ = true;
  return to_seconds(summary_.start - now) + cost_.total;
}

// A rank stops: what ran and waited on it has lost its KV cache.
void Instance::drop_requests_of(Rank& rank, OutageRecord& record,
                                std::vector<std::uint32_t>& requests) {
  for (std::size_t i = 0; i < rank.running.size(); ++i) {
    write_back(rank, i);
    requests.push_back(rank.running[i].request);
    record.tokens_lost += rank.running[i].computed;
  }
  for (const Sequence& sequence : rank.queue.waiting()) requests.push_back(sequence.request);
  rank.running.clear();
  rank.progress.clear();
  rank.queue.clear();
  rank.sending.clear();
  rank.plan.clear();
  rank.kv = empty_cache(static_cast<std::size_t>(&rank - ranks_.data()));
  rank.kv_tokens = 0;
  rank.down = true;
}

// KV blocks that no rank which is up can use, because experts stand there.
std::int64_t Instance::set_aside() const {
  std::int64_t blocks = 0;
  for (const Rank& rank : ranks_) blocks += rank.down ? 0 : rank.kv.set_aside();
  return blocks;
}

// Experts take so many blocks of a rank: what does not fit beside them has lost its KV cache. Of
// those on their way to a decode pool, which computes them again, the last ones go last.
void Instance::make_room(Rank& rank, std::int64_t blocks, OutageRecord& record) {
  const auto lacks = [&] { return rank.kv.free_blocks() + rank.kv.set_aside() < blocks; };
  for (; lacks() && !rank.running.empty(); ++record.preempted) {
    record.tokens_lost += rank.running.back().computed;
    preempt_last(rank);
  }
  for (; lacks(); rank.sending.pop_back()) rank.kv.finish(rank.sending.back());
  rank.kv.set_aside(blocks);
}

Instance::Stopped Instance::fail(const Outage& outage, Time now) {
  ++changes_;
  const std::int64_t aside = set_aside();
  OutageRecord& record = layout_.stop(outage, now);
  if (stepping_) record.step_lost = to_seconds(now - summary_.start);
  stepping_ = false;
  // A step that is lost has admitted sequences, whose tokens nobody has looked at.
  for (Rank& rank : ranks_) rank.steady = false;
  drop_abandoned();
  Stopped stopped;
  for (const int rank : outage.dp_ranks) {
    drop_requests_of(ranks_[static_cast<std::size_t>(rank)], record, stopped.requests);
  }
  std::sort(stopped.requests.begin(), stopped.requests.end());
  for (const std::uint32_t id : stopped.requests) {
    requests_[id].state = RequestRecord::State::waiting;
    requests_[id].kv_arrived = false;
  }
  record.requests = std::ssize(stopped.requests);
  stopped.time = layout_.make_whole(record);
  for_experts_ = layout_.kv_blocks();
  for (Rank& rank : ranks_) {
    if (!rank.down) make_room(rank, for_experts_, record);
  }
  record.kv_blocks = std::max<std::int64_t>(set_aside() - aside, 0);
  return stopped;
}

Seconds Instance::recover(const Outage& outage, Time now) {
  ++changes_;
  for (const int rank : outage.dp_ranks) ranks_[static_cast<std::size_t>(rank)].down = false;
  const Seconds time = layout_.recover(outage, now);
  for_experts_ = layout_.kv_blocks();
  for (Rank& rank : ranks_) {
    if (!rank.down) rank.kv.set_aside(for_experts_);
  }
  return time;
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
  // Tokens of one step come as if evenly spaced, as SGLang's benchmark counts them.
  note_gap(tokens == 1 ? now - progress.last_token : (now - progress.last_token) / tokens,
           tokens - (starts ? 1 : 0));
  progress.last_token = now;
  emitted_ += tokens;
  if (starts || finished || deployment_.prefill_only)
    note_milestones(sequence.request, tokens, starts, finished);
  if (shows_first) {
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
  milestones_.clear();
  gaps_.clear();
  for (Rank& rank : ranks_) {
    rank.kv.store(now);
    if (rank.plan.one_each && rank.steps_left > 1 && !rank.abandoned) {
      emit_one_each(rank, now);
    } else {
      end_each(rank, now);
    }
  }
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
