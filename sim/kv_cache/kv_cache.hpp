// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/memory.hpp"
#include "sim/kv_cache/sequence.hpp"
#include "sim/kv_tiers/tier_traffic.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// The hashes of the whole blocks of a prompt's first `tokens` tokens, each chained to the one
/// before it. A prompt without ids begins like no other: `request` tells it apart.
std::vector<BlockHash> prompt_hashes(const PromptIds* ids, std::uint32_t request,
                                     std::int64_t tokens, int block_tokens);
/// Hashes of the prompt, and of what the request will generate as far as its ids name that.
std::vector<BlockHash> known_hashes(const PromptIds* ids, std::uint32_t request,
                                    std::int32_t prompt_tokens, int block_tokens);

/// Blocks that a lookup found.
struct CacheHit {
  /// Leading blocks that are in the cache.
  std::int64_t blocks = 0;
  /// Blocks, over all groups of layers, that the hit needs and some request holds: taking them
  /// takes no free block. Without a window a router counts them up to the first that no request
  /// holds.
  std::int64_t in_use = 0;
  /// Blocks behind `blocks` that tiers below can load.
  std::int64_t loads = 0;
  /// Loads that no nearer tier has.
  OfLowerTiers<std::int64_t> of_lower{};
  /// The block behind `blocks` is on its way to HBM, loaded for another request.
  bool awaits = false;
  std::int64_t all() const { return blocks + loads; }
};

/// Paged KV cache of one DP rank as [vLLM] v1 keeps it: blocks of equal size, one free list. With
/// prefix caching a full block is known by its hash until it is taken for other tokens, also after
/// its last holder let go. The free list is in order of letting go. A request lets go of its last
/// block first: the far end of a prefix is forgotten first. So what is left of a chain is always
/// its beginning. Requests that compute the same block at the same time each keep their copy; later
/// ones find the copy that was full first.
///
/// Groups of layers keep blocks of their own. A window's group lets go of what it leaves behind,
/// which can be hit until it is taken. A hit reaches only as far as every group still has what the
/// next token attends to (vLLM's HybridKVCacheCoordinator). Without a window that is all blocks,
/// else those of the window, or those of the chunk of the next token. At the beginning of a chunk
/// that is none.
///
/// Below HBM there may be tiers. Then a sequence finds a beginning of its blocks in HBM and those
/// that follow in any tier; each comes from the nearest one. Loads take their blocks of HBM as they
/// begin, and no request finds these before they have landed. A copy to the first tier holds its
/// block of HBM until it has landed. A copy made because a block is taken for other tokens does
/// not (TierTraffic).
class KvCache {
 public:
  /// Prefix caching needs a layout without states, a tier one without windows. With
  /// `drops_last_hit` the last block of every hit is computed again. Drafting modules that read the
  /// model's hidden states (MTP, EAGLE) need those of the token before. Only a cache that remembers
  /// agents can retain() and prefetch().
  KvCache(const KvLayout&, std::int64_t blocks, bool prefix_caching, bool drops_last_hit = false,
          TierPort below = {}, bool remembers_agents = false);

  std::int64_t blocks() const { return blocks_ - set_aside_; }
  /// Blocks that no request holds, including cached ones that can still be hit.
  std::int64_t free_blocks() const { return free_; }

  /// So many blocks hold no KV from now on; of those that did not, the rest is free and empty
  /// again. There must be enough free ones: what they are cached for is forgotten, the oldest
  /// first.
  void set_aside(std::int64_t blocks);
  std::int64_t set_aside() const { return set_aside_; }

  /// Which of these blocks a sequence of `tokens` would find: at most (tokens - 1) / block_tokens,
  /// as it must compute its last token.
  CacheHit find(std::span<const BlockHash> hashes, std::int32_t tokens) const;
  /// How many blocks behind a hit of so many tiers could load for such a sequence.
  std::int64_t loadable(std::span<const BlockHash> hashes, std::int64_t hit,
                        std::int32_t tokens) const;

