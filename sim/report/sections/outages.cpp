// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/outages.hpp"

#include "sim/report/write_up.hpp"

namespace moesim {

using enum Better;

Fields<RebalancingLog::Event> rows_of(const RebalancingLog::Event*) {
  using S = RebalancingLog::Event;
  return {{"at_s", &S::at, "when it was planned", "s"},
          {"step", &S::step, "step of the group"},
          {"layers", &S::layers, "layers whose placement changes"},
          {"bytes", &S::bytes, "over links", "B", less},
          {"imbalance_before", &S::imbalance_before, "as planned", "max/mean", less},
          {"imbalance_after", &S::imbalance_after, "as planned", "max/mean", less}};
}

Fields<RebalancingLog> rows_of(const RebalancingLog*) {
  using S = RebalancingLog;
  return {
      {"count", &S::plans, "plans that moved something"},
      {"declined", &S::declined, "plans that found nothing worth moving"},
      {"layers_switched", &S::layers_switched, "layers whose new weights arrived"},
      {"bytes", Fields<S>{{"nvlink", &S::nvlink, "weights moved over NVLink", "B", less},
                          {"network", &S::network, "weights moved over the network", "B", less},
                          {"within_gpus", &S::copied, "weights copied within a GPU", "B", less}}},
      {"planning_seconds", &S::planning, "to plan", "s", less},
      {"stall_seconds", &S::stalled, "the engine stood still, planning included", "s", less},
      {"transfer_seconds", &S::moving, "weights were under way, by their time on free links", "s",
       less},
      {"slowdown_seconds", &S::slowdown, "extra time of steps while weights travelled", "s", less},
      {"events", &S::events, ""},
      {"events_left_out", [](const S& s) { return s.plans - std::ssize(s.events); },
       "plans that are not listed"}};
}

Fields<OutageRecord> rows_of(const OutageRecord*) {
  using S = OutageRecord;
  return {{"what", &S::what, "what stopped"},
          {"gpus", &S::gpus, "its GPUs"},
          {"at_s", &S::at, "when it stopped", "s"},
          {"step_lost_seconds", &S::step_lost, "time lost with the aborted step", "s", less},
          {"requests_moved", &S::requests, "to other ranks", "", less},
          {"kv_tokens_lost", &S::tokens_lost, "KV cache tokens that are computed again", "tokens",
           less},
          {"experts_lost", &S::experts_lost, "(layer, expert) pairs of which no copy was left", "",
           less},
          {"bytes_moved", &S::moved, "weights over links", "B", less},
          {"bytes_reloaded", &S::reloaded, "weights from outside", "B", less},
          {"stopped_seconds", &S::stopped, "no GPU computed: detection, movement, reloading", "s",
           less},
          {"recovered_at_s", &S::recovered, "when it came back; null if it did not", "s"},
          {"bytes_moved_back", &S::moved_back, "weights over links after that", "B", less},
          {"stopped_again_seconds", &S::stopped_again, "no GPU computed while experts moved back",
           "s", less}};
}

Fields<OutageStats> rows_of(const OutageStats*) {
  using S = OutageStats;
  return {
      {merged, &S::outage},
      {"gpu_seconds_down", &S::gpu_seconds_down, "its GPUs times the time away", "s", less},
      {if_any, "kv_blocks_given_up", &S::kv_blocks,
       "KV blocks that all ranks which are up gave up for experts", "", less},
      {if_any, "kv_given_up_seconds", &S::kv_seconds, "until the blocks held KV again", "s", less},
      {if_any, "requests_preempted", &S::preempted, "that held these blocks", "", less},
      {if_any, "instance", &S::instance, "the EP group, where there are several"}};
}

RebalancingLog rebalancing_of(const PoolRun& pool) {
  RebalancingLog log;
  for (const InstanceRun& instance : pool.instances) log += instance.rebalancing;
  return log;
}

std::vector<OutageStats> failures_of(const PoolRun& pool, Time now) {
  std::vector<OutageStats> failures;
  for (const InstanceRun& instance : pool.instances) {
    for (const OutageRecord& outage : instance.outages) {
      OutageStats& stats = failures.emplace_back(OutageStats{.outage = outage});
      const double away = to_seconds(outage.recovered.value_or(now) - outage.at).count();
      stats.gpu_seconds_down = away * double(outage.gpus.size());
      if (outage.kv_blocks > 0) {
        stats.kv_blocks = outage.kv_blocks;
        stats.kv_seconds = away;
        stats.preempted = outage.preempted;
      }
      if (pool.instances.size() > 1) stats.instance = instance.number;
    }
  }
  return failures;
}

}  // namespace moesim
