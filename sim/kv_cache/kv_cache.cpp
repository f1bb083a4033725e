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

// A group's names, which are no prompt's: the ids of recorded prompts are small numbers, too.
std::uint64_t of_group(std::size_t group) { return (std::uint64_t{1} << 62) | group; }

}  // namespace

std::vector<BlockHash> prompt_hashes(const PromptIds* ids, std::uint32_t request,
                                     std::int64_t tokens, int block_tokens) {
  std::vector<BlockHash> hashes(static_cast<std::size_t>(tokens / block_tokens));
  BlockHash parent = 0;
  std::size_t span = 0;
  for (std::size_t b = 0; b < hashes.size(); ++b) {
    // The id of a block's last token names every token before it as well.
    const auto end = static_cast<std::int64_t>(b + 1) * block_tokens;
    while (ids && ids->spans[span].end < end) ++span;
    parent = hashes[b] = chain(parent, ids ? ids->spans[span].id : own(request));
  }
  return hashes;
}

std::vector<BlockHash> known_hashes(const PromptIds* ids, std::uint32_t request,
                                    std::int32_t prompt_tokens, int block_tokens) {
  const std::int64_t named = ids ? ids->tokens() : 0;
  return prompt_hashes(ids, request, std::max<std::int64_t>(prompt_tokens, named), block_tokens);
}

KvCache::KvCache(const KvLayout& layout, std::int64_t blocks, bool prefix_caching,
                 bool drops_last_hit, TierPort below, bool remembers_agents)
    : layout_(layout),
      blocks_(blocks),
      free_(blocks),
      caching_(prefix_caching),
      drops_last_hit_(drops_last_hit),
      remembers_agents_(remembers_agents),
      below_(below) {
  check(below.tier == nullptr || (caching_ && layout.groups.size() == 1 && !layout.has_windows()),
        "a tier below a cache without prefixes, or with windows");
  if (!caching_) return;
  for (Tier next{below.tier, below.port}; next.tier != nullptr;) {
    tiers_.push_back(next);
    const TierBelow& lower = next.tier->below();
    next = {lower.tier, lower.first_port + next.port};
  }
  check(layout.state_blocks == 0, "prefix caching over states");
  pool_.resize(1);
}

BlockHash KvCache::name_in(std::size_t group, BlockHash hash) {
  return group == 0 ? hash : chain(hash, of_group(group));
}

void KvCache::set_aside(std::int64_t blocks) {
  const std::int64_t more = blocks - std::exchange(set_aside_, blocks);
  check(more <= free_, "KV blocks are set aside that requests hold");
  if (!caching_) {
    free_ -= more;
    return;
  }
  while (std::ssize(aside_) < blocks) aside_.push_back(take_oldest());
  for (; std::ssize(aside_) > blocks; aside_.pop_back()) {
    at(aside_.back()).holders = 0;
    insert_free(aside_.back(), ring_end);
  }
}

CacheHit KvCache::find(std::span<const BlockHash> hashes, std::int32_t tokens) const {
  CacheHit hit{found(hashes, tokens, [&](BlockHash name) { return block_of_.contains(name); })};
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const KvGroup& group = layout_.groups[g];
    const auto held = [&](BlockHash hash) {
      return at(block_of_.find(name_in(g, hash))->second).holders > 0;
    };
    const auto first = group.first_block(hit.blocks * layout_.block_tokens, layout_.block_tokens);
    const auto needed =
        hashes.first(static_cast<std::size_t>(hit.blocks)).subspan(static_cast<std::size_t>(first));
    hit.in_use += group.window == 0 ? std::ranges::partition_point(needed, held) - needed.begin()
                                    : std::ranges::count_if(needed, held);
  }
  hit.loads = loadable(hashes, hit.blocks, tokens);
  if (hit.loads > 0)
    hit.of_lower = of_lower(hashes.subspan(std::size_t(hit.blocks), std::size_t(hit.loads)));
  return hit;
}

