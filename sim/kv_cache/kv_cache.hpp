// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "models/memory.hpp"
#include "sim/scheduling/scheduler.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// Names a KV block by its tokens and all tokens before them.
using BlockHash = std::uint64_t;

/// The hashes of a prompt's whole blocks, each chained to the one before it. A prompt without ids
/// begins like no other: `request` tells it apart.
std::vector<BlockHash> prompt_hashes(const PromptIds* ids, std::uint32_t request,
                                     std::int32_t prompt_tokens, int block_tokens);

/// What a lookup found.
struct CacheHit {
  std::int64_t blocks = 0;  ///< leading blocks that are here
  std::int64_t in_use = 0;  ///< of those, held by some request: taking them takes no free block
};

/// The paged KV cache of one DP rank as [vLLM] v1 keeps it: blocks of equal size, one free
/// list. With prefix caching a full block is known by its hash, also after its last holder let go
/// of it, until it is taken for other tokens. The free list is in order of letting go, and a
/// request lets go of its last block first: of a prefix the far end is forgotten first, so that
/// what is here of a chain is always its beginning. Two requests that compute the same block share
/// one copy.
class KvCache {
 public:
  /// Prefix caching needs a layout of one group without a window.
  KvCache(const KvLayout&, std::int64_t blocks, bool prefix_caching);

  std::int64_t blocks() const { return blocks_; }
  /// Blocks nobody holds, those included that can still be hit.
  std::int64_t free_blocks() const { return free_; }
  /// Blocks that can be hit, held or not.
  std::int64_t cached_blocks() const { return std::ssize(block_of_); }

  /// What a sequence of `tokens` would find of these blocks. It must compute its last token, so at
  /// most (tokens - 1) / block_tokens of them.
  CacheHit find(std::span<const BlockHash> hashes, std::int32_t tokens) const;

  /// A request comes to this rank with these blocks in its prompt.
  void expect(std::uint32_t request, std::vector<BlockHash> prompt);
  /// Of a request that was expected: what it would find, and how many of the blocks it holds others
  /// hold too.
  CacheHit find(const Sequence&) const;
  std::int64_t shared_blocks(const Sequence&) const;

  /// Takes the blocks that are here of a sequence that holds none: `blocks` says how many, and
  /// `computed` reaches at least as far.
  void take_cached(Sequence&);
  /// Holds blocks for `tokens` tokens, more than it has, of which the first `known` will stay,
  /// drafts perhaps not. There must be enough free ones.
  void grow(Sequence&, std::int32_t tokens, std::int32_t known);
  void grow(Sequence& sequence, std::int32_t tokens) { grow(sequence, tokens, tokens); }
  /// Lets go of blocks behind the computed tokens, which will all stay.
  void shrink(Sequence&);
  /// Lets go of all blocks; `computed` is 0 again.
  void preempt(Sequence&);
  /// The same, and the request is expected no more.
  void finish(Sequence&);

 private:
  struct Block {
    BlockHash hash = 0;
    bool cached = false;
    std::int32_t holders = 0;
    std::int32_t older = 0, newer = 0;  // in the free list
  };
  struct Holding {
    std::vector<BlockHash> hashes;     // of full blocks: the prompt's, then as they fill
    std::vector<std::int32_t> blocks;  // held, in order
    std::size_t filled = 0;            // of those, full
  };

  void release(Sequence&);
  void fill(Holding&, std::uint32_t request, std::size_t full_blocks);
  std::int32_t take_oldest();
  void hold(std::int32_t block);
  void let_go(std::int32_t block);
  void append_free(std::int32_t block);
  void unlink(std::int32_t block);
  Block& at(std::int32_t block) { return pool_[static_cast<std::size_t>(block)]; }
  const Block& at(std::int32_t block) const { return pool_[static_cast<std::size_t>(block)]; }

  static constexpr std::int32_t ring_end = 0;  // of the free list

  KvLayout layout_;
  std::int64_t blocks_, free_;
  bool caching_;
  // [1 + blocks that were ever held] when caching, the first one the free list's end. Most of a
  // large cache is never touched: what is not here yet is free, and older than all that is.
  std::vector<Block> pool_;
  std::unordered_map<BlockHash, std::int32_t> block_of_;
  std::unordered_map<std::uint32_t, Holding> holdings_;
};

}  // namespace moesim
