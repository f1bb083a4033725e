// SPDX-License-Identifier: Apache-2.0
#include "sim/instance.hpp"

#include <algorithm>

namespace moesim {

Instance::Instance(const Experiment& experiment, RowSource& rows,
                   std::vector<RequestRecord>& requests)
    : experiment_(experiment),
      rows_(rows),
      requests_(requests),
      model_(experiment.cluster, experiment.model, experiment.parallel, experiment.precision,
             experiment.charges),
      placement_(experiment.placement),
      rules_(experiment.rules) {
  for (int r = 0; r < experiment.parallel.dp; ++r) {
    ranks_.push_back({.kv = KvCache(experiment.kv_layout, experiment.memory.kv_blocks,
                                    experiment.prefix_caching)});
  }
  batch_.ranks.resize(ranks_.size());
}

std::int64_t Instance::total_blocks() const {
  return experiment_.memory.kv_blocks * static_cast<std::int64_t>(ranks_.size());
}

std::int64_t Instance::used_blocks() const {
  std::int64_t used = total_blocks();
  for (const Rank& rank : ranks_) used -= rank.kv.free_blocks();
  return used;
}

bool Instance::can_ever_hold(const RequestRecord& request) const {
  // The last output token is never fed back, so it needs no room.
  const std::int64_t tokens = std::int64_t{request.prompt_tokens} + request.output_tokens - 1;
  return experiment_.kv_layout.blocks_for(tokens) <= experiment_.memory.kv_blocks;
}

void Instance::submit(std::uint32_t id, std::size_t index) {
  RequestRecord& request = requests_[id];
  request.rank = static_cast<std::int32_t>(index);
  check(can_ever_hold(request), "a request was sent to a rank that can never hold it");
  Rank& rank = ranks_[index];
  rank.waiting.push_back({id, request.prompt_tokens, 0, request.prompt_tokens, 0});
  if (experiment_.prefix_caching) {
    rank.kv.expect(id, prompt_hashes(request.prompt_ids.get(), id, request.prompt_tokens,
                                     experiment_.kv_layout.block_tokens));
  }
  rank.kv_tokens += request.prompt_tokens;
  rank.waiting_blocks += experiment_.kv_layout.blocks_for(request.prompt_tokens);
}

void Instance::loads(bool requests, std::vector<RankLoad>& loads) {
  loads.resize(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    RankLoad& load = loads[r];
    load = {rank.kv_tokens, std::ssize(rank.waiting), std::ssize(rank.running)};
    load.rank = static_cast<std::int32_t>(r);
    load.seats = experiment_.scheduler->max_num_seqs() - load.waiting - load.running;
    load.total_blocks = rank.kv.blocks();
    load.blocks = rank.kv.blocks() - rank.kv.free_blocks() + rank.waiting_blocks;
    if (!requests) continue;
    rank.shown.clear();
    for (const Sequence& s : rank.running) rank.shown.push_back(show_request(s));
    for (const Sequence& s : rank.waiting) rank.shown.push_back(show_request(s));
    load.requests = rank.shown;
  }
}

RankRequest Instance::show_request(const Sequence& sequence) const {
  const RequestRecord& request = requests_[sequence.request];
  // Of one that waits, what the router found cached counts as good as computed.
  const auto expected =
      static_cast<std::int32_t>(request.routing.hit_share * request.prompt_tokens + .5);
  const std::int32_t computed = std::max(sequence.computed, expected);
  return {sequence.request, request.prompt_tokens, request.generated, request.output_tokens,
          std::max(request.prompt_tokens - computed, 0)};
}

CacheHit Instance::find(std::size_t rank, std::span<const BlockHash> prompt,
                        std::int32_t tokens) const {
  return experiment_.prefix_caching ? ranks_[rank].kv.find(prompt, tokens) : CacheHit{};
}

// What a scheduler may see of the waiting: a sequence beyond the seats of a step, or behind one for
// which no block is left, cannot be admitted in it.
void Instance::show_waiting(Rank& rank) const {
  const auto seats = static_cast<std::size_t>(experiment_.scheduler->max_num_seqs());
  const auto visible = static_cast<std::ptrdiff_t>(std::min(seats, rank.waiting.size()));
  rank.waiting_view.assign(rank.waiting.begin(), rank.waiting.begin() + visible);
  if (!experiment_.prefix_caching) return;
  const KvLayout& layout = experiment_.kv_layout;
  for (auto sequence = rank.waiting_view.begin(); sequence != rank.waiting_view.end(); ++sequence) {
    const CacheHit hit = rank.kv.find(*sequence);
    sequence->computed = static_cast<std::int32_t>(hit.blocks) * layout.block_tokens;
    sequence->blocks = hit.in_use;
    if (layout.blocks_for(sequence->computed + 1) - hit.in_use > rank.kv.free_blocks()) {
      rank.waiting_view.erase(sequence, rank.waiting_view.end());
      break;
    }
  }
}

// Plans every rank for one turn; whether anybody has something to do in it.
bool Instance::plan_turn(Turn turn) {
  bool any = false;
  for (Rank& rank : ranks_) {
    show_waiting(rank);
    for (Sequence& sequence : rank.running) sequence.shared = rank.kv.shared_blocks(sequence);
    experiment_.scheduler->plan(
        {rank.running, rank.waiting_view, rank.kv.free_blocks(), experiment_.kv_layout}, turn,
        rank.plan);
    any = any || !rank.plan.empty();
  }
  return any;
}

bool Instance::plan_step() {
  if (!experiment_.scheduler->separates_phases()) return plan_turn(Turn::any);
  return plan_turn(Turn::prefill) || plan_turn(Turn::decode);
}

// Adds a sequence's next tokens to the step: attention work and trace rows.
void Instance::compute(const Sequence& sequence, std::int32_t tokens, std::int32_t index,
                       std::array<RoutingCoverage, 2>& coverage) {
  RankStep& step = batch_.ranks[static_cast<std::size_t>(index)];
  step.sequences.push_back({tokens, sequence.computed});
  step.tokens += tokens;
  if (tokens == sequence.need()) ++step.sampled;
  if (sequence.decoding()) {
    summary_.decode_tokens += tokens;
  } else {
    summary_.prefill_tokens += tokens;
  }
  // After a preemption generated tokens are prefilled again, but their rows stay those of decode.
  const Binding& binding = requests_[sequence.request].binding;
  const std::int32_t of_prompt = std::clamp(sequence.prompt_tokens - sequence.computed, 0, tokens);
  if (of_prompt > 0) {
    rows_.append(binding, Phase::prefill, sequence.computed, of_prompt, index, batch_.rows,
                 coverage[0]);
  }
  if (of_prompt < tokens) {
    rows_.append(binding, Phase::decode, sequence.computed + of_prompt - sequence.prompt_tokens,
                 tokens - of_prompt, index, batch_.rows, coverage[1]);
  }
}

// Gives a sequence what is cached of it. That may be less than the scheduler was shown, when others
// took blocks in this step, or more, when others computed the same: it asks for no more blocks than
// planned either way.
void Instance::admit(Rank& rank, Sequence& sequence) {
  rank.kv.take_cached(sequence);
  RequestRecord& request = requests_[sequence.request];
  request.state = RequestRecord::State::running;
  if (request.preemptions > 0) return;
  request.cached_tokens = sequence.computed;
  summary_.prefix_queried += sequence.tokens;
  summary_.prefix_hit += sequence.computed;
}

void Instance::apply_plan(Rank& rank, std::int32_t index,
                          std::array<RoutingCoverage, 2>& coverage) {
  for (std::size_t i = 0; i < rank.plan.preempted; ++i) {
    Sequence sequence = rank.running.back();
    rank.running.pop_back();
    rank.kv.preempt(sequence);
    rank.waiting_blocks += experiment_.kv_layout.blocks_for(sequence.tokens);
    rank.waiting.push_front(sequence);
    ++requests_[sequence.request].preemptions;
    requests_[sequence.request].state = RequestRecord::State::waiting;
    ++summary_.preemptions;
  }
  const std::size_t stay = rank.running.size();
  for (const std::int32_t tokens : rank.plan.admitted_tokens) {
    rank.running.push_back(rank.waiting.front());
    rank.waiting.pop_front();
    rank.waiting_blocks -= experiment_.kv_layout.blocks_for(rank.running.back().tokens);
    rank.plan.running_tokens.push_back(tokens);
  }
  for (std::size_t i = 0; i < rank.running.size(); ++i) {
    Sequence& sequence = rank.running[i];
    std::int32_t& tokens = rank.plan.running_tokens[i];
    if (i >= stay) admit(rank, sequence);
    tokens = std::min(tokens, sequence.need());
    if (tokens == 0) continue;
    compute(sequence, tokens, index, coverage);
    rank.kv.grow(sequence, sequence.computed + tokens);
  }
}

void Instance::classify_step() {
  const bool prefill = summary_.prefill_tokens > 0;
  const bool decode = summary_.decode_tokens > 0;
  summary_.kind = prefill ? (decode ? StepKind::mixed : StepKind::prefill) : StepKind::decode;
  summary_.rule = rule_kind(experiment_.mixed, summary_.kind, summary_.prefill_tokens);
}

std::optional<Seconds> Instance::begin_step(Time now, std::array<RoutingCoverage, 2>& coverage) {
  if (!plan_step()) {
    for (const Rank& rank : ranks_) {
      check(rank.running.empty() && rank.waiting.empty(), "a rank with work was left idle");
    }
    return std::nullopt;
  }
  summary_ = {};
  summary_.start = now;
  batch_.rows.clear();
  for (RankStep& step : batch_.ranks) {
    step.sequences.clear();
    step.tokens = step.sampled = 0;
    step.dummy = false;
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto index = static_cast<std::int32_t>(r);
    RankStep& step = batch_.ranks[r];
    apply_plan(ranks_[r], index, coverage);
    if (step.tokens > 0) continue;
    // policies.md 6.4: an idle rank runs one token, so that the collectives complete.
    step = {{{1, 0}}, 1, 0, true};
    batch_.rows.push_back(rows_.dummy(index));
    ++summary_.dummy_ranks;
  }
  summary_.kv_blocks_used = used_blocks();
  classify_step();
  model_.price(batch_, rules_.of(summary_.rule), placement_, rows_, cost_);
  return cost_.total;
}

const StepOutcome& Instance::end_step(Time now) {
  outcome_.tokens.clear();
  for (Rank& rank : ranks_) {
    const std::vector<std::int32_t>& tokens = rank.plan.running_tokens;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Sequence& sequence = rank.running[i];
      sequence.computed += tokens[i];
      if (tokens[i] == 0 || sequence.need() > 0) continue;
      RequestRecord& request = requests_[sequence.request];
      const bool first = ++request.generated == 1;
      const bool last = request.generated == request.output_tokens;
      outcome_.tokens.push_back(
          {sequence.request, first, last, first ? Duration{} : now - request.last_token});
      if (first) request.first_token = now;
      request.last_token = now;
      ++sequence.tokens;
      ++rank.kv_tokens;
      if (!last) continue;
      request.state = RequestRecord::State::finished;
      rank.kv_tokens -= sequence.tokens;
      rank.kv.finish(sequence);
    }
    std::erase_if(rank.running, [&](const Sequence& sequence) {
      return requests_[sequence.request].state == RequestRecord::State::finished;
    });
  }
  return outcome_;
}

}  // namespace moesim
