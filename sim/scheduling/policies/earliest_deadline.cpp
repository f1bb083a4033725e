// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/deadline_order.hpp"

namespace moesim {

namespace {

// The step of chunked_prefill, with the queue in order of deadlines: see order_by_deadline(). What
// runs keeps its place, prompts that are under way included: a long one can make others late,
// unless long_prefill_token_threshold leaves room in its steps. No engine has this policy.
class EarliestDeadline final : public LimitedScheduler {
 public:
  using LimitedScheduler::LimitedScheduler;
  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    plan_first_come(rank, limits(), plan);
  }
  bool reorders() const override { return true; }
  void order_waiting(const QueueView& queue, std::span<Sequence> waiting) const override {
    order_by_deadline(queue, max_num_batched_tokens(), waiting);
  }
  bool needs_deadlines() const override { return true; }
  bool needs_price() const override { return true; }
  bool prices_prompts() const override { return true; }
};

}  // namespace

std::span<const Key> earliest_deadline_keys() { return batch_limit_keys; }

std::unique_ptr<Scheduler> make_earliest_deadline(ConfigReader& options) {
  return std::make_unique<EarliestDeadline>(read_batch_limits(options));
}

}  // namespace moesim
