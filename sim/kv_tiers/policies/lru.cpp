// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/block_list.hpp"

namespace moesim {

namespace {

class LruOrder final : public TierOrder {
 public:
  void add(BlockHash hash) override { blocks_.append(hash); }
  void use(BlockHash hash) override { blocks_.to_the_end(hash); }
  void remove(BlockHash hash) override { blocks_.erase(hash); }
  std::optional<BlockHash> victim(const std::function<bool(BlockHash)>& pinned) const override {
    return blocks_.oldest(pinned);
  }

 private:
  BlockList blocks_;
};

// Gives up the block that was stored or found longest ago. A tier is shown the blocks of a prompt
// from their far end, so that of a chain the beginning stays longest.
class LruTier final : public TierEviction {
 public:
  std::unique_ptr<TierOrder> order() const override { return std::make_unique<LruOrder>(); }
};

}  // namespace

std::unique_ptr<TierEviction> make_lru_tier(ConfigReader&) { return std::make_unique<LruTier>(); }

}  // namespace moesim
