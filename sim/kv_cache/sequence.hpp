// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hardware/units.hpp"

namespace moesim {

/// A request as the scheduler of its rank sees it.
struct Sequence {
  /// Index into the simulator's requests.
  std::uint32_t request = 0;
  /// Tokens of the prompt and generated so far: what must be computed.
  std::int32_t tokens = 0;
  /// Tokens of the sequence that are in the KV cache.
  std::int32_t computed = 0;
  std::int32_t prompt_tokens = 0;
  /// KV blocks held.
  std::int64_t blocks = 0;
  /// Tokens guessed to follow, to be verified with the last one.
  std::int32_t drafts = 0;
  /// Share of its experts that are near, from 0 to 1; .5 = unknown.
  double locality = .5;
  /// Steps since it last computed, though it runs.
  std::int32_t skipped = 0;
  /// Lower values come first, where the scheduler goes by it.
  std::int32_t priority = 0;
  /// When its first token is due.
  Time deadline = Time::max();
  /// The workload tag of the recording that it replays, an index.
  std::uint32_t topic = 0;
  /// Tokens that the KV cache holds when its last one is known.
  std::int32_t at_end = 0;
  /// True if its client has been shown a token.
  bool has_token() const { return tokens > prompt_tokens; }
  bool decoding() const { return has_token() && due() == 1; }
  /// Tokens that must be computed before the next one is known.
  std::int32_t due() const { return tokens - computed; }
  /// Tokens that are computed if a step has room: due tokens and drafts.
  std::int32_t need() const { return due() + drafts; }
};

}  // namespace moesim
