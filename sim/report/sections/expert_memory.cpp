// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/expert_memory.hpp"

#include "sim/report/statistics.hpp"

namespace moesim {

using enum Better;

Fields<ExpertTransferStats> rows_of(const ExpertTransferStats*) {
  using S = ExpertTransferStats;
  return {
      {"hits", &S::hits, "experts that ran and stood in HBM when their layer began", "", more},
      {"misses", &S::misses, "experts that ran and did not", "", less},
      {"hit_rate", &S::hit_rate, "hits / (hits + misses)", "share of runs", more},
      {"streamed", &S::streamed, "misses that were fetched without staying", "", less},
      {"prefetch",
       Fields<S>{
           {"issued", &S::prefetches, "transfers that began ahead of a layer"},
           {"used", &S::prefetches_used, "prefetched experts that the next layer used", "", more},
           {"late", &S::late, "misses that waited for the rest of their prefetch", "", less},
           {"wasted", &S::prefetches_wasted, "prefetched experts that the next layer did not use",
            "", less}}},
      {"host_bytes", &S::host, "fetched from DRAM", "B", less},
      {"nvme_bytes", &S::nvme, "fetched from NVMe", "B", less},
      {"stall_seconds", &S::stall, "extra time of MoE layers compared with all experts in HBM", "s",
       less},
      {if_any, "held_up_seconds", &S::held_up,
       "more time of transfers as KV blocks use the host link, all GPUs", "s", less},
      {"host_source", &S::host_source, "where the host link's figures come from"}};
}

Fields<ExpertMemoryStats> rows_of(const ExpertMemoryStats*) {
  using S = ExpertMemoryStats;
  return {{"type", &S::type, "policy; resident: every expert is in HBM"}, {merged, &S::transfers}};
}

ExpertMemoryStats expert_memory_of(const Deployment& e, const ExpertMemoryTally& tally) {
  if (!e.expert_memory) return {"resident", {}};
  ExpertTransferStats transfers{tally,
                                ratio(double(tally.hits), double(tally.hits + tally.misses)),
                                e.expert_memory->host.source,
                                {}};
  if (e.host_link) transfers.held_up = tally.for_blocks;
  return {e.expert_memory->type, std::move(transfers)};
}

}  // namespace moesim