  /// A request comes to this rank whose first blocks, those of its prompt at least, are these.
  /// If it is an agent's, tiers learn that the agent is back, and later that the request runs.
  void expect(std::uint32_t request, std::int32_t prompt_tokens, std::vector<BlockHash> known,
              std::optional<AgentName> agent = {});
  /// Advances time to `now`: what was held for agents until before is free.
  void pass(Time now);
  /// True if an agent's last request was here.
  bool remembers(AgentName agent) const { return agents_.contains(agent); }
  /// The agent asks for nothing more.
  void forget_agent(AgentName);
  /// Holds the blocks of an agent's last request that are cached until then, or until a request of
  /// the agent has them.
  void retain(AgentName, Time until);
  /// Lets go of what is held for the agent that would be waited for longest; false if for none.
  bool release_one();
  /// Begins to load what tiers have behind the blocks of an agent's last request that are cached,
  /// if there are free blocks for all. When they have landed they are cached, and free.
  void prefetch(AgentName, Time now);
  /// Returns what a sequence of a request that was expected would find.
  CacheHit find(const Sequence&) const;

  /// Gives a sequence that holds no blocks those that are cached: its `blocks` says how many, and
  /// its `computed` reaches at least as far.
  void take_cached(Sequence&);
  /// Gives a sequence that holds no blocks those that are cached and room for those that tiers
  /// load. Both count as computed. Answers what it found; if none are loaded, the sequence gets
  /// nothing.
  CacheHit begin_load(Sequence&);
  /// Begins the loads that were noted. Answers when they will have landed if no other transfer
  /// makes them slower. Those of all ranks come before any rank's copies, which may evict blocks.
  Time load_noted(Time now) { return traffic_.load_noted(now); }
  /// Begins copies of blocks that were taken, and those from tier to tier of blocks that were
  /// found. Answers when the first will have landed if no other transfer makes them slower.
  Time copy_taken(Time now);
  /// Begins copies of blocks that became full, or were found, since it was asked last.
  void store(Time now);
  /// A transfer of a tier, counted from the first, has landed: the request whose load is now
  /// whole, or `prefetched` if an agent's is; nothing else.
  std::optional<std::uint32_t> land(std::size_t tier, const KvTier::Landed&, Time now);
  static constexpr std::uint32_t prefetched = TierTraffic::prefetched;
  /// True if loads or copies are under way.
  bool moves() const { return traffic_.moves(); }
  bool loads() const { return traffic_.loads(); }
  const TierPort& below() const { return traffic_.below(); }
  /// Holds blocks for a step that computes up to `tokens` tokens, of which the first `known` will
  /// stay, drafts perhaps not. Blocks that a window left behind before this step are let go. There
  /// must be enough free ones.
  void grow(Sequence& sequence, std::int32_t tokens, std::int32_t known) {
    const std::int64_t more = layout_.more_in_step(sequence.blocks, sequence.computed, tokens);
    if (caching_) return grow_cached(sequence, tokens, known, more);
    check(more <= free_, "a scheduler took more KV blocks than were free");
    free_ -= more;
    sequence.blocks += more;
  }
  void grow(Sequence& sequence, std::int32_t tokens) { grow(sequence, tokens, tokens); }
  /// Lets go of blocks behind the computed tokens, which will all stay.
  void shrink(Sequence&);
  /// Lets go of all blocks; `computed` is 0 again.
  void preempt(Sequence&);
  /// Lets go of all blocks of a request, which is expected no more.
  void finish(Sequence&);

 private:
  friend class KvPlan;

  // Half a line of a CPU's cache: most blocks that are looked at come from far memory.
  struct alignas(32) Block {
    BlockHash hash = 0;
    std::int32_t holders = 0;
    std::int32_t older = 0, newer = 0;  // neighbours in the free list
    std::int32_t next_copy = 0;         // the next block to be full of the same tokens; 0 = none
    std::int32_t follower = 0;          // behind it in the last request that had both; 0 = none
    bool cached = false;
    bool first_copy = false;  // of those full of the same tokens
    bool stays = false;       // tiers are not given it: a reply that no prompt holds yet
  };
  // The blocks that a request holds of one group, in order, from the first that its window sees.
  struct Held {
    std::int64_t first = 0;
    std::vector<std::int32_t> blocks;
    std::int64_t end() const { return first + std::ssize(blocks); }
  };
  struct Holding {
    std::vector<BlockHash> hashes;  // of full blocks: what is known, then as they fill
    std::vector<Held> groups;
    std::size_t filled = 0;     // how many leading blocks are full
    std::size_t of_prompt = 0;  // how many leading blocks hold nothing but its prompt
    std::size_t known = 0;      // how many its agent's next request may begin with
    std::optional<AgentName> agent{};
  };

