// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hardware/choice.hpp"
#include "hardware/registry.hpp"
#include "models/memory.hpp"
#include "sim/kv_cache/kv_plan.hpp"
#include "sim/kv_cache/sequence.hpp"

namespace moesim {

/// Price of a step that is equal on all ranks.
struct StepPrice {
  /// Seconds of a step with 1, 2, 4, .. tokens per rank; at least two figures.
  std::vector<double> of_tokens;
  /// Seconds more for each token in the KV cache that a rank's decodes read.
  double of_context = 0;
  /// Seconds of a step with so large a piece of one prompt per rank. Sizes are 1, 2, 4, .. tokens
  /// up to the first that is no less than max_num_batched_tokens. Empty unless
  /// Scheduler::prices_prompts().
  std::vector<double> of_prompt{};
  /// The estimate for so many tokens and so much context: a straight line between two powers of
  /// two, and beyond the last.
  Seconds time(std::int64_t tokens, std::int64_t context) const;
  /// Time of a prompt of so many tokens alone, in pieces of `chunk` tokens. What a later piece
  /// reads of those before it is left out.
  Seconds prompt_time(std::int64_t tokens, std::int64_t chunk) const;
};

/// Facts that the order of a rank's sequences may go by, apart from the sequences.
struct QueueView {
  Time now{};
  std::span<const Sequence> running{};  ///< of the rank
  const StepPrice* price = nullptr;     ///< null unless Scheduler::needs_price()
  /// How many sequences of the whole group run, by Sequence::topic.
  std::span<const std::int32_t> running_of_topic{};
  /// Mean time so far between two sequences of the rank that finish; infinite before the first.
  Seconds between_seats{};
};

/// Work of a step on prompts.
enum class PromptWork {
  all,
  under_way,  ///< chunks of those that have begun
  none        ///< nothing but the last token of one that is cached but for that
};

/// A data-parallel rank between two steps.
struct RankView {
  std::span<const Sequence> running;  ///< in order of admission, or as the scheduler puts them
  std::span<const Sequence> waiting;  ///< first come, first served, or as the scheduler puts them
  std::int64_t free_blocks = 0;
  const KvLayout& layout;
  /// New tokens that the group's expert buffers take from this rank in one step.
  std::int32_t token_room = std::numeric_limits<std::int32_t>::max();
  /// Null unless Scheduler::needs_price().
  const StepPrice* price = nullptr;
  /// The cache in which waiting sequences find their prefixes; null without prefix caching.
  const KvCache* cache = nullptr;
  /// True if it is known that every running sequence needs one token.
  bool needs_one_each = false;
  PromptWork prompts = PromptWork::all;
};

/// Which of a rank's sequences compute how many tokens in the next step.
struct StepPlan {
  /// Tokens for each running sequence that stays, by its place in RankView::running (0 = sits out).
  std::vector<std::int32_t> running_tokens;
  /// Tokens for the first waiting sequences, which are admitted in order. One with 0 is parked:
  /// what a tier has of it is on its way to HBM, or begins to be loaded.
  std::vector<std::int32_t> admitted_tokens;
  /// How many sequences at the end of `running` give up their blocks, to be recomputed later.
  std::size_t preempted = 0;
  /// True if it is known that every running sequence computes one token, and that is all.
  bool one_each = false;
  /// True if no sequence computes.
  bool empty() const;
  bool parks() const;
  /// Tokens of the step over all sequences.
  std::int64_t new_tokens() const;
  void clear();
};

/// Turn that the ranks of a group agreed on for the next step.
enum class Turn {
  any,      ///< prefill and decode may share the step
  prefill,  ///< some rank has prompt tokens to compute: no rank decodes
  decode
};

/// Room that a rank's KV cache must have when a sequence is admitted: TensorRT-LLM's
/// CapacitySchedulerPolicy (tensorrt_llm/llmapi/llm_args.py).
enum class CapacityPolicy {
  max_utilization,     ///< what is computed now; where blocks run out a running sequence gives way
  guaranteed_no_evict  ///< all that runs, and this one, with the last of their output tokens
};
inline constexpr std::array<std::string_view, 2> capacity_policy_names{"max_utilization",
                                                                       "guaranteed_no_evict"};

/// Composes the next step of one rank: views in, a plan out.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// Never takes more than the budget, the token room, max_num_seqs or the free blocks allow; keeps
  /// the order of the view. `plan` is overwritten.
  virtual void plan(const RankView&, Turn, StepPlan& plan) const = 0;
  /// True if sequences are served in another order than that of their arrival. Then a rank's are
  /// put in order before each plan.
  virtual bool reorders() const { return false; }
  /// Puts those that wait in the order in which they are to be admitted; as they came unless they
  /// were put in order before.
  virtual void order_waiting(const QueueView&, std::span<Sequence> /*waiting*/) const {}
  /// True if, of two that run, the first keeps its blocks longer. If neither does, it is the one
  /// that was admitted first.
  virtual bool keeps_longer(const Sequence&, const Sequence&) const { return false; }
  /// True if it goes by deadlines, so that every request needs one.
  virtual bool needs_deadlines() const { return false; }
  /// True if the ranks must agree on prefill or decode before each step.
  virtual bool separates_phases() const { return false; }
  /// True if all of a prompt but its last token is in the KV cache when a request arrives.
  virtual bool prompts_arrive_computed() const { return false; }
  /// True if it plans by the price of steps.
  virtual bool needs_price() const { return false; }
  /// True if that is to hold the price of prompts.
  virtual bool prices_prompts() const { return false; }
  virtual std::int32_t max_num_batched_tokens() const = 0;
  virtual std::int32_t max_num_seqs() const = 0;
  virtual CapacityPolicy capacity_policy() const { return CapacityPolicy::max_utilization; }
};

