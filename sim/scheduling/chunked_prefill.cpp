// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/schedulers.hpp"

namespace moesim {

namespace {

// vLLM v1 (vllm/v1/core/sched/scheduler.py; policies.md 6.1). There are no phases: a sequence needs
// tokens - computed. Running sequences come first, in order, so that decodes are never held up by a
// prompt; waiting ones are admitted only when nothing had to be preempted.
class ChunkedPrefill final : public Scheduler {
 public:
  explicit ChunkedPrefill(BatchLimits limits) : limits_(limits) {}

  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    plan.clear();
    const auto everybody = [](const Sequence&) { return true; };
    const Leftover left = plan_running(rank, limits_, OutOfBlocks::gives_up, everybody, plan);
    if (!left.out_of_blocks) plan_waiting(rank, limits_, left, plan);
  }
  bool separates_phases() const override { return false; }
  std::int32_t max_num_batched_tokens() const override { return limits_.max_num_batched_tokens; }
  std::int32_t max_num_seqs() const override { return limits_.max_num_seqs; }

 private:
  BatchLimits limits_;
};

}  // namespace

std::unique_ptr<Scheduler> make_chunked_prefill(ConfigReader& options) {
  return std::make_unique<ChunkedPrefill>(read_batch_limits(options));
}

}  // namespace moesim
