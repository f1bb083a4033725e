// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/scheduler.hpp"

namespace moesim {

namespace {

// vLLM v1: there are no phases, a sequence needs tokens - computed.
class ChunkedPrefill final : public LimitedScheduler {
 public:
  using LimitedScheduler::LimitedScheduler;
  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    plan_first_come(rank, limits(), plan);
  }
};

}  // namespace

std::span<const Key> chunked_prefill_keys() { return batch_limit_keys; }

std::unique_ptr<Scheduler> make_chunked_prefill(ConfigReader& options) {
  return std::make_unique<ChunkedPrefill>(read_batch_limits(options));
}

}  // namespace moesim
