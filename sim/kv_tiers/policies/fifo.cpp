// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/block_queue.hpp"

namespace moesim {

namespace {

class FifoOrder final : public BlockQueue {
 public:
  void use(BlockHash) override {}
  void renew(BlockHash) override {}
};

// Gives up the block that was stored longest ago, found or not (LMCache's FIFO).
class FifoTier final : public TierEviction {
 public:
  std::unique_ptr<TierOrder> order(std::int64_t) const override {
    return std::make_unique<FifoOrder>();
  }
};

}  // namespace

std::unique_ptr<TierEviction> make_fifo_tier(ConfigReader&) { return std::make_unique<FifoTier>(); }

}  // namespace moesim
