// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/tiers.hpp"

#include <algorithm>

#include "sim/report/write_up.hpp"

namespace moesim {

using enum Better;

Fields<TierLinkStats> rows_of(const TierLinkStats*) {
  using S = TierLinkStats;
  return {
      {"transfers", &S::transfers, "transfers that began"},
      {"bytes", &S::bytes, "what the transfers carried, on all GPUs", "B"},
      {"busy_share", &S::busy_share, "of a rank's link, of the run's time", "share of time", less}};
}

Fields<TierStats> rows_of(const TierStats*) {
  using S = TierStats;
  return {
      {"per", &S::per, "who shares one"},
      {"tiers", &S::tiers, "how many there are"},
      {"capacity_blocks", &S::capacity_blocks, "blocks that the first one holds"},
      {"capacity_bytes", &S::capacity_bytes, "the same in bytes", "B"},
      {"read", &S::read, "from the tier to HBM"},
      {"write", &S::write, "from HBM, or the tier above, to the tier"},
      {if_any, "passed_bytes", &S::passed_bytes,
       "read from lower tiers through this one, where there are any", "B"},
      {if_any, "kept_bytes", &S::kept_bytes, "of these, what stayed", "B"},
      {"evicted_bytes", &S::evicted_bytes, "what made room for other blocks", "B", less},
      {"dead_bytes", &S::dead_bytes, "evicted without having been read", "B", less},
      {"refused_bytes", &S::refused_bytes, "not stored, because all else was pinned", "B", less},
      {"mean_fill", &S::mean_fill, "of the capacity, over the run's time", "share"},
      {"peak_fill", &S::peak_fill, "of the capacity, at most", "share"},
      {"given_up_loads", &S::given_up_loads, "loads whose blocks were taken before the request ran",
       "", less},
      {"mean_wait_ms", &S::mean_wait_ms, "mean time of a load", "ms", less},
      {"p99_wait_ms", &S::p99_wait_ms, "99th percentile of the same", "ms", less},
      {if_any, "held_up_seconds", &S::held_up_seconds,
       "more time of transfers as other loads use the host link, all ranks", "s", less}};
}

namespace {

// Over all tiers alike of a pool, from the run's begin to its last transfer.
TierStats tier_stats(const PoolRun& pool, std::size_t depth) {
  const Deployment& e = pool.deployment;
  const double block = e.kv_layout.block.value() * e.parallel.rank_gpus();
  TierStats stats{.per = std::string(tier_scope_names[std::size_t(e.kv_cache.tiers[depth].per)]),
                  .read = {},
                  .write = {},
                  .passed_bytes = {},
                  .kept_bytes = {},
                  .held_up_seconds = {}};
  if (depth == 0 && e.host_link) stats.held_up_seconds = 0;
  if (depth == 0 && e.kv_cache.tiers.size() > 1) stats.passed_bytes = stats.kept_bytes = 0;
  std::vector<double> waits;
  double ranks = 0, held = 0, room = 0;
  for (const TierRun& tier : pool.tiers) {
    if (tier.depth != depth) continue;
    const KvTierTally& tally = tier.tally;
    if (stats.tiers++ == 0) {
      stats.capacity_blocks = tier.capacity;
      stats.capacity_bytes = double(tier.capacity) * block;
    }
    stats.read.transfers += tally.loads;
    stats.write.transfers += tally.stores;
    stats.read.bytes += block * double(tally.read + tally.passed);
    if (stats.passed_bytes) *stats.passed_bytes += block * double(tally.passed);
    if (stats.kept_bytes) *stats.kept_bytes += block * double(tally.kept);
    stats.write.bytes += block * double(tally.written);
    stats.read.busy_share += tally.read_busy.count();
    stats.write.busy_share += tally.write_busy.count();
    stats.evicted_bytes += block * double(tally.evicted);
    stats.dead_bytes += block * double(tally.dead);
    stats.refused_bytes += block * double(tally.refused);
    stats.given_up_loads += tally.given_up;
    if (stats.held_up_seconds) *stats.held_up_seconds += tally.held_up.count();
    stats.peak_fill = std::max(stats.peak_fill, ratio(double(tally.peak), double(tier.capacity)));
    ranks += double(tier.ranks);
    held += tally.block_seconds;
    room += double(tier.capacity);
    waits.insert(waits.end(), tally.waits.begin(), tally.waits.end());
  }
  const double seconds = to_seconds(pool.tiers.front().tally.until).count();
  stats.read.busy_share = ratio(stats.read.busy_share, ranks * seconds);
  stats.write.busy_share = ratio(stats.write.busy_share, ranks * seconds);
  stats.mean_fill = ratio(held, room * seconds);
  const Summary wait = summarize(std::move(waits));
  stats.mean_wait_ms = wait.mean * 1e3;
  stats.p99_wait_ms = wait.p99 * 1e3;
  return stats;
}

}  // namespace

Named<TierStats> tiers_of(const PoolRun& pool) {
  Named<TierStats> all;
  const std::vector<KvTierPlan>& tiers = pool.deployment.kv_cache.tiers;
  for (std::size_t depth = 0; depth < tiers.size(); ++depth)
    all.emplace_back(tiers[depth].name, tier_stats(pool, depth));
  return all;
}

}  // namespace moesim
