// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/pool_tiers.hpp"

#include <algorithm>

namespace moesim {

PoolTiers::PoolTiers(const Deployment& e) : deployment_(e) {
  if (e.kv_cache.tiers.empty()) return;
  const KvTierPlan& plan = e.kv_cache.tiers.front();
  ranks_of_site_ = ranks_of_tier(e, plan);
  const int all = e.instances * e.parallel.dp;
  for (int first = 0; first < all; first += ranks_of_site_) {
    const int ranks = std::min(ranks_of_site_, all - first);
    Site& site = sites_.emplace_back(Site{
        std::make_unique<KvTier>(plan, tier_blocks(e, plan, ranks), e.kv_layout.block, ranks)});
    for (int rank = first; rank < first + ranks; ++rank)
      site.ranks.push_back({rank / e.parallel.dp, static_cast<std::size_t>(rank % e.parallel.dp)});
  }
}

std::vector<TierPort> PoolTiers::ports(int instance) const {
  std::vector<TierPort> ports;
  if (sites_.empty()) return ports;
  const KvCacheSpec& cache = deployment_.kv_cache;
  const std::int64_t block = deployment_.kv_layout.block_tokens;
  const std::int64_t least = (cache.min_load_tokens + block - 1) / block;
  for (int r = 0; r < deployment_.parallel.dp; ++r) {
    const int rank = instance * deployment_.parallel.dp + r;
    const Site& site = sites_[static_cast<std::size_t>(rank / ranks_of_site_)];
    ports.push_back(
        {site.tier.get(), rank % ranks_of_site_, cache.read, std::max<std::int64_t>(1, least)});
  }
  return ports;
}

}  // namespace moesim