void KvCache::expect(std::uint32_t request, std::int32_t prompt_tokens,
                     std::vector<BlockHash> known, std::optional<AgentName> agent) {
  if (!caching_) return;
  Holding& holding = holdings_[request];
  holding.hashes = std::move(known);
  holding.of_prompt = static_cast<std::size_t>(prompt_tokens / layout_.block_tokens);
  holding.groups.resize(layout_.groups.size());
  holding.known = holding.hashes.size();
  holding.agent = agent;
  if (!agent) return;
  for (const Tier& tier : tiers_) tier.tier->own(*agent, holding.hashes);
}

void KvCache::pass(Time now) {
  for (const Tier& tier : tiers_) tier.tier->pass(now);
  std::erase_if(retained_for_, [&](AgentName name) {
    Agent& agent = agents_.at(name);
    if (agent.until >= now) return false;
    release(agent);
    return true;
  });
}

void KvCache::forget_agent(AgentName name) {
  release(name);
  agents_.erase(name);
}

void KvCache::retain(AgentName name, Time until) {
  Agent& agent = agents_.at(name);
  const auto all = static_cast<std::int32_t>(std::ssize(agent.known));
  const std::int32_t tokens = all * layout_.block_tokens + 1;
  const std::int64_t blocks =
      found(agent.known, tokens, [&](BlockHash block) { return block_of_.contains(block); });
  release(agent);
  for_needed(agent.known, blocks, blocks * layout_.block_tokens,
             [&](std::size_t, std::int32_t block) {
               agent.retained.push_back(block);
               hold(block);
             });
  agent.until = until;
  retained_for_.insert(name);
}

void KvCache::release(Agent& agent) {
  let_go_all(agent.retained);
  agent.retained.clear();
}

void KvCache::release(const std::optional<AgentName>& name) {
  if (name && retained_for_.erase(*name) > 0) release(agents_.at(*name));
}

bool KvCache::release_one() {
  if (retained_for_.empty()) return false;
  release(*std::ranges::max_element(retained_for_, {},
                                    [&](AgentName name) { return agents_.at(name).until; }));
  return true;
}

void KvCache::prefetch(AgentName name, Time now) {
  const std::vector<BlockHash>& known = agents_.at(name).known;
  const auto all = static_cast<std::int32_t>(std::ssize(known));
  const CacheHit hit = find_all(known, all * layout_.block_tokens + 1);
  if (hit.loads == 0) return;
  Load load{prefetched, 0, {}, {}, {}, {}};
  const auto begin = known.begin() + hit.blocks;
  load.blocks.assign(begin, begin + hit.loads);
  // Blocks that the hit needs in HBM must not make room for the rest of it.
  std::vector<std::int32_t> before;
  for (const BlockHash block : std::span(known).first(static_cast<std::size_t>(hit.blocks))) {
    before.push_back(block_of_.at(block));
    hold(before.back());
  }
  const bool fits = hit.loads <= free_;
  for (std::int64_t b = 0; fits && b < hit.loads; ++b) load.free.push_back(take_oldest());
  let_go_all(before);
  if (!fits) return;
  on_their_way_.insert(load.blocks.begin(), load.blocks.end());
  noted_loads_.push_back(std::move(load));
  load_noted(now);
  copy_taken(now);
}

CacheHit KvCache::find(const Sequence& sequence) const {
  if (!caching_) return {};
  return find(holdings_.at(sequence.request).hashes, sequence.tokens);
}

std::int64_t KvCache::loadable(std::span<const BlockHash> hashes, std::int64_t hit,
                               std::int32_t tokens) const {
  if (below_.tier == nullptr) return 0;
  const std::int64_t most = most_found(hashes, tokens);
  std::int64_t end = hit;
  while (end < most && nearest(hashes[static_cast<std::size_t>(end)]) < tiers_.size()) ++end;
  const std::int64_t loads = end - hit - (drops_last_hit_ && end > hit ? 1 : 0);
  return loads < below_.least_blocks ? 0 : loads;
}