  // Returns the name of a group's block.
  static BlockHash name_in(std::size_t group, BlockHash);
  // How many of these blocks a sequence of `tokens` may find at most.
  std::int64_t most_found(std::span<const BlockHash> hashes, std::int32_t tokens) const {
    return std::min<std::int64_t>(std::ssize(hashes), (tokens - 1) / layout_.block_tokens);
  }
  std::int64_t found(std::span<const BlockHash>, std::int32_t tokens, auto&& is_here) const;
  CacheHit found_above(std::span<const BlockHash>, std::int32_t tokens, auto&& is_here,
                       auto&& on_its_way) const;
  CacheHit find_all(std::span<const BlockHash>, std::int32_t tokens) const;
  void note_hit(const Holding&, const CacheHit&);
  void remember(Holding&);
  std::int64_t reach(std::span<const BlockHash>, std::int64_t blocks, auto&& is_here) const;
  void for_needed(std::span<const BlockHash>, std::int64_t blocks, std::int64_t computed,
                  auto&& action) const;
  std::int32_t first_copy(BlockHash name, std::int32_t before) const;
  std::int64_t count_left_behind(const Sequence&, auto&& action) const;
  void grow_cached(Sequence&, std::int32_t tokens, std::int32_t known, std::int64_t more);
  void leave_behind(const Sequence&);
  void release(Sequence&);
  void add_copy(BlockHash, std::int32_t block, bool stays);
  void forget(std::int32_t block);
  void fill(Holding&, std::uint32_t request, std::size_t full_blocks);
  std::int32_t take_oldest();
  void hold(std::int32_t block);
  void let_go(std::int32_t block);
  void let_go_all(std::span<const std::int32_t> blocks);
  void append_free(std::int32_t block);
  void insert_free(std::int32_t block, std::int32_t older);
  void unlink(std::int32_t block);
  std::int64_t untouched() const { return blocks_ + 1 - std::ssize(pool_); }
  Block& at(std::int32_t block) { return pool_[static_cast<std::size_t>(block)]; }
  const Block& at(std::int32_t block) const { return pool_[static_cast<std::size_t>(block)]; }

  // An agent's last request.
  struct Agent {
    std::vector<BlockHash> known{};        // what its next request may begin with
    std::vector<std::int32_t> retained{};  // blocks held for it
    Time until{};                          // when they are retained
  };
  void release(Agent&);
  void release(const std::optional<AgentName>&);

  static constexpr std::int32_t ring_end = 0;  // of the free list

  KvLayout layout_;
  std::int64_t blocks_, free_, set_aside_ = 0;
  bool caching_, drops_last_hit_;
  // [1 + blocks that were ever held] when caching, the first one the free list's end. Most of a
  // large cache is never touched: what is not here yet is free, and older than all that is.
  std::vector<Block> pool_;
  BlockMap<std::int32_t> block_of_;  // the first copy
  std::unordered_map<std::uint32_t, Holding> holdings_;
  std::vector<std::int32_t> aside_;  // when caching
  bool remembers_agents_;
  std::unordered_map<AgentName, Agent> agents_;
  std::set<AgentName> retained_for_;
  TierTraffic traffic_;
};

// How many leading blocks a sequence of `tokens` finds, where `is_here` says of a name which are
// cached.
std::int64_t KvCache::found(std::span<const BlockHash> hashes, std::int32_t tokens,
                            auto&& is_here) const {
  const std::int64_t hit = reach(hashes, most_found(hashes, tokens), is_here);
  return drops_last_hit_ && hit > 0 ? reach(hashes, hit - 1, is_here) : hit;
}

