// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "sim/kv_tiers/block_map.hpp"

namespace moesim {

/// Which agents of sessions have a block in their last prompt or its reply, and so when the block
/// is needed next.
class BlockOwners {
 public:
  /// An agent's request, which is under way, has these blocks or will fill them, its first one
  /// first. Answers those of which the next use has changed, of its request before as well.
  std::vector<BlockHash> own(AgentName, std::span<const BlockHash>);
  /// Answers the blocks of which the next use has changed: none of an agent that has none.
  std::vector<BlockHash> announce(const Announcement&);
  /// The soonest next request of all agents that have the block; never if none has.
  NextRequest next(BlockHash) const;
  /// True if an agent that continues has the block.
  bool has(BlockHash hash) const { return owners_.contains(hash); }

 private:
  struct Agent {
    std::vector<BlockHash> blocks{};
    NextRequest next{};
  };
  void leave(AgentName, BlockHash);

  std::unordered_map<AgentName, Agent> agents_;
  BlockMap<std::vector<AgentName>> owners_;  // never empty
};

}  // namespace moesim
