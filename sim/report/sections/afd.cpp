// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/afd.hpp"

#include <algorithm>
#include <numeric>

#include "sim/report/measurement.hpp"

namespace moesim {

using enum Better;

Fields<AfdStats> rows_of(const AfdStats*) {
  using S = AfdStats;
  return {
      {"attention_gpus", &S::attention_gpus, "GPUs of a group that hold KV cache"},
      {"ffn_gpus", &S::ffn_gpus, "GPUs of a group that hold experts"},
      {"micro_batches", &S::micro_batches, "parts of a step in flight between the sides"},
      {"attention_idle_share", &S::attention_idle_share,
       "GPU time that attention's GPUs wait, for each other or for experts", "share of time", less},
      {"ffn_idle_share", &S::ffn_idle_share,
       "GPU time that the experts' GPUs wait, for each other or for tokens", "share of time", less},
      {"attention_straggler_share", &S::attention_straggler_share,
       "part of that wait for the slowest attention rank", "share of time", less},
      {"ffn_straggler_share", &S::ffn_straggler_share,
       "part of that wait for the slowest expert rank: what skew costs", "share of time", less},
      {"dispatch_busy_share", &S::dispatch_busy_share, "links to the experts in use",
       "share of time"},
      {"combine_busy_share", &S::combine_busy_share, "links from the experts in use",
       "share of time"},
      {"critical_path/STAGE", &S::critical_path, "what the time of steps consists of",
       "share of time"},
      {"ffn_memory", &S::ffn_memory, "HBM of a GPU of the experts"}};
}

AfdStats afd_of(const Deployment& e, const Totals& totals) {
  const ParallelPlan& plan = e.parallel;
  const double busy = totals.busy_seconds();
  const auto& times = totals.of<AfdSum>();
  const std::vector<double>& waits = totals.of<BreakdownSum>().idle;
  const auto share = [&](AfdStage stage) { return ratio(times.busy_of(stage).count(), busy); };
  // Idle share of the mean GPU from `first` to before `end`.
  const auto idle_share = [&](int first, int end) {
    if (waits.empty()) return 0.0;
    const auto begin = waits.begin();
    const double idle = std::accumulate(begin + first, begin + end, 0.0);
    return std::clamp(ratio(idle, busy * (end - first)), 0.0, 1.0);
  };
  AfdStats stats{.attention_gpus = plan.attention_gpus(),
                 .ffn_gpus = plan.ffn_gpus,
                 .micro_batches = plan.micro_batches,
                 .attention_idle_share = idle_share(0, plan.attention_gpus()),
                 .ffn_idle_share = idle_share(plan.attention_gpus(), plan.gpus()),
                 .critical_path = {},
                 .ffn_memory = *e.ffn_memory};
  // The slowest GPU of a side waits for the other side alone.
  const auto stragglers = [&](double idle, AfdStage side) {
    return std::max(0.0, idle - std::max(0.0, 1 - share(side)));
  };
  stats.attention_straggler_share = stragglers(stats.attention_idle_share, AfdStage::attention);
  stats.ffn_straggler_share = stragglers(stats.ffn_idle_share, AfdStage::ffn);
  stats.dispatch_busy_share = share(AfdStage::dispatch);
  stats.combine_busy_share = share(AfdStage::combine);
  for (std::size_t stage = 0; stage < afd_stage_names.size(); ++stage) {
    stats.critical_path.emplace_back(afd_stage_names[stage],
                                     ratio(times.critical[stage].count(), busy));
  }
  if (times.stalls > Seconds{})
    stats.critical_path.emplace_back("rebalancing", ratio(times.stalls.count(), busy));
  stats.ffn_memory.kv = {};  // what is left there holds no KV cache
  return stats;
}

}  // namespace moesim