// Finds for a sequence in HBM and below it. If little could be loaded, nothing is.
CacheHit KvCache::found_above(std::span<const BlockHash> hashes, std::int32_t tokens,
                              auto&& is_here, auto&& on_its_way) const {
  const std::int64_t most = most_found(hashes, tokens);
  CacheHit hit{reach(hashes, most, is_here)};
  hit.awaits = hit.blocks < most && on_its_way(hashes[static_cast<std::size_t>(hit.blocks)]);
  if (!hit.awaits) hit.loads = loadable(hashes, hit.blocks, tokens);
  if (hit.loads > 0)
    hit.of_lower =
        traffic_.of_lower(hashes.subspan(std::size_t(hit.blocks), std::size_t(hit.loads)));
  if (drops_last_hit_ && hit.loads == 0 && hit.blocks > 0) --hit.blocks;
  return hit;
}

// Returns the longest hit of at most so many blocks. A missed block cuts it off: shorter hits that
// go beyond the block need it, too, as windows only move on. Without a window, what is left of a
// chain is its beginning, so that halving the range finds its end. Above a tier, copies that are
// under way may hold a later part of a chain alone.
std::int64_t KvCache::reach(std::span<const BlockHash> hashes, std::int64_t blocks,
                            auto&& is_here) const {
  for (bool cut = true; cut;) {
    cut = false;
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      const KvGroup& group = layout_.groups[g];
      const auto has = [&](BlockHash hash) { return is_here(name_in(g, hash)); };
      const auto first = static_cast<std::size_t>(
          group.first_block(blocks * layout_.block_tokens, layout_.block_tokens));
      const auto needed = hashes.first(static_cast<std::size_t>(blocks)).subspan(first);
      const auto missed = group.window == 0 && !traffic_.has_tiers()
                              ? std::ranges::partition_point(needed, has)
                              : std::ranges::find_if_not(needed, has);
      if (missed == needed.end()) continue;
      blocks = static_cast<std::int64_t>(first) + (missed - needed.begin());
      cut = layout_.groups.size() > 1 || group.window > 0;
    }
  }
  return blocks;
}

// The first copy of a block, 0 if none is cached. `before`: the block before it in its chain, or 0;
// what followed that one last is looked at first.
inline std::int32_t KvCache::first_copy(BlockHash name, std::int32_t before) const {
  const std::int32_t guess = at(before).follower;
  if (guess != 0 && at(guess).first_copy && at(guess).hash == name) return guess;
  const auto found = block_of_.find(name);
  return found == block_of_.end() ? 0 : found->second;
}

// Calls a function with every block that a sequence with so many leading blocks takes, before it
// computes its token at `computed`. Passes the block's group and first copy, 0 if none is cached.
void KvCache::for_needed(std::span<const BlockHash> hashes, std::int64_t blocks,
                         std::int64_t computed, auto&& action) const {
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    std::int64_t b = layout_.groups[g].first_block(computed, layout_.block_tokens);
    for (std::int32_t block = 0; b < blocks; ++b) {
      block = first_copy(name_in(g, hashes[static_cast<std::size_t>(b)]), block);
      action(g, block);
    }
  }
}

// Does something with every block that a sequence holds and its windows leave behind, the far end
// first, and counts them.
std::int64_t KvCache::count_left_behind(const Sequence& sequence, auto&& action) const {
  if (!layout_.has_windows()) return 0;
  const Holding& holding = holdings_.at(sequence.request);
  std::int64_t count = 0;
  for (std::size_t g = 0; g < holding.groups.size(); ++g) {
    const Held& held = holding.groups[g];
    const std::int64_t keeps =
        layout_.groups[g].first_block(sequence.computed, layout_.block_tokens);
    for (std::int64_t b = std::min(keeps, held.end()) - 1; b >= held.first; --b, ++count)
      action(held.blocks[static_cast<std::size_t>(b - held.first)]);
  }
  return count;
}

}  // namespace moesim
