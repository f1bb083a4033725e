// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <unordered_map>

#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

/// Blocks in a queue, of which the first that is not pinned makes room.
class BlockQueue : public TierOrder {
 public:
  void add(BlockHash hash) final { place_[hash] = queue_.insert(queue_.end(), hash); }
  void remove(BlockHash hash) final {
    const auto found = place_.find(hash);
    queue_.erase(found->second);
    place_.erase(found);
  }
  std::optional<BlockHash> victim(const std::function<bool(BlockHash)>& pinned) const final {
    for (const BlockHash hash : queue_) {
      if (!pinned(hash)) return hash;
    }
    return std::nullopt;
  }

 protected:
  void to_the_end(BlockHash hash) {
    queue_.splice(queue_.end(), queue_, place_.find(hash)->second);
  }

 private:
  std::list<BlockHash> queue_;
  std::unordered_map<BlockHash, std::list<BlockHash>::iterator> place_;
};

}  // namespace moesim