// The nearest tier that can load a block; the number of tiers if none can.
std::size_t KvCache::nearest(BlockHash hash) const {
  std::size_t tier = 0;
  while (tier < tiers_.size() && !tiers_[tier].tier->has(hash)) ++tier;
  return tier;
}

OfLowerTiers<std::int64_t> KvCache::of_lower(std::span<const BlockHash> loaded) const {
  OfLowerTiers<std::int64_t> blocks{};
  if (tiers_.size() < 2) return blocks;
  for (const BlockHash hash : loaded) {
    if (const std::size_t tier = nearest(hash); tier > 0) ++blocks[tier - 1];
  }
  return blocks;
}

// Finds, in HBM and below, for a sequence that has neither computed nor holds anything.
CacheHit KvCache::find_all(std::span<const BlockHash> hashes, std::int32_t tokens) const {
  auto is_here = [&, before = std::int32_t{0}](BlockHash name) mutable {
    return (before = first_copy(name, before)) != 0;
  };
  return found_above(hashes, tokens, is_here,
                     [&](BlockHash name) { return on_their_way_.contains(name); });
}

// A request is served with these leading blocks of its own, above tiers.
void KvCache::note_hit(const Holding& holding, const CacheHit& hit) {
  std::size_t b = 0;
  for_needed(holding.hashes, hit.blocks, 0, [&](std::size_t, std::int32_t number) {
    Block& block = at(number);
    if (b++ < holding.of_prompt) block.stays = false;
    ++block.hits;
    if (!block.stays && below_.tier->write().when_hit(block.hits) &&
        !below_.tier->holds(block.hash))
      offers_.emplace_back(number, block.hash);
  });
  if (holding.agent) {
    for (const Tier& tier : tiers_)
      tier.tier->announce({*holding.agent, {NextRequest::State::runs, {}, 0}});
  }
  below_.tier->use(below_.port,
                   std::span(holding.hashes).first(static_cast<std::size_t>(hit.all())));
}

void KvCache::take_cached(Sequence& sequence) {
  if (!caching_) return;
  if (sequence.blocks > 0) return;  // what it has, it loaded before
  Holding& holding = holdings_.at(sequence.request);
  const bool looks_below = below_.tier != nullptr && sequence.computed == 0;
  const CacheHit hit = looks_below ? find_all(holding.hashes, sequence.tokens)
                                   : find(holding.hashes, sequence.tokens);
  if (looks_below) {
    check(hit.loads == 0, "a sequence is admitted that has blocks to load");
    note_hit(holding, hit);
  }
  const auto cached = static_cast<std::int32_t>(hit.blocks) * layout_.block_tokens;
  sequence.computed = std::max(sequence.computed, cached);
  for (std::size_t g = 0; g < layout_.groups.size(); ++g)
    holding.groups[g].first =
        layout_.groups[g].first_block(sequence.computed, layout_.block_tokens);
  sequence.blocks = 0;
  for_needed(holding.hashes, hit.blocks, sequence.computed, [&](std::size_t g, std::int32_t block) {
    std::vector<std::int32_t>& blocks = holding.groups[g].blocks;
    if (!blocks.empty()) at(blocks.back()).follower = block;
    hold(block);
    blocks.push_back(block);
    ++sequence.blocks;
  });
  holding.filled = static_cast<std::size_t>(hit.blocks);
  release(holding.agent);
}

