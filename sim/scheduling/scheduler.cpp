// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/scheduler.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<Scheduler>::Maker make_chunked_prefill, make_prefill_first, make_decode_only,
    make_comm_aware, make_priority, make_earliest_deadline, make_expert_groups;
Keys chunked_prefill_keys, prefill_first_keys, decode_only_keys, comm_aware_keys, priority_keys,
    earliest_deadline_keys, expert_groups_keys;

bool StepPlan::empty() const {
  const auto none = [](std::int32_t tokens) { return tokens == 0; };
  return std::ranges::all_of(admitted_tokens, none) && std::ranges::all_of(running_tokens, none);
}

bool StepPlan::parks() const { return std::ranges::count(admitted_tokens, 0) > 0; }

std::int64_t StepPlan::new_tokens() const {
  const auto sum = [](const std::vector<std::int32_t>& tokens) {
    return std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  };
  return sum(running_tokens) + sum(admitted_tokens);
}

namespace {

// Seconds for so many tokens, of a table by powers of two.
double on_a_line(const std::vector<double>& seconds, std::int64_t tokens) {
  const auto power = std::min<std::size_t>(
      at(std::bit_width(static_cast<std::uint64_t>(tokens))) - 1, seconds.size() - 2);
  const double size = static_cast<double>(std::uint64_t{1} << power);
  const double place = (static_cast<double>(tokens) - size) / size;
  const double low = seconds[power], high = seconds[power + 1];
  return low + (high - low) * place;
}

}  // namespace

Seconds StepPrice::time(std::int64_t tokens, std::int64_t context) const {
  if (tokens < 1) return Seconds{};
  return Seconds(on_a_line(of_tokens, tokens) + of_context * static_cast<double>(context));
}

Seconds StepPrice::prompt_time(std::int64_t tokens, std::int64_t chunk) const {
  const std::int64_t pieces = tokens / chunk, rest = tokens % chunk;
  const double whole = pieces > 0 ? on_a_line(of_prompt, chunk) : 0;
  return Seconds(whole * static_cast<double>(pieces) + (rest > 0 ? on_a_line(of_prompt, rest) : 0));
}

void StepPlan::clear() {
  running_tokens.clear();
  admitted_tokens.clear();
  preempted = 0;
  one_each = false;
}

BatchLimits read_batch_limits(ConfigReader& options) {
  BatchLimits limits;
  limits.max_num_batched_tokens =
      static_cast<std::int32_t>(options.integer("max_num_batched_tokens"));
  limits.max_num_seqs = static_cast<std::int32_t>(options.integer("max_num_seqs"));
  limits.long_prefill_token_threshold =
      static_cast<std::int32_t>(options.integer("long_prefill_token_threshold"));
  limits.reserve_full_prompt = options.flag("reserve_full_prompt");
  limits.capacity = read_capacity_policy(options);
  return limits;
}

CapacityPolicy read_capacity_policy(ConfigReader& options) {
  constexpr std::string_view key = "capacity_scheduler_policy";
  return options.optional(key) ? choice<CapacityPolicy>(options, key, capacity_policy_names)
                               : BatchLimits{}.capacity;
}

// Blocks that no running sequence will ever take; negative where they may not all end.
static std::int64_t unpromised_blocks(const RankView& rank, const BatchLimits& limits) {
  std::int64_t blocks = rank.free_blocks;
  for (const Sequence& sequence : rank.running) {
    blocks += sequence.blocks -
              rank.layout.blocks_at_most(sequence.at_end, limits.max_num_batched_tokens);
  }
  return blocks;
}

void plan_waiting(const RankView& rank, const BatchLimits& limits, Leftover& left, StepPlan& plan) {
  auto seats = at(limits.max_num_seqs);
  seats -= std::min(seats, plan.running_tokens.size());
  const bool whole = limits.capacity == CapacityPolicy::guaranteed_no_evict;
  std::int64_t unpromised = whole && !rank.waiting.empty() ? unpromised_blocks(rank, limits) : 0;
  for (Sequence sequence : rank.waiting) {
    if (left.budget <= 0 || seats == 0) break;
    const CacheHit hit = left.kv.find(sequence);
    const bool parks = left.kv.parks(hit);
    const auto cached = static_cast<std::int32_t>(hit.all()) * rank.layout.block_tokens;
    sequence.computed = std::max(sequence.computed, cached);
    if (rank.prompts != PromptWork::all && !parks && sequence.need() > 1) break;
    std::int32_t tokens = parks ? 0 : std::min(sequence.need(), left.budget);
    if (limits.long_prefill_token_threshold > 0) {
      tokens = std::min(tokens, limits.long_prefill_token_threshold);
    }
    std::int64_t blocks = rank.layout.blocks_in_step(sequence.computed, sequence.computed + tokens);
    if (limits.reserve_full_prompt) {
      blocks = std::max(blocks,
                        rank.layout.blocks_at_most(sequence.tokens, limits.max_num_batched_tokens));
    }
    if (!hit.awaits && blocks - hit.in_use > left.kv.free_blocks()) break;
    if (whole) {
      unpromised +=
          hit.in_use - rank.layout.blocks_at_most(sequence.at_end, limits.max_num_batched_tokens);
      if (unpromised < 0) break;
    }
    parks ? left.kv.park(sequence, hit) : left.kv.admit(sequence, hit, tokens);
    left.budget -= tokens;
    seats -= parks ? 0 : 1;
    plan.admitted_tokens.push_back(tokens);
  }
}

bool plan_one_each(const RankView& rank, const BatchLimits& limits, StepPlan& plan) {
  const std::int64_t sequences = std::ssize(rank.running);
  if (!rank.needs_one_each || (!rank.waiting.empty() && sequences < limits.max_num_seqs))
    return false;
  const std::int64_t most_blocks = sequences * std::ssize(rank.layout.groups);
  if (std::min(limits.max_num_batched_tokens, rank.token_room) < sequences ||
      rank.free_blocks < most_blocks)
    return false;
  plan.running_tokens.assign(rank.running.size(), 1);
  plan.one_each = true;
  return true;
}

void plan_first_come(const RankView& rank, const BatchLimits& limits, StepPlan& plan) {
  plan.clear();
  if (plan_one_each(rank, limits, plan)) return;
  const auto any_sequence = [](const Sequence&) { return true; };
  Leftover left = plan_running(rank, limits, OutOfBlocks::gives_up, any_sequence, plan);
  if (!left.out_of_blocks) plan_waiting(rank, limits, left, plan);
}

const Registry<Scheduler>& schedulers() {
  static const Registry<Scheduler> table(
      "scheduling",
      {{"chunked_prefill",
        "vLLM v1: decodes and prefill chunks share a step under one token budget",
        make_chunked_prefill, chunked_prefill_keys},
       {"prefill_first",
        "prefill chunks and decode batches in separate steps, prefill first (METRO's setting)",
        make_prefill_first, prefill_first_keys},
       {"decode_only", "decodes alone: prompts arrive computed, as from a prefill pool",
        make_decode_only, decode_only_keys},
       {"comm_aware", "decodes by expert locality and age, as many as a step's target time allows",
        make_comm_aware, comm_aware_keys},
       {"priority", "chunked_prefill by priority of the request's class (vLLM's priority policy)",
        make_priority, priority_keys},
       {"earliest_deadline", "chunked_prefill by when first tokens are due (EDF)",
        make_earliest_deadline, earliest_deadline_keys},
       {"expert_groups",
        "earliest_deadline; requests of one topic go ahead where the slack of others allows",
        make_expert_groups, expert_groups_keys}});
  return table;
}

}  // namespace moesim