/// The table: chunked_prefill, prefill_first, decode_only, comm_aware, priority, earliest_deadline,
/// expert_groups.
const Registry<Scheduler>& schedulers();

/// The limits that every scheduler reads: per DP rank, as in vLLM.
struct BatchLimits {
  std::int32_t max_num_batched_tokens = 0;
  std::int32_t max_num_seqs = 0;
  /// The most tokens of one prompt in a step; 0 = no limit.
  std::int32_t long_prefill_token_threshold = 0;
  /// True: a waiting sequence is admitted only when blocks are free for all its tokens, though it
  /// takes those of its first chunk only. That is vLLM's scheduler_reserve_full_isl, on by default.
  bool reserve_full_prompt = true;
  CapacityPolicy capacity = CapacityPolicy::max_utilization;
};
BatchLimits read_batch_limits(ConfigReader&);
/// The policy that the options name, or that of BatchLimits.
CapacityPolicy read_capacity_policy(ConfigReader&);
inline constexpr Key reserve_full_prompt_key{
    "reserve_full_prompt", form::flag, "true",
    "admits a prompt only when all of it fits the KV cache"};
inline constexpr Key capacity_policy_key{
    "capacity_scheduler_policy", form::choice(capacity_policy_names), "max_utilization",
    "guaranteed_no_evict admits what fits with all its output tokens"};
inline constexpr std::array<Key, 5> batch_limit_keys{
    {{"max_num_batched_tokens", form::integer(1, 1 << 24), required, "tokens of a rank in a step"},
     {"max_num_seqs", form::integer(1, 1 << 24), required, "sequences that run on a rank"},
     {"long_prefill_token_threshold", form::integer(0, 1 << 24), "0",
      "tokens of one prompt in a step, 0 for no limit"},
     reserve_full_prompt_key,
     capacity_policy_key}};

/// A scheduler within batch limits.
class LimitedScheduler : public Scheduler {
 public:
  explicit LimitedScheduler(BatchLimits limits) : limits_(limits) {}
  std::int32_t max_num_batched_tokens() const override { return limits_.max_num_batched_tokens; }
  std::int32_t max_num_seqs() const override { return limits_.max_num_seqs; }
  CapacityPolicy capacity_policy() const override { return limits_.capacity; }

 protected:
  const BatchLimits& limits() const { return limits_; }

 private:
  BatchLimits limits_;
};

/// Action of a running sequence for which no blocks are left, though all behind it gave up theirs.
enum class OutOfBlocks {
  gives_up,  ///< is preempted itself, as in vLLM
  waits      ///< keeps what it has computed and sits out
};

/// Resources that running sequences leave to waiting ones.
struct Leftover {
  std::int32_t budget;
  KvPlan kv;
  /// True if a running sequence went short of blocks: then no waiting one is admitted.
  bool out_of_blocks = false;
};

/// The pass of [vLLM] v1 over running sequences: in order, min(need, threshold, budget)
/// tokens each; when blocks run out the LAST running sequence is preempted. `takes` says which
/// sequences take part. Returns the budget and blocks that are left.
template <class Takes>
Leftover plan_running(const RankView& rank, const BatchLimits& limits, OutOfBlocks out_of_blocks,
                      Takes&& takes, StepPlan& plan) {
  Leftover left{std::min(limits.max_num_batched_tokens, rank.token_room),
                {rank.layout, rank.free_blocks, rank.cache, /*looks_up=*/!rank.waiting.empty()}};
  std::size_t end = rank.running.size();
  plan.running_tokens.assign(end, 0);
  for (std::size_t i = 0; i < end && left.budget > 0; ++i) {
    const Sequence& sequence = rank.running[i];
    if (!takes(sequence) || (rank.prompts == PromptWork::none && !sequence.decoding())) continue;
    std::int32_t tokens = std::min(sequence.need(), left.budget);
    if (limits.long_prefill_token_threshold > 0) {
      tokens = std::min(tokens, limits.long_prefill_token_threshold);
    }
    const std::size_t keeps = out_of_blocks == OutOfBlocks::waits ? i + 1 : i;
    std::int64_t wanted = left.kv.wanted(sequence, tokens);
    while (wanted > left.kv.free_blocks() && end > keeps) {
      left.out_of_blocks = true;
      left.kv.preempt(rank.running[--end]);
      wanted = left.kv.wanted(sequence, tokens);
    }
    if (end <= i) continue;
    if (wanted > left.kv.free_blocks()) {
      left.out_of_blocks = true;
      continue;
    }
    left.kv.grow(sequence, tokens, wanted);
    left.budget -= tokens;
    plan.running_tokens[i] = tokens;
  }
  plan.preempted = rank.running.size() - end;
  plan.running_tokens.resize(end);
  return left;
}

/// Admits waiting sequences in order while budget, seats and blocks last; the first that does not
/// fit ends it. Each computes what it does not find in the prefix cache after those before it.
void plan_waiting(const RankView&, const BatchLimits&, Leftover&, StepPlan&);

/// Plans one token for each running sequence without a look at each. These then need no more,
/// none waits for a free seat, and budget and blocks suffice in any case. Otherwise false, and no
/// plan.
bool plan_one_each(const RankView&, const BatchLimits&, StepPlan&);

/// Plans a whole step of [vLLM] v1 (vllm/v1/core/sched/scheduler.py). Running sequences come first,
/// in order, so that no prompt delays decodes. Waiting ones are admitted only when no sequence had
/// to be preempted.
void plan_first_come(const RankView&, const BatchLimits&, StepPlan&);

}  // namespace moesim
