// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "traces/requests/request_source.hpp"

namespace moesim {

/// Share of its prompts that a sequence of requests would find in a cache of their blocks without a
/// clock. The blocks of a prompt are looked up in order up to the first that is not there. Then all
/// of them are the most recent, the first of the prompt most of all, and the least recent make
/// room. A block is a span of PromptIds, a partial one too; the last token of a prompt is always
/// computed.
struct ReuseCurve {
  std::int64_t queried_tokens = 0;   ///< of all prompts
  std::int64_t distinct_blocks = 0;  ///< what an endless cache holds in the end
  /// Tokens, by the least capacity, in blocks, with which they are hit.
  std::map<std::int64_t, std::int64_t> hit_at{};

  /// Tokens hit with a cache of so many blocks; never fewer with more.
  std::int64_t hits(std::int64_t blocks) const;
  /// Tokens hit if nothing is ever forgotten.
  std::int64_t ideal() const { return hits(distinct_blocks); }
};

/// Curve of prompts in their order, none of them null. One pass for all capacities: a block is hit
/// if fewer other blocks than fit have been used since it was [Mattson].
ReuseCurve reuse_curve(std::span<const std::shared_ptr<const PromptIds>> prompts);

/// Tokens that a cache of so many blocks hits which knows what comes. Room is made by those that
/// are hit again last or never, of equal ones by the far end of a prompt first. No other order hits
/// more where an id names all tokens up to its end [Belady].
std::int64_t most_hits(std::span<const std::shared_ptr<const PromptIds>> prompts,
                       std::int64_t blocks);

}  // namespace moesim
