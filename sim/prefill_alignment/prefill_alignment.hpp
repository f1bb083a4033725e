// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"
#include "sim/scheduling/scheduler.hpp"

namespace moesim {

/// Work of a rank's next step if nothing were held back.
struct RankPrompts {
  bool up = true;
  std::int32_t admits = 0;     ///< prompts that it would begin
  std::int32_t under_way = 0;  ///< prompts of which it would compute one more chunk
  std::int64_t tokens = 0;     ///< of both
  std::int32_t left = 0;       ///< requests that would go on waiting
  std::int32_t decoding = 0;   ///< sequences that decode
  double kv_usage = 0;         ///< share of its KV blocks that are held
  bool preempts = false;       ///< sequences would lose their blocks
  bool prefills() const { return admits + under_way > 0; }
};

/// An EP group before a step.
struct GroupPrompts {
  Time now{};
  std::span<const RankPrompts> ranks;
  std::int32_t max_num_batched_tokens = 0, max_num_seqs = 0;
  /// Sequences of all ranks that decode.
  std::int64_t decoding() const;
  /// Number of ranks that are up, and of those among them that would begin a prompt, or prefill.
  int up() const, admitting() const, prefilling() const;
  /// True if no rank has anything to do.
  bool idle() const;
};

/// Decides before each step of an EP group which of its ranks hold prompts back, so that ranks
/// prefill together and other steps only decode. State per group.
class PrefillAlignment {
 public:
  virtual ~PrefillAlignment() = default;
  /// Lowers what a rank may do of prompts in the next step: `allowed` has PromptWork::all for each
  /// rank. A step to which nothing is left is composed as if nothing were held.
  virtual void align(const GroupPrompts&, std::span<PromptWork> allowed) = 0;
};

/// Makes policies alike, one for each EP group; none: nothing is ever held back.
using PrefillAlignmentFactory = Factory<PrefillAlignment>;

/// The table: none, vllm_interval, sglang_delayer, sglang_decode_interval, coalescer,
/// trtllm_balance.
const Registry<PrefillAlignmentFactory>& prefill_alignments();

/// Policy of a config, and what it says for every policy.
struct PrefillAlignmentPlan {
  std::string type = "none";
  Json options{};  ///< as the config has them
  PrefillAlignmentFactory policy{};
  /// Every rank computes as many tokens in a step with prompts as the one with most, made-up ones
  /// in place of those that it lacks: SGLang's DpPaddingMode.MAX_LEN.
  bool pads = false;
};
std::span<const Key> prefill_alignment_keys();

}  // namespace moesim
