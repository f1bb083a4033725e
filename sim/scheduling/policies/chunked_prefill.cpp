// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/schedulers.hpp"

namespace moesim {

namespace {

// vLLM v1: there are no phases, a sequence needs tokens - computed.
class ChunkedPrefill final : public Scheduler {
 public:
  explicit ChunkedPrefill(BatchLimits limits) : limits_(limits) {}

  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    plan_first_come(rank, limits_, plan);
  }
  bool separates_phases() const override { return false; }
  std::int32_t max_num_batched_tokens() const override { return limits_.max_num_batched_tokens; }
  std::int32_t max_num_seqs() const override { return limits_.max_num_seqs; }

 private:
  BatchLimits limits_;
};

}  // namespace

std::span<const Key> chunked_prefill_keys() { return batch_limit_keys; }

std::unique_ptr<Scheduler> make_chunked_prefill(ConfigReader& options) {
  return std::make_unique<ChunkedPrefill>(read_batch_limits(options));
}

}  // namespace moesim
