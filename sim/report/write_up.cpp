// SPDX-License-Identifier: Apache-2.0
#include "sim/report/write_up.hpp"

#include "sim/experiment/pools.hpp"
#include "sim/report/report.hpp"

namespace moesim {

namespace {

constexpr std::string_view version = MOESIM_VERSION;

PoolStats pool_of(const PoolRun& pool, const Totals& totals, Time now) {
  const Deployment& e = pool.deployment;
  const Measurement& measurement = pool.measurement;
  PoolStats stats;
  stats.steps = steps_of(e, totals.of<StepSum>());
  stats.experts = experts_of(e, totals.of<ExpertSum>(), measurement);
  stats.expert_memory = expert_memory_of(e, totals.of<ExpertMemorySum>());
  const auto& batches = totals.of<BatchSum>();
  stats.expert_buffers = {e.buffer_tokens, batches.cut_steps, batches.cut_rank_steps};
  stats.prefill_alignment = prefill_alignment_of(e, totals);
  stats.communication = communication_of(totals.of<CommunicationSum>(), totals.busy_seconds());
  stats.breakdown = breakdown_of(totals);
  if (e.parallel.afd()) stats.afd = afd_of(e, totals);
  stats.charges = charges_of(e.charges);
  stats.memory = e.memory;
  stats.kv = kv_of(e, totals.of<KvSum>(), measurement.total_blocks(), totals.busy_seconds());
  stats.tiers = tiers_of(pool);
  if (e.speculation.tokens > 0) {
    stats.speculative = speculation_of(totals.of<SpeculationSum>(), totals.busy_seconds());
  }
  if (e.charges.request_routing > Seconds{}) stats.request_router = router_of(pool, now);
  stats.sampled = pool.sampled;
  stats.routing_coverage = coverage_of(totals.of<CoverageSum>());
  stats.rebalancing = rebalancing_of(pool);
  stats.failures = failures_of(pool, now);
  stats.over_time = measurement.over_time().buckets(measurement.total_blocks());
  return stats;
}

}  // namespace

Report write_up(const Experiment& experiment, std::span<const PoolRun> pools,
                const BetweenPools& between, const Requests& requests,
                std::span<const SessionLife> sessions, Time now) {
  const Measurement::Window window = pools.back().measurement.window();
  std::vector<Totals> totals;
  std::vector<Repeated> gaps;
  for (const PoolRun& pool : pools) {
    const Totals& of_pool = totals.emplace_back(pool.measurement.finish(now, window));
    std::vector<Repeated> more = pool.measurement.take_gaps(of_pool);
    if (gaps.empty()) std::swap(gaps, more);
    gaps.insert(gaps.end(), more.begin(), more.end());
  }
  Report report;
  const Deployment& e = experiment.decode();
  report.context = {std::string(version), e.seed, experiment.config};
  if (e.anchor) {
    report.anchored = {e.anchor->deployment, e.anchor->tpot.runs, e.anchor->tpot.leave_one_out,
                       e.anchored_tpot, e.anchored_tpot * e.anchored_ttft};
  }
  report.metrics = metrics_of(experiment, totals, std::move(gaps), requests.lives());
  report.classes =
      classes_of(e, {totals.front().begin, totals.front().end}, report.metrics, requests.lives());
  report.energy = energy_of(experiment, totals, report.metrics);
  report.measurement = steady_state_of(e, window, totals.back(), requests.lives());
  if (e.workload.sessions) {
    const Measured measured{totals.back().begin, totals.back().end};
    report.sessions = sessions_of(e, sessions, requests, measured, now);
    report.turns = turns_of(e, requests, measured);
  }
  report.pool = pool_of(pools.back(), totals.back(), now);
  if (experiment.apart()) {
    report.pools = {
        {{gpus_of(experiment.pools.front()), instances_of(pools.front(), totals.front())},
         pool_of(pools.front(), totals.front(), now)},
        {gpus_of(e), instances_of(pools.back(), totals.back())},
        transfers_of(*experiment.kv_link, between.kv),
        roles_of(experiment, between.role_changes, now)};
  } else if (e.instances > 1) {
    report.instances = instances_of(pools.back(), totals.back());
  }
  for (const PoolRun& pool : pools) {
    report.work.steps += pool.measurement.steps();
    report.work.routed_ids += pool.measurement.routed_ids();
  }
  report.work.generated_tokens = requests.generated_tokens();
  return report;
}

}  // namespace moesim
