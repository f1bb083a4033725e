// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/kv_tiers/block_queue.hpp"

namespace moesim {

namespace {

// Blocks found since they were stored, and others: T2 and T1. Of T1 the oldest makes room where it
// holds at least `target` blocks, else of T2; where all of that list are pinned, of the other one.
// As many as the tier holds are remembered that made room, of each list: B1 and B2. One of B1 that
// is stored again says that T1 is too small: target + max(1, |B2| / |B1|), up to the capacity. One
// of B2 says the opposite. What is stored again begins in T1, as in vLLM. vLLM moves the target
// before the block's room is made, here it moves behind.
class ArcOrder final : public TierOrder {
 public:
  explicit ArcOrder(std::int64_t capacity) : capacity_(capacity) {}

  void add(BlockHash hash) override {
    const auto once = static_cast<double>(gone_once_.size()),
               often = static_cast<double>(gone_often_.size());
    if (gone_once_.erase(hash))
      target_ = std::min(target_ + std::max(1., often / once), static_cast<double>(capacity_));
    if (gone_often_.erase(hash)) target_ = std::max(target_ - std::max(1., once / often), 0.);
    once_.append(hash);
  }
  void use(BlockHash hash) override {
    if (once_.erase(hash)) return often_.append(hash);
    often_.to_the_end(hash);
  }
  void renew(BlockHash hash) override { (once_.contains(hash) ? once_ : often_).to_the_end(hash); }
  void remove(BlockHash hash) override {
    BlockList& gone = once_.erase(hash) ? gone_once_ : gone_often_;
    often_.erase(hash);
    gone.append(hash);
    if (gone.size() > static_cast<std::size_t>(capacity_)) gone.erase(gone.oldest());
  }
  std::optional<BlockHash> victim(const std::function<bool(BlockHash)>& pinned) const override {
    const bool of_once =
        static_cast<std::int64_t>(once_.size()) >= static_cast<std::int64_t>(target_);
    const auto first = (of_once ? once_ : often_).oldest(pinned);
    return first ? first : (of_once ? often_ : once_).oldest(pinned);
  }

 private:
  std::int64_t capacity_;
  double target_ = 0;
  BlockList once_, often_, gone_once_, gone_often_;
};

// Adaptive replacement: a scan of prompts that nobody asks for again does not push out what was
// found ([vLLM], vllm/v1/kv_offload/cpu/policies/arc.py).
class ArcTier final : public TierEviction {
 public:
  std::unique_ptr<TierOrder> order(std::int64_t capacity) const override {
    return std::make_unique<ArcOrder>(capacity);
  }
};

}  // namespace

std::unique_ptr<TierEviction> make_arc_tier(ConfigReader&) { return std::make_unique<ArcTier>(); }

}  // namespace moesim
