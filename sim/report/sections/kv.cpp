// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/kv.hpp"

#include <algorithm>

#include "sim/report/statistics.hpp"

namespace moesim {

using enum Better;

Fields<MemoryBudget> rows_of(const MemoryBudget*) {
  using S = MemoryBudget;
  return {{"capacity_bytes", &S::capacity, "HBM of a GPU", "B"},
          {"usable_bytes", &S::usable, "capacity x gpu_memory_utilization", "B"},
          {"weights_bytes", &S::weights, "everything but routed experts", "B"},
          {"experts_bytes", &S::experts, "routed experts, one copy of each", "B"},
          {"replicas_bytes", &S::replicas, "redundant slots", "B"},
          {"buffers_bytes", &S::buffers, "exchange buffers, activations, logits, rebalance buffer",
           "B"},
          {"rebalance_buffer_bytes", &S::rebalance_buffer, "buffers for rebalancing", "B"},
          {"kv_bytes", &S::kv, "left for the KV cache", "B", more}};
}

Fields<KvStats> rows_of(const KvStats*) {
  using S = KvStats;
  return {{"block_tokens", &S::block_tokens, "tokens of a block", "tokens"},
          {"blocks_per_rank", &S::blocks_per_rank, "blocks of a DP rank"},
          {"mean_utilization", &S::mean_utilization, "blocks held, over steps' time", "share"},
          {"peak_utilization", &S::peak_utilization, "most blocks held at a time", "share", less},
          {"preemptions", &S::preemptions, "requests that lost their blocks to others", "", less},
          {"prefix_caching", &S::prefix_caching, "whether blocks are shared between prompts"},
          {"prefix_queried_tokens", &S::prefix_queried_tokens, "prompt tokens looked up", "tokens"},
          {"prefix_hit_tokens", &S::prefix_hit_tokens, "queried tokens that were cached", "tokens",
           more},
          {"prefix_hit_rate", &S::prefix_hit_rate, "hits / queried", "share of tokens", more},
          {if_any, "prefix_hit_tokens_by_tier/TIER", &S::prefix_hit_tokens_by_tier,
           "hits by where they stood, where there is a tier", "tokens"},
          {if_any, "prefix_loaded_rate", &S::prefix_loaded_rate, "hits loaded from tiers / queried",
           "share of tokens"},
          {if_any, "recomputed_tokens", &S::recomputed_tokens,
           "tokens computed again after preemptions", "tokens", less}};
}

void KvSum::add(const StepRecord& record) {
  const StepSummary& step = record.step;
  block_seconds += double(step.kv_blocks_used) * record.cost.total.count();
  blocks_peak = std::max(blocks_peak, step.kv_blocks_used);
  preemptions += step.preemptions;
  recomputed += step.recomputed;
  prefix_queried += step.prefix_queried;
  prefix_hit += step.prefix_hit;
  prefix_loaded += step.prefix_loaded;
  for (std::size_t t = 0; t < step.prefix_of_lower.size(); ++t)
    prefix_of_lower[t] += step.prefix_of_lower[t];
}

KvStats kv_of(const Deployment& e, const KvSum& totals, std::int64_t total_blocks, double busy) {
  const double used = ratio(totals.block_seconds, busy);
  KvStats stats{.block_tokens = e.kv_layout.block_tokens,
                .blocks_per_rank = e.memory.kv_blocks,
                .mean_utilization = ratio(used, double(total_blocks)),
                .peak_utilization = ratio(double(totals.blocks_peak), double(total_blocks)),
                .preemptions = totals.preemptions,
                .prefix_caching = e.prefix_caching,
                .prefix_queried_tokens = totals.prefix_queried,
                .prefix_hit_tokens = totals.prefix_hit,
                .prefix_hit_rate = ratio(double(totals.prefix_hit), double(totals.prefix_queried)),
                .prefix_hit_tokens_by_tier = {},
                .prefix_loaded_rate = {},
                .recomputed_tokens = {}};
  if (totals.preemptions > 0) stats.recomputed_tokens = totals.recomputed;
  if (e.kv_cache.tiers.empty()) return stats;
  std::int64_t of_first = totals.prefix_loaded;
  for (const std::int64_t tokens : totals.prefix_of_lower) of_first -= tokens;
  stats.prefix_hit_tokens_by_tier = {{"hbm", totals.prefix_hit - totals.prefix_loaded},
                                     {e.kv_cache.tiers.front().name, of_first}};
  for (std::size_t depth = 1; depth < e.kv_cache.tiers.size(); ++depth)
    stats.prefix_hit_tokens_by_tier.emplace_back(e.kv_cache.tiers[depth].name,
                                                 totals.prefix_of_lower[depth - 1]);
  stats.prefix_loaded_rate = ratio(double(totals.prefix_loaded), double(totals.prefix_queried));
  return stats;
}

}  // namespace moesim