CacheHit KvCache::begin_load(Sequence& sequence) {
  Holding& holding = holdings_.at(sequence.request);
  check(sequence.blocks == 0, "a sequence loads that holds blocks");
  const CacheHit hit = find_all(holding.hashes, sequence.tokens);
  if (hit.loads == 0) return hit;
  const auto in_hbm = static_cast<std::size_t>(hit.blocks),
             end = static_cast<std::size_t>(hit.all());
  const std::span<const BlockHash> prompt = std::span(holding.hashes).first(end);
  note_hit(holding, hit);
  Held& held = holding.groups.front();
  for_needed(holding.hashes, hit.blocks, 0, [&](std::size_t, std::int32_t block) {
    held.blocks.push_back(block);
    hold(block);
  });
  release(holding.agent);
  for (std::int64_t b = 0; b < hit.loads; ++b) held.blocks.push_back(take_oldest());
  holding.filled = in_hbm;
  sequence.blocks = hit.all();
  sequence.computed = static_cast<std::int32_t>(hit.all()) * layout_.block_tokens;
  const auto loaded = prompt.subspan(in_hbm);
  noted_loads_.push_back({sequence.request, end, {loaded.begin(), loaded.end()}, {}, {}, {}});
  if (below_.read == TierRead::parked) {
    on_their_way_.insert(loaded.begin(), loaded.end());
  } else {
    fill(holding, sequence.request, end);  // its step computes when they are there
  }
  return hit;
}

Time KvCache::load_noted(Time now) {
  Time loaded = now;
  for (Load& load : noted_loads_) {
    loaded = std::max(loaded, begin(load, now));
    loading_.push_back(std::move(load));
  }
  noted_loads_.clear();
  return loaded;
}

// Each tier carries what it has, all at the same time, and the first one what is staged through it.
// Answers when the last will have landed.
Time KvCache::begin(Load& load, Time now) {
  std::vector<std::vector<BlockHash>> of_tier(tiers_.size());
  for (const BlockHash hash : load.blocks) {
    const std::size_t tier = nearest(hash);
    of_tier.at(tier).push_back(hash);
    if (tier > 0 && tiers_[tier].tier->path() == TierPath::staged) load.staged.push_back(hash);
  }
  Time landed = now;
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    const std::int64_t passing = t == 0 ? std::ssize(load.staged) : 0;
    if (of_tier[t].empty() && passing == 0) continue;
    const TransferId id = tiers_[t].tier->load(tiers_[t].port, std::move(of_tier[t]), now, passing);
    load.parts.emplace_back(t, id);
    landed = std::max(landed, tiers_[t].tier->loaded_by(id));
  }
  return landed;
}

Time KvCache::copy_taken(Time now) {
  Time copied = now;
  if (tiers_.empty()) return copied;
  std::erase_if(taken_, [&](BlockHash hash) { return block_of_.contains(hash); });
  for (const auto& stored : below_.tier->store(below_.port, taken_, now))
    copied = std::max(copied, below_.tier->stored_by(stored.transfer, now));
  taken_.clear();
  for (const Tier& tier : tiers_) tier.tier->copy_found(tier.port, now);
  return copied;
}

void KvCache::store(Time now) {
  if (offers_.empty()) return;
  // Blocks that were let go since then may have been taken for other tokens.
  std::erase_if(offers_, [&](const auto& offer) {
    return !at(offer.first).cached || at(offer.first).hash != offer.second;
  });
  std::vector<BlockHash> hashes;
  for (const auto& [block, hash] : offers_) hashes.push_back(hash);
  for (const KvTier::Stored& stored : below_.tier->store(below_.port, hashes, now)) {
    std::vector<std::int32_t>& held = storing_[stored.transfer];
    for (const std::size_t place : stored.places) {
      held.push_back(offers_[place].first);
      hold(held.back());
    }
  }
  below_.tier->stamp(hashes);
  offers_.clear();
}

