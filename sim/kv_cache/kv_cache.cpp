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
      traffic_(below) {
  check(below.tier == nullptr || (caching_ && layout.groups.size() == 1 && !layout.has_windows()),
        "a tier below a cache without prefixes, or with windows");
  if (!caching_) return;
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
    hit.of_lower =
        traffic_.of_lower(hashes.subspan(std::size_t(hit.blocks), std::size_t(hit.loads)));
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
  if (agent) traffic_.own(*agent, holding.hashes);
}

void KvCache::pass(Time now) {
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
  TierTraffic::Load load;
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
  traffic_.note(std::move(load), true);
  load_noted(now);
  copy_taken(now);
}

CacheHit KvCache::find(const Sequence& sequence) const {
  if (!caching_) return {};
  return find(holdings_.at(sequence.request).hashes, sequence.tokens);
}

std::int64_t KvCache::loadable(std::span<const BlockHash> hashes, std::int64_t hit,
                               std::int32_t tokens) const {
  if (!traffic_.has_tiers()) return 0;
  const auto behind = hashes.first(static_cast<std::size_t>(most_found(hashes, tokens)))
                          .subspan(static_cast<std::size_t>(hit));
  std::int64_t loads = traffic_.loadable(behind);
  if (drops_last_hit_ && loads > 0) --loads;
  return loads < below().least_blocks ? 0 : loads;
}

// Finds, in HBM and below, for a sequence that has neither computed nor holds anything.
CacheHit KvCache::find_all(std::span<const BlockHash> hashes, std::int32_t tokens) const {
  auto is_here = [&, before = std::int32_t{0}](BlockHash name) mutable {
    return (before = first_copy(name, before)) != 0;
  };
  return found_above(hashes, tokens, is_here,
                     [&](BlockHash name) { return traffic_.on_its_way(name); });
}

// A request is served with these leading blocks of its own, above tiers.
void KvCache::note_hit(const Holding& holding, const CacheHit& hit) {
  std::size_t b = 0;
  for_needed(holding.hashes, hit.blocks, 0, [&](std::size_t, std::int32_t number) {
    Block& block = at(number);
    if (b++ < holding.of_prompt) block.stays = false;
    if (!block.stays) traffic_.offer(number, block.hash);
  });
  traffic_.use(holding.agent, std::span(holding.hashes).first(static_cast<std::size_t>(hit.all())));
}

void KvCache::take_cached(Sequence& sequence) {
  if (!caching_) return;
  if (sequence.blocks > 0) return;  // what it has, it loaded before
  Holding& holding = holdings_.at(sequence.request);
  const bool looks_below = traffic_.has_tiers() && sequence.computed == 0;
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
  const bool parked = below().read == TierRead::parked;
  traffic_.note({sequence.request, end, {loaded.begin(), loaded.end()}}, parked);
  if (!parked) fill(holding, sequence.request, end);  // its step computes when they are there
  return hit;
}

Time KvCache::copy_taken(Time now) {
  return traffic_.copy_taken(now, [this](BlockHash hash) { return block_of_.contains(hash); });
}

void KvCache::store(Time now) {
  const auto still = [this](std::int32_t block, BlockHash hash) {
    return at(block).cached && at(block).hash == hash;
  };
  traffic_.store(now, still, [this](std::int32_t block) { hold(block); });
}

std::optional<std::uint32_t> KvCache::land(std::size_t tier, const KvTier::Landed& landed,
                                           Time now) {
  const auto [copied, load] = traffic_.land(tier, landed, now);
  let_go_all(copied);
  if (!load) return std::nullopt;
  if (load->request != prefetched) {
    fill(holdings_.at(load->request), load->request, load->end);
  } else {
    for (std::size_t b = 0; b < load->free.size(); ++b)
      add_copy(load->blocks[b], load->free[b], false);
    let_go_all(load->free);
  }
  return load->request;
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
      add_copy(name_in(g, holding.hashes[b]), block, !below().output && b >= holding.of_prompt);
      if (place > 0) at(held.blocks[place - 1]).follower = block;
    }
  }
}

void KvCache::add_copy(BlockHash hash, std::int32_t block, bool stays) {
  at(block).cached = true;
  at(block).hash = hash;
  at(block).next_copy = 0;
  if (traffic_.has_tiers()) {
    at(block).stays = stays;
    if (!stays) traffic_.offer(block, hash);
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
    if (traffic_.has_tiers() && !at(oldest).stays) traffic_.take(at(oldest).hash);
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
