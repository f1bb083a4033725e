// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/prefill_alignment/prefill_alignment.hpp"

namespace moesim {

namespace {

// TensorRT-LLM's batch_wait_timeout_iters and attention_dp_config.enable_balance
// (tensorrt_llm/_torch/pyexecutor/py_executor.py, _waiting_requests and _balance_adp_requests): new
// prompts that could be admitted are left out of the step
//   for at most batch_wait_timeout_iters steps from the first one on
//   with enable_balance only until every rank has one
// Prompts under way go on. Nothing waits where nothing runs.
class TrtllmBalance final : public PrefillAlignment {
 public:
  explicit TrtllmBalance(ConfigReader& options)
      : most_(options.integer("batch_wait_timeout_iters")),
        balances_(options.flag("enable_balance")) {}

  void align(const GroupPrompts& group, std::span<PromptWork> allowed) override {
    const int admitting = group.admitting();
    const bool runs = group.decoding() > 0 || std::ranges::any_of(group.ranks, [](auto& rank) {
                        return rank.under_way > 0;
                      });
    const bool balanced = balances_ && admitting == group.up();
    const bool holds = runs && admitting > 0 && !balanced && held_ < most_;
    held_ = holds ? held_ + 1 : 0;
    if (holds) std::ranges::fill(allowed, PromptWork::under_way);
  }

 private:
  std::int64_t most_;
  bool balances_;
  std::int64_t held_ = 0;
};

}  // namespace

std::span<const Key> trtllm_balance_keys() {
  static constexpr Key keys[] = {
      {"batch_wait_timeout_iters", form::integer(0, 1 << 20), "0",
       "steps for which new prompts wait for others to go together"},
      {"enable_balance", form::flag, "false", "or until every attention rank has one"}};
  return keys;
}

PrefillAlignmentFactory make_trtllm_balance(ConfigReader& options) {
  return copies_of(TrtllmBalance(options));
}

}  // namespace moesim