std::optional<std::uint32_t> KvCache::land(std::size_t tier, const KvTier::Landed& landed,
                                           Time now) {
  if (!landed.load) {
    if (tier > 0) {
      tiers_[tier - 1].tier->copied(landed.transfer);
      return std::nullopt;
    }
    const auto stored = storing_.find(landed.transfer);
    if (stored == storing_.end()) return std::nullopt;  // of a block that was taken
    let_go_all(stored->second);
    storing_.erase(stored);
    return std::nullopt;
  }
  const std::pair part{tier, landed.transfer};
  const auto has_part = [&](const Load& load) {
    return std::ranges::find(load.parts, part) != load.parts.end();
  };
  const auto found = std::ranges::find_if(loading_, has_part);
  std::erase(found->parts, part);
  if (!found->parts.empty()) return std::nullopt;
  const Load load = std::move(*found);
  loading_.erase(found);
  if (!load.staged.empty()) below_.tier->keep(below_.port, load.staged, now);
  if (below_.read != TierRead::parked) return std::nullopt;
  for (const BlockHash hash : load.blocks) on_their_way_.erase(hash);
  if (load.request != prefetched) {
    fill(holdings_.at(load.request), load.request, load.end);
    return load.request;
  }
  for (std::size_t b = 0; b < load.free.size(); ++b) add_copy(load.blocks[b], load.free[b], false);
  let_go_all(load.free);
  return prefetched;
}

void KvCache::grow_cached(Sequence& sequence, std::int32_t tokens, std::int32_t known,
                          std::int64_t more) {
  const auto full = static_cast<std::size_t>(known / layout_.block_tokens);
  if (more != 0 || layout_.has_windows() ||
      full != static_cast<std::size_t>(sequence.computed / layout_.block_tokens)) {
    Holding& holding = holdings_.at(sequence.request);
    leave_behind(sequence);
    const std::int64_t all = (tokens + layout_.block_tokens - 1) / layout_.block_tokens;
    for (Held& held : holding.groups) {
      while (held.end() < all) held.blocks.push_back(take_oldest());
    }
    fill(holding, sequence.request, full);
  }
  sequence.blocks += more;
}

// A window's group lets go of the blocks that the next token to compute sees no more.
void KvCache::leave_behind(const Sequence& sequence) {
  if (count_left_behind(sequence, [&](std::int32_t block) { let_go(block); }) == 0) return;
  Holding& holding = holdings_.at(sequence.request);
  for (std::size_t g = 0; g < holding.groups.size(); ++g) {
    Held& held = holding.groups[g];
    const std::int64_t keeps =
        layout_.groups[g].first_block(sequence.computed, layout_.block_tokens);
    const std::int64_t gone = std::min(keeps, held.end()) - held.first;
    if (gone <= 0) continue;
    held.blocks.erase(held.blocks.begin(), held.blocks.begin() + gone);
    held.first += gone;
  }
}

void KvCache::shrink(Sequence& sequence) {
  const std::int64_t wanted = layout_.blocks_in_step(sequence.computed, sequence.computed);
  if (!caching_) {
    free_ += sequence.blocks - wanted;
  } else {
    Holding& holding = holdings_.at(sequence.request);
    const std::int64_t all = (sequence.computed + layout_.block_tokens - 1) / layout_.block_tokens;
    for (Held& held : holding.groups) {
      for (; held.end() > all; held.blocks.pop_back()) let_go(held.blocks.back());
    }
    fill(holding, sequence.request,
         static_cast<std::size_t>(sequence.computed / layout_.block_tokens));
    leave_behind(sequence);
  }
  sequence.blocks = wanted;
}

// Full blocks can be hit by the next sequence of the same step: a kernel writes keys before it
// reads any.
void KvCache::fill(Holding& holding, std::uint32_t request, std::size_t full_blocks) {
  for (; holding.filled < full_blocks; ++holding.filled) {
    const std::size_t b = holding.filled;
    // The known blocks are followed by tokens that only this request has.
    if (b == holding.hashes.size()) {
      holding.hashes.push_back(chain(b == 0 ? 0 : holding.hashes[b - 1], own(request)));
    }
    for (std::size_t g = 0; g < holding.groups.size(); ++g) {
      const Held& held = holding.groups[g];
      if (static_cast<std::int64_t>(b) < held.first)
        continue;  // the window left it behind before it was full: the prompt arrived
      const std::size_t place = b - static_cast<std::size_t>(held.first);
      const std::int32_t block = held.blocks[place];
      add_copy(name_in(g, holding.hashes[b]), block, !below_.output && b >= holding.of_prompt);
      if (place > 0) at(held.blocks[place - 1]).follower = block;
    }
  }
}

