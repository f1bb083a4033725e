// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/scheduling/scheduler.hpp"

namespace moesim {

namespace {

bool decodes(const Sequence& s) { return s.decoding(); }
bool prefills(const Sequence& s) { return !s.decoding(); }

// Admits those at the head of the queue that are of one kind, in what running sequences leave.
template <class Kind>
void admit_first(RankView rank, const BatchLimits& limits, Kind&& kind, Leftover& left,
                 StepPlan& plan) {
  if (left.out_of_blocks) return;
  const auto other = std::ranges::find_if_not(rank.waiting, kind);
  rank.waiting = rank.waiting.first(at(other - rank.waiting.begin()));
  plan_waiting(rank, limits, left, plan);
}

// Chunks of prompts and batches of decodes in steps of their own. As long as any rank of the group
// has prompt tokens that it can compute, the group prefills and no rank decodes. (SGLang's default
// with DP attention; METRO's setting, which applies one token-routing rule to each phase.)
// max_num_batched_tokens limits the chunks; every running sequence decodes. A sequence that arrives
// computed, from a prefill pool, joins the batch that decodes (SGLang's ForwardMode.PREBUILT).
class PrefillFirst final : public LimitedScheduler {
 public:
  explicit PrefillFirst(BatchLimits limits) : LimitedScheduler(limits) {
    decode_limits_ = limits;
    decode_limits_.max_num_batched_tokens = max_num_batched_tokens();
  }

  void plan(const RankView& rank, Turn turn, StepPlan& plan) const override {
    plan.clear();
    if (turn == Turn::decode) {
      if (plan_one_each(rank, decode_limits_, plan)) return;
      Leftover left = plan_running(rank, decode_limits_, OutOfBlocks::gives_up, decodes, plan);
      admit_first(rank, decode_limits_, decodes, left, plan);
      return;
    }
    // A prompt that runs out of blocks waits for decodes to free some. If it gave up its own, it
    // would start again in the next step. Two ranks that take turns at that would never let the
    // group decode.
    Leftover left = plan_running(rank, limits(), OutOfBlocks::waits, prefills, plan);
    admit_first(rank, limits(), prefills, left, plan);
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
