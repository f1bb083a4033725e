// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/block_queue.hpp"

namespace moesim {

namespace {

class LruOrder final : public BlockQueue {
 public:
  void use(BlockHash hash) override { to_the_end(hash); }
  void renew(BlockHash hash) override { to_the_end(hash); }
};

// Gives up the block that was stored or found longest ago. A tier is shown the blocks of a prompt
// from their far end, so that of a chain the beginning stays longest.
class LruTier final : public TierEviction {
 public:
  std::unique_ptr<TierOrder> order(std::int64_t) const override {
    return std::make_unique<LruOrder>();
  }
};

}  // namespace

std::unique_ptr<TierEviction> make_lru_tier(ConfigReader&) { return std::make_unique<LruTier>(); }

}  // namespace moesim
