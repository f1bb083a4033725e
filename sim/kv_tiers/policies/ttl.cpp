// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/block_queue.hpp"

namespace moesim {

namespace {

// Order of lru. Blocks not found or stored for longer than `ttl` are forgotten in any case.
class TtlOrder final : public TierOrder {
 public:
  explicit TtlOrder(Seconds ttl) : ttl_(to_duration(ttl)) {}

  void clock(Time now) override { now_ = now; }
  void add(BlockHash hash) override {
    blocks_.append(hash);
    last_[hash] = now_;
  }
  void use(BlockHash hash) override { renew(hash); }
  void renew(BlockHash hash) override {
    blocks_.to_the_end(hash);
    last_[hash] = now_;
  }
  void remove(BlockHash hash) override {
    blocks_.erase(hash);
    last_.erase(hash);
  }
  std::optional<BlockHash> victim(const std::function<bool(BlockHash)>& pinned) const override {
    return blocks_.oldest(pinned);
  }
  std::optional<BlockHash> expired(const std::function<bool(BlockHash)>& pinned) const override {
    const auto oldest = blocks_.oldest(pinned);
    return oldest && last_.at(*oldest) + ttl_ < now_ ? oldest : std::nullopt;
  }

 private:
  Duration ttl_;
  Time now_{};
  BlockList blocks_;
  BlockMap<Time> last_;
};

// A provider's cache with a lifetime ("cached for five minutes"), or a lease of Mooncake Store: how
// long must blocks live for the hits of a load?
class TtlTier final : public TierEviction {
 public:
  explicit TtlTier(Seconds ttl) : ttl_(ttl) {}
  std::unique_ptr<TierOrder> order(std::int64_t) const override {
    return std::make_unique<TtlOrder>(ttl_);
  }

 private:
  Seconds ttl_;
};

}  // namespace

std::span<const Key> ttl_tier_keys() {
  static constexpr Key keys[] = {
      {"ttl", form::time, "300 s", "a block that no request found for longer is forgotten"}};
  return keys;
}

std::unique_ptr<TierEviction> make_ttl_tier(ConfigReader& options) {
  return std::make_unique<TtlTier>(options.quantity<Seconds>("ttl"));
}

}  // namespace moesim
