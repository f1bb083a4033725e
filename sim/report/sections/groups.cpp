// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/groups.hpp"

#include <algorithm>

#include "sim/report/write_up.hpp"

namespace moesim {

using enum Better;

Fields<RouterStats> rows_of(const RouterStats*) {
  using S = RouterStats;
  return {
      {"decision_us", &S::decision_us, "time for each request", "us", less},
      {"most_per_second", &S::most_per_second, "requests that it can route at most", "1/s", more},
      {"decisions", &S::decisions, "requests that it routed, over the whole run"},
      {"busy_share", &S::busy_share, "of the whole run, it decided", "", less},
      {"mean_wait_ms", &S::mean_wait_ms,
       "from a request's arrival at the router to the end of its decision; part of TTFT", "ms",
       less}};
}

Fields<InstanceStats> rows_of(const InstanceStats*) {
  using S = InstanceStats;
  return {
      {"instance", &S::instance, "number of the EP group"},
      {"steps", &S::steps, "its steps"},
      {"mean_step_ms", &S::mean_step_ms, "a step", "ms", less},
      {"utilization", &S::utilization, "time that it computed", "share of time"},
      {"barrier_idle_share", &S::barrier_idle_share, "GPU time spent waiting at barriers",
       "share of time", less},
      {"output_tokens", &S::output_tokens, "tokens emitted", "tokens", more},
      {"prefill_tokens", &S::prefill_tokens, "prompt tokens computed", "tokens"},
      {"decode_tokens", &S::decode_tokens, "decode tokens computed", "tokens"},
      {"kv_mean_utilization", &S::kv_mean_utilization, "blocks held, over steps' time", "share"},
      {"kv_peak_utilization", &S::kv_peak_utilization, "most blocks held at a time", "share", less},
      {"prefix_hit_rate", &S::prefix_hit_rate, "prompt tokens that were cached", "share of tokens",
       more},
      {"preemptions", &S::preemptions, "requests that lost their blocks to others", "", less}};
}

Fields<PoolGroups> rows_of(const PoolGroups*) {
  using S = PoolGroups;
  return {{"gpus", &S::gpus, "GPUs of the pool"},
          {"instances", &S::instances, "an EP group of the pool"}};
}

Fields<KvTransferStats> rows_of(const KvTransferStats*) {
  using S = KvTransferStats;
  return {{"level", &S::level, "nvlink or network"},
          {"transfers", &S::transfers, "KV caches sent"},
          {"bytes", &S::bytes, "their sum", "B"},
          {"mean_ms", &S::mean_ms, "mean time of a KV cache on its link", "ms", less},
          {"mean_wait_ms", &S::mean_wait_ms, "mean wait for a busy link", "ms", less},
          {"mean_exposed_ms", &S::mean_exposed_ms,
           "from the first token to the KV cache's arrival, waiting included", "ms", less}};
}

Fields<RoleChangeStats> rows_of(const RoleChangeStats*) {
  using S = RoleChangeStats;
  return {{"instance", &S::instance, "number of the EP group, the same in both pools"},
          {"to", &S::to, "the pool that got the group"},
          {"at_s", &S::at_s, "when the group took no more requests", "s"},
          {if_any, "drain_s", &S::drain_s, "until its requests had finished", "s", less},
          {if_any, "switch_s", &S::switch_s, "from then until it took requests", "s", less}};
}

Fields<PoolRolesStats> rows_of(const PoolRolesStats*) {
  using S = PoolRolesStats;
  return {
      {"changes", &S::changes, "groups that were asked to change pools"},
      {if_any, "mean_drain_s", &S::mean_drain_s, "mean drain, of groups that drained", "s", less},
      {if_any, "mean_switch_s", &S::mean_switch_s, "mean switch, of groups that changed", "s",
       less},
      {"mean_prefill_groups", &S::mean_prefill_groups,
       "groups that took requests to prefill, over the run's time"},
      {"mean_decode_groups", &S::mean_decode_groups, "the same to decode"},
      {"away_share", &S::away_share, "group time in neither pool: draining, or switching",
       "share of time", less},
      {"events", &S::events, "each change, in order of time"}};
}

std::vector<InstanceStats> instances_of(const PoolRun& pool, const Totals& totals) {
  const double seconds = to_seconds(totals.end - totals.begin).count();
  const auto blocks = double(pool.measurement.total_blocks());
  std::vector<InstanceStats> instances;
  for (const InstanceRun& instance : pool.instances) {
    const auto found = totals.groups.find(instance.number);
    const GroupTotals group = found == totals.groups.end() ? GroupTotals{} : found->second;
    const double gpus = pool.deployment.parallel.gpus();
    instances.push_back(
        {.instance = instance.shown,
         .steps = group.steps,
         .mean_step_ms = ratio(group.seconds * 1e3, double(group.steps)),
         .utilization = ratio(group.busy, seconds),
         .barrier_idle_share = ratio(group.idle, group.seconds * gpus),
         .output_tokens = group.output_tokens,
         .prefill_tokens = group.prefill_tokens,
         .decode_tokens = group.decode_tokens,
         .kv_mean_utilization = ratio(group.kv.block_seconds, group.seconds * blocks),
         .kv_peak_utilization = ratio(double(group.kv.blocks_peak), blocks),
         .prefix_hit_rate = ratio(double(group.kv.prefix_hit), double(group.kv.prefix_queried)),
         .preemptions = group.kv.preemptions});
  }
  return instances;
}

RouterStats router_of(const PoolRun& pool, Time now) {
  const double each = pool.deployment.charges.request_routing.count();
  const auto decisions = static_cast<double>(pool.router.decisions);
  const double beyond = std::max(0., to_seconds(pool.router.idle_from - now).count());
  return {.decision_us = each * 1e6,
          .most_per_second = 1 / each,
          .decisions = pool.router.decisions,
          .busy_share = ratio(decisions * each - beyond, to_seconds(now - Time{}).count()),
          .mean_wait_ms = ratio(to_seconds(pool.router.waited).count() * 1e3, decisions)};
}

KvTransferStats transfers_of(const KvLink& link, const KvTransferTally& tally) {
  const auto mean_ms = [&](Seconds sum) {
    return ratio(sum.count() * 1e3, double(tally.transfers));
  };
  return {.level = link.network ? "network" : "nvlink",
          .transfers = tally.transfers,
          .bytes = tally.bytes.value(),
          .mean_ms = mean_ms(tally.on_links),
          .mean_wait_ms = mean_ms(tally.waited),
          .mean_exposed_ms = mean_ms(tally.exposed)};
}

std::optional<PoolRolesStats> roles_of(const Experiment& experiment,
                                       std::span<const RoleChange> changes, Time now) {
  if (!experiment.roles) return std::nullopt;
  PoolRolesStats stats{.changes = std::ssize(changes)};
  const double run = to_seconds(now - Time{}).count();
  const auto seconds = [](Time from, Time to) { return to_seconds(to - from).count(); };
  const double prefill = experiment.pools.front().instances,
               all = prefill + experiment.decode().instances;
  double drains = 0, switches = 0, away = 0, in_prefill = prefill * run;
  std::int64_t drained = 0, switched = 0;
  for (const RoleChange& change : changes) {
    const bool to_prefill = change.to == PoolRole::prefill;
    RoleChangeStats& event =
        stats.events.emplace_back(RoleChangeStats{.instance = change.group,
                                                  .to = to_prefill ? "prefill" : "decode",
                                                  .at_s = seconds(Time{}, change.decided)});
    const Time serves = std::min(now, change.serves.value_or(now));
    away += std::max(0., seconds(change.decided, serves));
    in_prefill += to_prefill ? seconds(serves, now) : -std::max(0., seconds(change.decided, now));
    if (change.drained) {
      event.drain_s = seconds(change.decided, *change.drained);
      drains += *event.drain_s, ++drained;
    }
    if (change.serves) {
      event.switch_s = seconds(*change.drained, *change.serves);
      switches += *event.switch_s, ++switched;
    }
  }
  if (drained > 0) stats.mean_drain_s = drains / double(drained);
  if (switched > 0) stats.mean_switch_s = switches / double(switched);
  stats.mean_prefill_groups = ratio(in_prefill, run);
  stats.away_share = ratio(away, run * all);
  stats.mean_decode_groups = run > 0 ? all * (1 - stats.away_share) - stats.mean_prefill_groups : 0;
  return stats;
}

}  // namespace moesim
