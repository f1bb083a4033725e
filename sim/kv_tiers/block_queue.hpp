// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <unordered_map>

#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

/// Blocks from the oldest to the newest.
class BlockList {
 public:
  bool contains(BlockHash hash) const { return place_.contains(hash); }
  std::size_t size() const { return place_.size(); }
  void append(BlockHash hash) { place_[hash] = blocks_.insert(blocks_.end(), hash); }
  /// Whether it was there.
  bool erase(BlockHash hash) {
    const auto found = place_.find(hash);
    if (found == place_.end()) return false;
    blocks_.erase(found->second);
    place_.erase(found);
    return true;
  }
  void to_the_end(BlockHash hash) {
    blocks_.splice(blocks_.end(), blocks_, place_.find(hash)->second);
  }
  BlockHash oldest() const { return blocks_.front(); }
  /// The oldest that is not pinned; nothing if all are.
  std::optional<BlockHash> oldest(const std::function<bool(BlockHash)>& pinned) const {
    for (const BlockHash hash : blocks_) {
      if (!pinned(hash)) return hash;
    }
    return std::nullopt;
  }

 private:
  std::list<BlockHash> blocks_;
  std::unordered_map<BlockHash, std::list<BlockHash>::iterator> place_;
};

/// One list of blocks, of which the oldest that is not pinned makes room.
class BlockQueue : public TierOrder {
 public:
  void add(BlockHash hash) final { blocks_.append(hash); }
  void remove(BlockHash hash) final { blocks_.erase(hash); }
  std::optional<BlockHash> victim(const std::function<bool(BlockHash)>& pinned) const final {
    return blocks_.oldest(pinned);
  }

 protected:
  void to_the_end(BlockHash hash) { blocks_.to_the_end(hash); }

 private:
  BlockList blocks_;
};

}  // namespace moesim
