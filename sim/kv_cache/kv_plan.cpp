// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/kv_plan.hpp"

#include <algorithm>
#include <utility>

namespace moesim {

KvPlan::KvPlan(const KvLayout& layout, std::int64_t free_blocks, const KvCache* cache,
               bool looks_up)
    : layout_(layout), free_(free_blocks), cache_(cache), looks_up_(looks_up && cache != nullptr) {
  if (!looks_up_) return;
  untouched_ = cache_->untouched();
  oldest_ = cache_->at(KvCache::ring_end).newer;
}

// Blocks that a window leaves behind stay taken where others hold them.
std::int64_t KvPlan::held_by_others(const Sequence& sequence) const {
  std::int64_t taken = 0;
  cache_->count_left_behind(sequence,
                            [&](std::int32_t block) { taken += holders(block) > 1 ? 1 : 0; });
  return taken;
}

void KvPlan::grow_cached(const Sequence& sequence, std::int32_t tokens) {
  std::int64_t more =
      layout_.more_in_step(sequence.blocks, sequence.computed, sequence.computed + tokens);
  more += cache_->count_left_behind(sequence, [&](std::int32_t block) { let_go(block); });
  take_oldest(more);
  if (looks_up_) fill(sequence, cache_->holdings_.at(sequence.request).filled, tokens);
}

void KvPlan::preempt(const Sequence& sequence) {
  looks_up_ = false;
  if (cache_ == nullptr) {
    free_ += sequence.blocks;
    return;
  }
  for (const KvCache::Held& held : cache_->holdings_.at(sequence.request).groups)
    for (const std::int32_t block : held.blocks) let_go(block);
}

CacheHit KvPlan::find(const Sequence& sequence) const {
  if (cache_ == nullptr) return {};
  check(looks_up_, "a prefix is looked up after a preemption");
  if (sequence.blocks > 0) return {sequence.blocks, sequence.blocks};  // what it loaded
  const std::vector<BlockHash>& hashes = cache_->holdings_.at(sequence.request).hashes;
  auto is_here = [&, before = std::int32_t{0}](BlockHash name) mutable {
    before = cache_->first_copy(name, before);
    return still_here(before) != 0 || filled_.contains(name);
  };
  CacheHit hit;
  if (cache_->below().tier != nullptr && sequence.computed == 0) {
    hit = cache_->found_above(hashes, sequence.tokens, is_here, [&](BlockHash name) {
      return cache_->traffic_.on_its_way(name) || on_their_way_.contains(name);
    });
  } else {
    hit.blocks = cache_->found(hashes, sequence.tokens, is_here);
  }
  const std::int64_t computed =
      std::max<std::int64_t>(sequence.computed, hit.blocks * layout_.block_tokens);
  cache_->for_needed(hashes, hit.blocks, computed,
                     [&](std::size_t, std::int32_t block) { hit.in_use += in_use(block) ? 1 : 0; });
  return hit;
}

void KvPlan::admit(const Sequence& sequence, const CacheHit& hit, std::int32_t tokens) {
  std::int64_t blocks = layout_.blocks_in_step(sequence.computed, sequence.computed + tokens);
  if (cache_ != nullptr && sequence.blocks > 0) {
    blocks -= sequence.blocks;
    fill(sequence, static_cast<std::size_t>(hit.blocks), tokens);
  } else if (cache_ != nullptr) {
    const KvCache::Holding& holding = cache_->holdings_.at(sequence.request);
    cache_->for_needed(holding.hashes, hit.blocks, sequence.computed,
                       [&](std::size_t, std::int32_t copy) {
                         --blocks;
                         if (const std::int32_t block = still_here(copy); block != 0) hold(block);
                       });
    fill(sequence, static_cast<std::size_t>(hit.blocks), tokens);
  }
  take_oldest(blocks);
}

bool KvPlan::parks(const CacheHit& hit) const {
  return hit.awaits || (hit.loads > 0 && cache_->below().read == TierRead::parked);
}

void KvPlan::park(const Sequence& sequence, const CacheHit& hit) {
  if (hit.awaits) return;
  const std::span<const BlockHash> hashes = cache_->holdings_.at(sequence.request).hashes;
  cache_->for_needed(hashes, hit.blocks, 0, [&](std::size_t, std::int32_t copy) {
    if (const std::int32_t block = still_here(copy); block != 0) hold(block);
  });
  const auto loaded =
      hashes.subspan(static_cast<std::size_t>(hit.blocks), static_cast<std::size_t>(hit.loads));
  on_their_way_.insert(loaded.begin(), loaded.end());
  take_oldest(hit.loads);
}

// The copy of a block that is found: this one, or the next to have been filled that is still there.
std::int32_t KvPlan::still_here(std::int32_t copy) const {
  while (copy != 0 && gone_.contains(copy)) copy = cache_->at(copy).next_copy;
  return copy;
}

// Blocks that were filled in this step are held by the sequences that filled them.
bool KvPlan::in_use(std::int32_t copy) const {
  const std::int32_t block = still_here(copy);
  return block == 0 || holders(block) > 0;
}

std::int64_t KvPlan::holders(std::int32_t block) const {
  const auto more = more_holders_.find(block);
  return cache_->at(block).holders + (more == more_holders_.end() ? 0 : more->second);
}

void KvPlan::hold(std::int32_t block) {
  if (cache_->at(block).holders + more_holders_[block]++ == 0) --free_;
}

void KvPlan::let_go(std::int32_t block) {
  --more_holders_[block];
  if (holders(block) > 0) return;
  ++free_;
  if (looks_up_) let_go_.push_back(block);
}

// The block that was let go of longest ago: of the cache's free list, then of those on paper. What
// was found meanwhile is not free.
std::int32_t KvPlan::next_free() {
  while (oldest_ != KvCache::ring_end) {
    const std::int32_t block = std::exchange(oldest_, cache_->at(oldest_).newer);
    if (holders(block) == 0) return block;
  }
  while (holders(let_go_.at(let_go_taken_)) > 0) ++let_go_taken_;
  return let_go_[let_go_taken_++];
}

void KvPlan::take_oldest(std::int64_t count) {
  free_ -= count;
  if (!looks_up_) return;
  const std::int64_t fresh = std::min(count, untouched_);
  untouched_ -= fresh;
  for (count -= fresh; count > 0; --count) {
    const std::int32_t block = next_free();
    if (cache_->at(block).cached) gone_.insert(block);
  }
}

void KvPlan::fill(const Sequence& sequence, std::size_t filled, std::int32_t tokens) {
  // The known blocks are followed by tokens that no other request has.
  const std::vector<BlockHash>& hashes = cache_->holdings_.at(sequence.request).hashes;
  const std::int32_t known = sequence.computed + std::min(tokens, sequence.due());
  const auto full = std::min(hashes.size(), static_cast<std::size_t>(known / layout_.block_tokens));
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const auto first = static_cast<std::size_t>(
        layout_.groups[g].first_block(sequence.computed, layout_.block_tokens));
    for (std::size_t b = std::max(filled, first); b < full; ++b)
      filled_.insert(KvCache::name_in(g, hashes[b]));
  }
}

}  // namespace moesim
