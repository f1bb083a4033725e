// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/kv_tiers/block_map.hpp"

namespace moesim {

/// Blocks from the oldest to the newest.
class BlockList {
 public:
  bool contains(BlockHash hash) const { return place_.contains(hash); }
  std::size_t size() const { return place_.size(); }
  /// A block that is not there becomes the newest.
  void append(BlockHash hash) {
    if (unused_ == ring_end) {
      unused_ = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
    }
    const std::uint32_t place = std::exchange(unused_, nodes_[unused_].newer);
    nodes_[place].hash = hash;
    place_[hash] = place;
    link(place);
  }
  /// Returns true if the block was there.
  bool erase(BlockHash hash) {
    const auto found = place_.find(hash);
    if (found == place_.end()) return false;
    unlink(found->second);
    nodes_[found->second].newer = std::exchange(unused_, found->second);
    place_.erase(found);
    return true;
  }
  /// A block that is there becomes the newest.
  void to_the_end(BlockHash hash) {
    const std::uint32_t place = place_.find(hash)->second;
    unlink(place);
    link(place);
  }
  /// Oldest of at least one block.
  BlockHash oldest() const { return nodes_[nodes_[ring_end].newer].hash; }
  /// The oldest that is not pinned; nothing if all are.
  std::optional<BlockHash> oldest(const std::function<bool(BlockHash)>& pinned) const {
    for (std::uint32_t at = nodes_[ring_end].newer; at != ring_end; at = nodes_[at].newer) {
      if (!pinned(nodes_[at].hash)) return nodes_[at].hash;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint32_t ring_end = 0;  // its `newer` is the oldest
  // Blocks of a prompt come one after the other, and so lie next to each other.
  struct Node {
    BlockHash hash = 0;
    std::uint32_t older = ring_end, newer = ring_end;
  };
  void link(std::uint32_t place) {
    const std::uint32_t older = std::exchange(nodes_[ring_end].older, place);
    nodes_[older].newer = place;
    nodes_[place].older = older;
    nodes_[place].newer = ring_end;
  }
  void unlink(std::uint32_t place) {
    const Node& node = nodes_[place];
    nodes_[node.older].newer = node.newer;
    nodes_[node.newer].older = node.older;
  }

  std::vector<Node> nodes_{1};
  std::uint32_t unused_ = ring_end;  // the first node that holds no block, linked by `newer`
  BlockMap<std::uint32_t> place_;
};

}  // namespace moesim
