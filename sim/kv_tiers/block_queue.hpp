// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/kv_tiers/block_list.hpp"

namespace moesim {

/// A list of blocks, of which the oldest that is not pinned makes room.
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
