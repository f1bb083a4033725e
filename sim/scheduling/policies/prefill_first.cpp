// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/scheduler.hpp"

namespace moesim {

namespace {

// Chunks of prompts and batches of decodes in steps of their own. As long as any rank of the group
// has prompt tokens that it can compute, the group prefills and no rank decodes (SGLang's default
// with DP attention; METRO's setting, which applies one token-routing rule to each phase).
// max_num_batched_tokens limits the chunks; every running sequence decodes.
class PrefillFirst final : public LimitedScheduler {
 public:
  explicit PrefillFirst(BatchLimits limits) : LimitedScheduler(limits) {
    decode_limits_ = limits;
    decode_limits_.max_num_batched_tokens = max_num_batched_tokens();
  }

  void plan(const RankView& rank, Turn turn, StepPlan& plan) const override {
    plan.clear();
    if (turn == Turn::decode) {
      const auto decoding = [](const Sequence& s) { return s.decoding(); };
      plan_running(rank, decode_limits_, OutOfBlocks::gives_up, decoding, plan);
      return;
    }
    // A prompt that runs out of blocks waits for decodes to free some. Were it to give up its own,
    // it would start again in the next step, and two ranks that take turns at that would never let
    // the group decode.
    const auto prefilling = [](const Sequence& s) { return !s.decoding(); };
    Leftover left = plan_running(rank, limits(), OutOfBlocks::waits, prefilling, plan);
    if (!left.out_of_blocks) plan_waiting(rank, limits(), left, plan);
  }
  bool separates_phases() const override { return true; }
  std::int32_t max_num_batched_tokens() const override {
    return std::max(limits().max_num_batched_tokens, limits().max_num_seqs);
  }

 private:
  BatchLimits decode_limits_;
};

}  // namespace

std::span<const Key> prefill_first_keys() { return batch_limit_keys; }

std::unique_ptr<Scheduler> make_prefill_first(ConfigReader& options) {
  return std::make_unique<PrefillFirst>(read_batch_limits(options));
}

}  // namespace moesim