void KvCache::add_copy(BlockHash hash, std::int32_t block, bool stays) {
  at(block).cached = true;
  at(block).hash = hash;
  at(block).next_copy = 0;
  if (below_.tier != nullptr) {
    at(block).hits = 0;
    at(block).stays = stays;
    if (!stays && below_.tier->write().when_full() && !below_.tier->holds(hash))
      offers_.emplace_back(block, hash);
  }
  const auto [first, fresh] = block_of_.try_emplace(hash, block);
  at(block).first_copy = fresh;
  if (fresh) return;
  std::int32_t last = first->second;
  while (at(last).next_copy != 0) last = at(last).next_copy;
  at(last).next_copy = block;
}

void KvCache::forget(std::int32_t block) {
  const auto first = block_of_.find(at(block).hash);
  std::int32_t* link = &first.value();
  while (*link != block) link = &at(*link).next_copy;
  *link = at(block).next_copy;
  at(block).first_copy = false;
  if (first->second == 0) {
    block_of_.erase(first);
  } else {
    at(first->second).first_copy = true;
  }
}

void KvCache::preempt(Sequence& sequence) { release(sequence); }

void KvCache::finish(Sequence& sequence) {
  release(sequence);
  if (remembers_agents_) remember(holdings_.at(sequence.request));
  holdings_.erase(sequence.request);
}

// Remembers what a request that is over leaves to the next one of its agent.
void KvCache::remember(Holding& holding) {
  if (!holding.agent) return;
  release(holding.agent);
  holding.hashes.resize(std::min(holding.hashes.size(), holding.known));
  agents_[*holding.agent].known = std::move(holding.hashes);
}

void KvCache::release(Sequence& sequence) {
  if (caching_) {
    Holding& holding = holdings_.at(sequence.request);
    for (Held& held : holding.groups) {
      let_go_all(held.blocks);
      held = {};
    }
    holding.filled = 0;
  } else {
    free_ += sequence.blocks;
  }
  sequence.blocks = 0;
  sequence.computed = 0;
}

std::int32_t KvCache::take_oldest() {
  check(free_ > 0, "a scheduler took more KV blocks than were free");
  if (std::ssize(pool_) <= blocks_) {
    pool_.push_back({.holders = 1});
    --free_;
    return static_cast<std::int32_t>(pool_.size() - 1);
  }
  const std::int32_t oldest = at(ring_end).newer;
  if (at(oldest).cached) {
    at(oldest).cached = false;
    forget(oldest);
    if (below_.tier != nullptr && !at(oldest).stays &&
        below_.tier->takes_leaving(at(oldest).hash, at(oldest).hits))
      taken_.push_back(at(oldest).hash);
  }
  hold(oldest);
  return oldest;
}

void KvCache::hold(std::int32_t block) {
  if (at(block).holders++ == 0) unlink(block);
}

void KvCache::let_go(std::int32_t block) {
  if (--at(block).holders == 0) append_free(block);
}

// The far end first, which is then forgotten first. Blocks are asked for ahead: most come from far
// memory.
void KvCache::let_go_all(std::span<const std::int32_t> blocks) {
  constexpr std::size_t ahead = 8;
  for (std::size_t b = blocks.size(); b-- > 0;) {
    if (b >= ahead) __builtin_prefetch(&at(blocks[b - ahead]));
    let_go(blocks[b]);
  }
}

// The free list is a ring through its end, whose `newer` is the oldest.
void KvCache::append_free(std::int32_t block) { insert_free(block, at(ring_end).older); }

void KvCache::insert_free(std::int32_t block, std::int32_t older) {
  const std::int32_t newer = at(older).newer;
  at(block).older = older;
  at(block).newer = newer;
  at(older).newer = block;
  at(newer).older = block;
  ++free_;
}

void KvCache::unlink(std::int32_t block) {
  at(at(block).older).newer = at(block).newer;
  at(at(block).newer).older = at(block).older;
  --free_;
}

}  // namespace moesim
