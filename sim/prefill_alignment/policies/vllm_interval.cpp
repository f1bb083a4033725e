// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "sim/prefill_alignment/prefill_alignment.hpp"

namespace moesim {

namespace {

// vLLM's prefill_schedule_interval [vllm#44558, merged in June 2026; vllm#46532]. The DP ranks of
// an engine count their steps together, from 0 where the group was idle
// (DPEngineCoreProc._should_throttle_prefills, vllm/v1/engine/core.py):
//   throttle = step % N != 0
// Each rank then decides for itself (Scheduler.schedule, vllm/v1/core/sched/scheduler.py):
//   defer = throttle and not capacity_bound and any sequence that runs decodes
//   if not defer and nothing is preempted:  capacity_bound = requests go on waiting
// A rank that defers computes no chunk of a prompt under way, and begins no prompt of which more
// than one token is left. The guard capacity_bound keeps a rank that cannot drain its queue in one
// step from falling behind further. A single rank has no others to wait for: no effect.
class VllmInterval final : public PrefillAlignment {
 public:
  explicit VllmInterval(ConfigReader& options)
      : interval_(options.integer("prefill_schedule_interval")) {}

  void align(const GroupPrompts& group, std::span<PromptWork> allowed) override {
    if (group.ranks.size() < 2) return;
    if (group.idle()) {
      step_ = 0;
      return;
    }
    capacity_bound_.resize(group.ranks.size());
    const bool throttles = step_++ % interval_ != 0;
    for (std::size_t r = 0; r < group.ranks.size(); ++r) {
      const RankPrompts& rank = group.ranks[r];
      if (throttles && !capacity_bound_[r] && rank.decoding > 0) {
        allowed[r] = PromptWork::none;
      } else if (!rank.preempts) {
        capacity_bound_[r] = rank.left > 0;
      }
    }
  }

 private:
  std::int64_t interval_, step_ = 0;
  std::vector<bool> capacity_bound_;
};

}  // namespace

std::span<const Key> vllm_interval_keys() {
  static constexpr Key keys[] = {{"prefill_schedule_interval", form::integer(1, 1 << 20), required,
                                  "steps from one with prompts to the next; 1: every step"}};
  return keys;
}

PrefillAlignmentFactory make_vllm_interval(ConfigReader& options) {
  return copies_of(VllmInterval(options));
}

}  // namespace moesim
