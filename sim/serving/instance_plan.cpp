// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "sim/serving/instance.hpp"

// Methods of an EP group that plan its next step, and take up what the plan says.
namespace moesim {

// Shows the scheduler the waiting sequences that it may see: one beyond the seats of a step cannot
// be admitted.
std::span<const Sequence> Instance::show_waiting(Rank& rank) {
  if (deployment_.scheduler->reorders()) order_waiting(rank);
  return rank.queue.show(at(deployment_.scheduler->max_num_seqs()));
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
  const auto steps = at(idle ? 0 : server.admission_steps);
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

void Instance::choose_drafts() {
  std::vector<Sequence*> decoding;
  for (Rank& rank : ranks_) {
    for (Sequence& sequence : rank.running) {
      sequence.drafts = 0;
      if (sequence.decoding()) decoding.push_back(&sequence);
    }
  }
  speculation_.choose(decoding, rows_, requests_, layout_.placement());
}

bool Instance::plan_turns() {
  if (!deployment_.scheduler->separates_phases()) return plan_turn(Turn::any);
  return plan_turn(Turn::prefill) || plan_turn(Turn::decode);
}

// Plans a step without the prompts that are held back; with them if nothing else is left to do.
bool Instance::plan_step() {
  receive();
  if (deployment_.speculation.tokens > 0) choose_drafts();
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
  RankStep& step = batch_.ranks[at(index)];
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

// A client sees the prefill pool's token now, where the decode pool shows it.
void Instance::show_first(Rank& rank, std::size_t place) {
  const std::uint32_t id = rank.running[place].request;
  if (!deployment_.shows_first(FirstToken::admission) || requests_[id].first_token != Time{})
    return;
  requests_[id].first_token = rank.progress[place].last_token = summary_.start;
  milestones_.push_back({id, true, false});
}

// Replaces apply_plan() for a sampled step in which every running sequence computes one token: all
// that differs are contexts and blocks.
void Instance::compute_one_each(Rank& rank, std::int32_t index) {
  RankStep& step = batch_.ranks[at(index)];
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
    if (i >= stay) {
      admit(rank, sequence);
      show_first(rank, i);
    }
    check(tokens <= sequence.need(), "a sequence was given more tokens than it needs");
    sequence.skipped = tokens == 0 ? sequence.skipped + 1 : 0;
    if (tokens == 0) continue;
    compute(sequence, tokens, index);
    rank.kv.grow(sequence, sequence.computed + tokens,
                 sequence.computed + std::min(tokens, sequence.due()));
  }
  park_before(rank.running.size());
}

}  // namespace moesim
