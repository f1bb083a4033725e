// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/scheduler.hpp"

namespace moesim {

namespace {

// A batch of decodes alone, as large as seats and blocks allow. Prompts arrive computed, as from a
// prefill pool, all but their last token, whose step emits the first output token. With a closed
// loop the batch stays constant and its step time is the TPOT. A preempted sequence is recomputed
// here.
class DecodeOnly final : public LimitedScheduler {
 public:
  using LimitedScheduler::LimitedScheduler;
  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    plan_first_come(rank, limits(), plan);
  }
  bool prompts_arrive_computed() const override { return true; }
};

}  // namespace

std::span<const Key> decode_only_keys() {
  static constexpr Form count = form::integer(1, 1 << 24);
  static constexpr Key keys[] = {
      {"max_num_seqs", count, required, "sequences that run on a rank"},
      {"max_num_batched_tokens", count, unset("max_num_seqs"), "tokens of a rank in a step"},
      reserve_full_prompt_key,
      capacity_policy_key};
  return keys;
}

std::unique_ptr<Scheduler> make_decode_only(ConfigReader& options) {
  BatchLimits limits;
  limits.max_num_seqs = static_cast<std::int32_t>(options.integer("max_num_seqs"));
  limits.max_num_batched_tokens =
      static_cast<std::int32_t>(options.integer_or("max_num_batched_tokens", limits.max_num_seqs));
  limits.reserve_full_prompt = options.flag("reserve_full_prompt");
  limits.capacity = read_capacity_policy(options);
  return std::make_unique<DecodeOnly>(limits);
}

}  // namespace moesim
