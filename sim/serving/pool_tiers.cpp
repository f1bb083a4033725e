// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/pool_tiers.hpp"

#include <algorithm>
#include <limits>

#include "sim/serving/step_time_estimate.hpp"

namespace moesim {

PoolTiers::PoolTiers(const Deployment& e, int first_group, const Deployment* writers)
    : deployment_(e), writers_(writers), levels_(e.kv_cache.tiers.size()) {
  const int all = e.instances * e.parallel.dp;
  for (std::size_t depth = levels_.size(); depth-- > 0;) {
    const KvTierPlan& plan = e.kv_cache.tiers[depth];
    levels_[depth] = {sites_.size(), ranks_of_tier(e, plan)};
    for (int first = 0; first < all; first += levels_[depth].ranks) {
      const int ranks = std::min(levels_[depth].ranks, all - first);
      const BlockShard shard{e.kv_layout.block, pieces_of_block(plan, e.kv_layout.pieces)};
      TierBelow below;
      if (depth + 1 < levels_.size()) {
        const Level& lower = levels_[depth + 1];
        below = {site_of(lower, first).tier.get(), first % lower.ranks};
      }
      const bool last = depth + 1 == levels_.size();
      const int writing = last && writers != nullptr ? writers->ranks() : 0;
      Site site{depth, std::make_unique<KvTier>(plan, tier_blocks(e, plan, ranks), shard,
                                                ranks + writing, below)};
      const auto add_rank = [&](const Deployment& of, int group, int rank, std::size_t under) {
        site.ranks.push_back({group + rank / of.parallel.dp, at(rank % of.parallel.dp), under});
      };
      for (int rank = first; rank < first + ranks; ++rank) add_rank(e, first_group, rank, depth);
      for (int rank = 0; rank < writing; ++rank)
        add_rank(*writers, first_group + e.instances, rank, 0);
      sites_.push_back(std::move(site));
    }
  }
  if (!sites_.empty()) least_blocks_ = least_blocks();
}

// Hits of fewer blocks are computed: as the config says, and where a load would take longer, by the
// full rate of one GPU's link.
std::int64_t PoolTiers::least_blocks() const {
  const KvCacheSpec& cache = deployment_.kv_cache;
  const KvLayout& layout = deployment_.kv_layout;
  const std::int64_t least = std::max<std::int64_t>(
      1, (cache.min_load_tokens + layout.block_tokens - 1) / layout.block_tokens);
  if (cache.fetch == TierFetch::all) return least;
  const KvTierPlan& tier = cache.tiers.front();
  const Seconds compute = prompt_token_time(deployment_) * layout.block_tokens;
  const Seconds load = load_time(tier, layout.block, pieces_of_block(tier, layout.pieces));
  return std::max(least, break_even_blocks(tier.latency, load, compute)
                             .value_or(std::numeric_limits<std::int64_t>::max()));
}

// They never load: what they decode has come from the prefill pool.
std::vector<TierPort> PoolTiers::writers_ports(int instance) const {
  std::vector<TierPort> ports;
  const Site& site = sites_.at(levels_.back().first_site);
  const int own = static_cast<int>(site.ranks.size()) - writers_->ranks();
  for (int r = 0; r < writers_->parallel.dp; ++r) {
    ports.push_back({site.tier.get(), own + instance * writers_->parallel.dp + r, TierRead::parked,
                     std::numeric_limits<std::int64_t>::max(), true});
  }
  return ports;
}

std::vector<TierPort> PoolTiers::ports(int instance) const {
  std::vector<TierPort> ports;
  if (sites_.empty()) return ports;
  for (int r = 0; r < deployment_.parallel.dp; ++r) {
    const int rank = instance * deployment_.parallel.dp + r;
    ports.push_back({site_of(levels_.front(), rank).tier.get(), rank % levels_.front().ranks,
                     deployment_.kv_cache.read, least_blocks_,
                     deployment_.kv_cache.offload_output});
  }
  return ports;
}

}  // namespace moesim
