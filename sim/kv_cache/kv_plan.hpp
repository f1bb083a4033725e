// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/kv_cache/kv_cache.hpp"

namespace moesim {

/// KV cache of a rank on paper while a step is composed, sequence after sequence in the order in
/// which the step will be carried out. Knows what is free. With prefix caching it knows what a
/// sequence finds after the ones before it have taken and filled their blocks. The cache itself
/// stays as it is.
class KvPlan {
 public:
  /// `cache` is null without prefix caching. Without `looks_up` find() is never asked.
  KvPlan(const KvLayout&, std::int64_t free_blocks, const KvCache* cache, bool looks_up);

  std::int64_t free_blocks() const { return free_; }
  /// Blocks for `tokens` more tokens of a running sequence beyond those that it holds; negative
  /// when its window leaves more behind than it takes.
  std::int64_t wanted(const Sequence& sequence, std::int32_t tokens) const {
    const std::int64_t more =
        layout_.more_in_step(sequence.blocks, sequence.computed, sequence.computed + tokens);
    return cache_ == nullptr ? more : more + held_by_others(sequence);
  }
  /// Gives a running sequence these blocks, which are wanted() and of which there must be enough.
  void grow(const Sequence& sequence, std::int32_t tokens, std::int64_t wanted) {
    if (cache_ == nullptr) {
      free_ -= wanted;
    } else {
      grow_cached(sequence, tokens);
    }
  }
  /// A running sequence that took nothing in this step lets go of its blocks. The ones that no
  /// other sequence holds are free now; nothing is looked up any more.
  void preempt(const Sequence&);

  /// Returns what a waiting sequence would find. Unlike a router's, `in_use` counts every block.
  CacheHit find(const Sequence&) const;
  /// A waiting sequence takes what it has found, which `computed` counts, and blocks for `tokens`
  /// more tokens.
  void admit(const Sequence&, const CacheHit&, std::int32_t tokens);
  /// True if a sequence that found this waits for blocks on their way from a tier.
  bool parks(const CacheHit&) const;
  /// Such a sequence takes what it has found in HBM, and blocks for what it loads.
  void park(const Sequence&, const CacheHit&);

 private:
  std::int64_t held_by_others(const Sequence&) const;
  void grow_cached(const Sequence&, std::int32_t tokens);
  std::int32_t still_here(std::int32_t copy) const;
  bool in_use(std::int32_t copy) const;
  std::int64_t holders(std::int32_t block) const;
  void hold(std::int32_t block);
  void let_go(std::int32_t block);
  std::int32_t next_free();
  void take_oldest(std::int64_t count);
  void fill(const Sequence&, std::size_t filled, std::int32_t tokens);

  const KvLayout& layout_;
  std::int64_t free_;
  const KvCache* cache_;
  bool looks_up_;
  std::int64_t untouched_ = 0;                 // free blocks that were never taken yet
  std::int32_t oldest_ = 0;                    // oldest of the free list not taken on paper
  tsl::robin_set<std::int32_t, Spread> gone_;  // cached blocks that were taken for other tokens
  BlockSet filled_;                            // names of blocks that became full
  BlockSet on_their_way_;                      // of blocks that began to be loaded
  tsl::robin_map<std::int32_t, std::int32_t, Spread> more_holders_;  // than in the cache, by block
  std::vector<std::int32_t> let_go_;  // blocks that became free, behind the cache's free list
  std::size_t let_go_taken_ = 0;      // how many of them were taken or passed over
};

}  // namespace moesim
