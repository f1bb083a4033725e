// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/prefill_alignment/prefill_alignment.hpp"

namespace moesim {

/// SGLang's prefill_decode_interval [sglang#35017, merged in August 2026]: after a round in which
/// any rank prefilled, no rank prefills for N rounds, chunks under way included. Rounds in which a
/// rank has nothing to decode count. Where no rank decodes they would take no time, and none is
/// waited for.
class DecodeInterval {
 public:
  explicit DecodeInterval(std::int64_t rounds) : rounds_(rounds) {}
  /// True if the next round is one without prompts. Asked once a round.
  bool defers(const GroupPrompts& group) {
    if (group.decoding() == 0) remaining_ = 0;
    if (remaining_ == 0) return false;
    --remaining_;
    return true;
  }
  /// A round with prompts begins.
  void prefills() { remaining_ = rounds_; }

 private:
  std::int64_t rounds_, remaining_ = 0;
};

inline constexpr Key prefill_decode_interval_key{
    "prefill_decode_interval", form::integer(0, 1 << 20), "0",
    "rounds without prompts after one with, on all ranks"};

}  // namespace moesim
