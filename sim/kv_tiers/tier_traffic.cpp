// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/tier_traffic.hpp"

#include <algorithm>

namespace moesim {

TierTraffic::TierTraffic(const TierPort& below) : below_(below) {
  for (Tier next{below.tier, below.port}; next.tier != nullptr;) {
    tiers_.push_back(next);
    const TierBelow& lower = next.tier->below();
    next = {lower.tier, lower.first_port + next.port};
  }
}

// The nearest tier that can load a block; the number of tiers if none can.
std::size_t TierTraffic::nearest(BlockHash hash) const {
  std::size_t tier = 0;
  while (tier < tiers_.size() && !tiers_[tier].tier->has(hash)) ++tier;
  return tier;
}

std::int64_t TierTraffic::loadable(std::span<const BlockHash> blocks) const {
  const auto has = [this](BlockHash hash) { return nearest(hash) < tiers_.size(); };
  return std::ranges::find_if_not(blocks, has) - blocks.begin();
}

OfLowerTiers<std::int64_t> TierTraffic::of_lower(std::span<const BlockHash> loaded) const {
  OfLowerTiers<std::int64_t> blocks{};
  if (tiers_.size() < 2) return blocks;
  for (const BlockHash hash : loaded) {
    if (const std::size_t tier = nearest(hash); tier > 0) ++blocks[tier - 1];
  }
  return blocks;
}

void TierTraffic::own(AgentName agent, std::span<const BlockHash> blocks) {
  for (const Tier& tier : tiers_) tier.tier->own(agent, blocks);
}

void TierTraffic::use(const std::optional<AgentName>& agent, std::span<const BlockHash> prompt) {
  if (agent) {
    for (const Tier& tier : tiers_)
      tier.tier->announce({*agent, {NextRequest::State::runs, {}, 0}});
  }
  below_.tier->use(below_.port, prompt);
}

void TierTraffic::note(Load load, bool on_their_way) {
  if (on_their_way) on_their_way_.insert(load.blocks.begin(), load.blocks.end());
  noted_loads_.push_back(std::move(load));
}

Time TierTraffic::load_noted(Time now) {
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
Time TierTraffic::begin(Load& load, Time now) {
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

Time TierTraffic::copy_taken(Time now, const std::function<bool(BlockHash)>& in_hbm) {
  Time copied = now;
  if (tiers_.empty()) return copied;
  std::erase_if(taken_, in_hbm);
  for (const auto& stored : below_.tier->store(below_.port, taken_, now))
    copied = std::max(copied, below_.tier->stored_by(stored.transfer, now));
  taken_.clear();
  for (const Tier& tier : tiers_) tier.tier->copy_found(tier.port, now);
  return copied;
}

// Blocks that were released since they were offered may have been taken for other tokens.
void TierTraffic::store(Time now, const std::function<bool(std::int32_t, BlockHash)>& still,
                        const std::function<void(std::int32_t)>& hold) {
  if (offers_.empty()) return;
  std::erase_if(offers_, [&](const auto& offer) { return !still(offer.first, offer.second); });
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

TierTraffic::Landed TierTraffic::land(std::size_t tier, const KvTier::Landed& landed, Time now) {
  if (!landed.load) {
    if (tier > 0) {
      tiers_[tier - 1].tier->copied(landed.transfer);
      return {};
    }
    // A copy of a block that was taken for other tokens holds no block of HBM.
    auto stored = storing_.extract(landed.transfer);
    return stored.empty() ? Landed{} : Landed{std::move(stored.mapped()), {}};
  }
  const std::pair part{tier, landed.transfer};
  const auto found = std::ranges::find_if(loading_, [&](const Load& load) {
    return std::ranges::find(load.parts, part) != load.parts.end();
  });
  std::erase(found->parts, part);
  if (!found->parts.empty()) return {};
  Load load = std::move(*found);
  loading_.erase(found);
  if (!load.staged.empty()) below_.tier->keep(below_.port, load.staged, now);
  if (below_.read != TierRead::parked) return {};
  for (const BlockHash hash : load.blocks) on_their_way_.erase(hash);
  return {{}, std::move(load)};
}

}  // namespace moesim
