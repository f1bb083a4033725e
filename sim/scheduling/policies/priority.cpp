// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/scheduling/scheduler.hpp"

namespace moesim {

namespace {

// (priority, arrival): who has the smaller one is admitted first and preempted last.
bool by_priority(const Sequence& a, const Sequence& b) {
  return std::pair(a.priority, a.request) < std::pair(b.priority, b.request);
}

// Priorities of vLLM (--scheduling-policy priority, vllm/v1/core/sched/scheduler.py): the step of
// chunked_prefill, with the queue in order of (priority, arrival). If blocks run out, that sequence
// gives up its own whose (priority, arrival) is the largest. One that waits takes nothing from
// those that run, however high its priority. vLLM computes running sequences in order of admission.
// Here those of high priority have the budget first, so that who is preempted has none.
class Priority final : public LimitedScheduler {
 public:
  using LimitedScheduler::LimitedScheduler;
  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    plan_first_come(rank, limits(), plan);
  }
  bool reorders() const override { return true; }
  void order_waiting(const QueueView&, std::span<Sequence> waiting) const override {
    std::ranges::sort(waiting, by_priority);
  }
  bool keeps_longer(const Sequence& a, const Sequence& b) const override {
    return by_priority(a, b);
  }
};

}  // namespace

std::span<const Key> priority_keys() { return batch_limit_keys; }

std::unique_ptr<Scheduler> make_priority(ConfigReader& options) {
  return std::make_unique<Priority>(read_batch_limits(options));
}

}  // namespace moesim
