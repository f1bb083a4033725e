// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/kv_cache.hpp"

#include <algorithm>

namespace moesim {

namespace {

// SplitMix64's finaliser over the parent and what follows it.
BlockHash chain(BlockHash parent, std::uint64_t what) {
  std::uint64_t z = (parent ^ (what + 0x9e3779b97f4a7c15ULL)) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// The beginning of a chain that only this request's tokens hash to.
std::uint64_t own(std::uint32_t request) { return (std::uint64_t{1} << 63) | request; }

}  // namespace

std::vector<BlockHash> prompt_hashes(const PromptIds* ids, std::uint32_t request,
                                     std::int32_t prompt_tokens, int block_tokens) {
  std::vector<BlockHash> hashes(static_cast<std::size_t>(prompt_tokens / block_tokens));
  BlockHash parent = 0;
  for (std::size_t b = 0; b < hashes.size(); ++b) {
    // The id under a block's last token names every token before it as well.
    const std::size_t last_token = (b + 1) * static_cast<std::size_t>(block_tokens) - 1;
    const std::uint64_t what =
        ids ? ids->ids[last_token / static_cast<std::size_t>(ids->block_tokens)] : own(request);
    parent = hashes[b] = chain(parent, what);
  }
  return hashes;
}

KvCache::KvCache(const KvLayout& layout, std::int64_t blocks, bool prefix_caching,
                 bool drops_last_hit)
    : layout_(layout),
      blocks_(blocks),
      free_(blocks),
      caching_(prefix_caching),
      drops_last_hit_(drops_last_hit) {
  if (!caching_) return;
  check(layout.groups.size() == 1 && layout.groups.front().window == 0,
        "prefix caching over windows");
  pool_.resize(1);
}

CacheHit KvCache::find(std::span<const BlockHash> hashes, std::int32_t tokens) const {
  hashes = found(hashes, tokens, [&](BlockHash hash) { return block_of_.contains(hash); });
  const auto held = std::ranges::partition_point(
      hashes, [&](BlockHash hash) { return at(block_of_.find(hash)->second).holders > 0; });
  return {std::ssize(hashes), held - hashes.begin()};
}

void KvCache::expect(std::uint32_t request, std::vector<BlockHash> prompt) {
  if (caching_) holdings_[request].hashes = std::move(prompt);
}

CacheHit KvCache::find(const Sequence& sequence) const {
  if (!caching_) return {};
  return find(holdings_.at(sequence.request).hashes, sequence.tokens);
}

void KvCache::take_cached(Sequence& sequence) {
  if (!caching_) return;
  Holding& holding = holdings_.at(sequence.request);
  const CacheHit hit = find(holding.hashes, sequence.tokens);
  for (std::size_t b = 0; b < static_cast<std::size_t>(hit.blocks); ++b) {
    const std::int32_t block = block_of_.at(holding.hashes[b]);
    hold(block);
    holding.blocks.push_back(block);
  }
  holding.filled = holding.blocks.size();
  sequence.blocks = hit.blocks;
  const auto cached = static_cast<std::int32_t>(hit.blocks) * layout_.block_tokens;
  sequence.computed = std::max(sequence.computed, cached);
}

void KvCache::grow(Sequence& sequence, std::int32_t tokens, std::int32_t known) {
  const std::int64_t wanted = layout_.blocks_in_step(sequence.computed, tokens);
  check(wanted - sequence.blocks <= free_, "a scheduler took more KV blocks than were free");
  if (!caching_) {
    free_ -= wanted - sequence.blocks;
    sequence.blocks = wanted;
    return;
  }
  const auto full = static_cast<std::size_t>(known / layout_.block_tokens);
  if (wanted != sequence.blocks ||
      full != static_cast<std::size_t>(sequence.computed / layout_.block_tokens)) {
    Holding& holding = holdings_.at(sequence.request);
    while (std::ssize(holding.blocks) < wanted) holding.blocks.push_back(take_oldest());
    fill(holding, sequence.request, full);
  }
  sequence.blocks = wanted;
}

void KvCache::shrink(Sequence& sequence) {
  const std::int64_t wanted = layout_.blocks_in_step(sequence.computed, sequence.computed);
  if (!caching_) {
    free_ += sequence.blocks - wanted;
  } else {
    Holding& holding = holdings_.at(sequence.request);
    for (; std::ssize(holding.blocks) > wanted; holding.blocks.pop_back()) {
      let_go(holding.blocks.back());
    }
    fill(holding, sequence.request,
         static_cast<std::size_t>(sequence.computed / layout_.block_tokens));
  }
  sequence.blocks = wanted;
}

// Full blocks can be hit by the next sequence of the same step: a kernel writes keys before it
// reads any.
void KvCache::fill(Holding& holding, std::uint32_t request, std::size_t full_blocks) {
  for (; holding.filled < full_blocks; ++holding.filled) {
    const std::size_t b = holding.filled;
    // The prompt's whole blocks are followed by tokens that only this request has.
    if (b == holding.hashes.size()) {
      holding.hashes.push_back(chain(b == 0 ? 0 : holding.hashes[b - 1], own(request)));
    }
    add_copy(holding.hashes[b], holding.blocks[b]);
  }
}

void KvCache::add_copy(BlockHash hash, std::int32_t block) {
  at(block).cached = true;
  at(block).hash = hash;
  at(block).next_copy = 0;
  const auto [first, fresh] = block_of_.try_emplace(hash, block);
  if (fresh) return;
  std::int32_t last = first->second;
  while (at(last).next_copy != 0) last = at(last).next_copy;
  at(last).next_copy = block;
}

void KvCache::forget(std::int32_t block) {
  const auto first = block_of_.find(at(block).hash);
  std::int32_t* link = &first->second;
  while (*link != block) link = &at(*link).next_copy;
  *link = at(block).next_copy;
  if (first->second == 0) block_of_.erase(first);
}

void KvCache::preempt(Sequence& sequence) { release(sequence); }

void KvCache::finish(Sequence& sequence) {
  release(sequence);
  holdings_.erase(sequence.request);
}

void KvCache::release(Sequence& sequence) {
  if (caching_) {
    Holding& holding = holdings_.at(sequence.request);
    std::for_each(holding.blocks.rbegin(), holding.blocks.rend(),
                  [this](std::int32_t block) { let_go(block); });
    holding.blocks.clear();
    holding.filled = 0;
  } else {
    free_ += sequence.blocks;
  }
  sequence.blocks = 0;
  sequence.computed = 0;
}

std::int32_t KvCache::take_oldest() {
  if (std::ssize(pool_) <= blocks_) {
    pool_.push_back({.holders = 1});
    --free_;
    return static_cast<std::int32_t>(pool_.size() - 1);
  }
  const std::int32_t oldest = at(ring_end).newer;
  if (std::exchange(at(oldest).cached, false)) forget(oldest);
  hold(oldest);
  return oldest;
}

void KvCache::hold(std::int32_t block) {
  if (at(block).holders++ == 0) unlink(block);
}

void KvCache::let_go(std::int32_t block) {
  if (--at(block).holders == 0) append_free(block);
}

// The free list is a ring through its end, whose `newer` is the oldest.
void KvCache::append_free(std::int32_t block) {
  const std::int32_t newest = at(ring_end).older;
  at(block).older = newest;
  at(block).newer = ring_end;
  at(newest).newer = block;
  at(ring_end).older = block;
  ++free_;
}

void KvCache::unlink(std::int32_t block) {
  at(at(block).older).newer = at(block).newer;
  at(at(block).newer).older = at(block).older;
  --free_;
}

}  // namespace moesim
