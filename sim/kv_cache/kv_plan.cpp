// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/kv_plan.hpp"

#include <algorithm>

namespace moesim {

KvPlan::KvPlan(const KvLayout& layout, std::int64_t free_blocks, const KvCache* cache,
               bool looks_up)
    : layout_(layout), free_(free_blocks), cache_(cache), looks_up_(looks_up && cache != nullptr) {
  if (!looks_up_) return;
  untouched_ = cache_->untouched();
  oldest_ = cache_->at(KvCache::ring_end).newer;
}

std::int64_t KvPlan::wanted(const Sequence& sequence, std::int32_t tokens) const {
  return layout_.blocks_in_step(sequence.computed, sequence.computed + tokens) - sequence.blocks;
}

void KvPlan::grow(const Sequence& sequence, std::int32_t tokens) {
  const std::int64_t more = wanted(sequence, tokens);
  take_oldest(more);
  if (looks_up_) fill(sequence, cache_->holdings_.at(sequence.request).filled, tokens);
}

void KvPlan::preempt(const Sequence& sequence) {
  looks_up_ = false;
  if (cache_ == nullptr) {
    free_ += sequence.blocks;
    return;
  }
  for (const std::int32_t block : cache_->holdings_.at(sequence.request).blocks) {
    if (++let_go_[block] == cache_->at(block).holders) ++free_;
  }
}

CacheHit KvPlan::find(const Sequence& sequence) const {
  if (cache_ == nullptr) return {};
  check(looks_up_, "a prefix is looked up after a preemption");
  const auto hashes =
      cache_->found(cache_->holdings_.at(sequence.request).hashes, sequence.tokens,
                    [&](BlockHash h) { return first_copy(h) != 0 || filled_.contains(h); });
  return {std::ssize(hashes), std::ranges::count_if(hashes, [&](auto h) { return in_use(h); })};
}

void KvPlan::admit(const Sequence& sequence, const CacheHit& hit, std::int32_t tokens) {
  const std::int64_t blocks = layout_.blocks_in_step(sequence.computed, sequence.computed + tokens);
  if (cache_ != nullptr) {
    const KvCache::Holding& holding = cache_->holdings_.at(sequence.request);
    for (std::size_t b = 0; b < static_cast<std::size_t>(hit.blocks); ++b) {
      if (!in_use(holding.hashes[b])) revived_.insert(first_copy(holding.hashes[b]));
    }
    free_ -= hit.blocks - hit.in_use;
    fill(sequence, static_cast<std::size_t>(hit.blocks), tokens);
  }
  take_oldest(blocks - hit.blocks);
}

// The copy of a block that is found: the first to have been filled that is still there.
std::int32_t KvPlan::first_copy(BlockHash hash) const {
  const auto found = cache_->block_of_.find(hash);
  std::int32_t block = found == cache_->block_of_.end() ? 0 : found->second;
  while (block != 0 && gone_.contains(block)) block = cache_->at(block).next_copy;
  return block;
}

// Blocks that were filled in this step are held by the sequences that filled them.
bool KvPlan::in_use(BlockHash hash) const {
  const std::int32_t block = first_copy(hash);
  return block == 0 || cache_->at(block).holders > 0 || revived_.contains(block);
}

void KvPlan::take_oldest(std::int64_t count) {
  free_ -= count;
  if (!looks_up_) return;
  const std::int64_t fresh = std::min(count, untouched_);
  untouched_ -= fresh;
  for (count -= fresh; count > 0; oldest_ = cache_->at(oldest_).newer) {
    if (revived_.contains(oldest_)) continue;
    if (cache_->at(oldest_).cached) gone_.insert(oldest_);
    --count;
  }
}

void KvPlan::fill(const Sequence& sequence, std::size_t filled, std::int32_t tokens) {
  // The prompt is followed by tokens that no other request has.
  const std::vector<BlockHash>& hashes = cache_->holdings_.at(sequence.request).hashes;
  const std::int32_t known = sequence.computed + std::min(tokens, sequence.due());
  const auto full = std::min(hashes.size(), static_cast<std::size_t>(known / layout_.block_tokens));
  for (std::size_t b = filled; b < full; ++b) filled_.insert(hashes[b]);
}

}  // namespace moesim
