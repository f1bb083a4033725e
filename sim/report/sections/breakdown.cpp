// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/breakdown.hpp"

#include <array>
#include <numeric>

#include "hardware/at.hpp"
#include "sim/report/measurement.hpp"

namespace moesim {

using enum Better;

Fields<PartStats> rows_of(const PartStats*) {
  using S = PartStats;
  return {
      {"seconds", &S::seconds, "on the critical path of steps", "s", less},
      {"share", &S::share, "share of the time of all steps", "share of time"},
      {if_any, "bound_by/RESOURCE", &S::bound_by, "seconds by the resource that bounds them", "s"}};
}

Fields<BreakdownStats> rows_of(const BreakdownStats*) {
  using S = BreakdownStats;
  return {
      {"busy_seconds", &S::busy_seconds, "all steps' time, over all EP groups", "s"},
      {"parts/PART", &S::parts, ""},
      {"bound_by/RESOURCE", &S::bound_by, "steps' time by what bounds it", "s"},
      {"extrapolated_share", &S::extrapolated_share,
       "time predicted by constants beyond what they were fitted on", "share of time", less},
      {"unmeasured_share", &S::unmeasured_share,
       "time predicted by constants never measured on this GPU", "share of time", less},
      {"barrier_idle_share", &S::barrier_idle_share, "GPU time spent waiting at barriers",
       "share of time", less},
      {"barrier_idle_seconds_per_gpu", &S::barrier_idle_seconds_per_gpu,
       "waiting at barriers, [GPU of a group]", "s", less},
      {"exposed_communication_share", &S::exposed_communication_share,
       "communication that no computation hides", "share of time", less},
      {if_any, "measured_share", &S::measured_share,
       "time of kernels at points that a table measured", "share of time", more},
      {if_any, "interpolated_share", &S::interpolated_share,
       "time of kernels between points of a table", "share of time"},
      {if_any, "carried_over_share", &S::carried_over_share,
       "time of kernels that a table of another GPU measured", "share of time"},
      {if_any, "charged_share", &S::charged_share,
       "time of no kernel, as \"charges\" say: gaps, the host, token routing", "share of time"}};
}

Fields<RoutingChargeStats> rows_of(const RoutingChargeStats*) {
  using S = RoutingChargeStats;
  return {{"fixed_us", &S::fixed_us, "GPU time of the policy in a layer", "us"},
          {"per_128_active_us", &S::per_128_active_us, "further time for each 128 active experts",
           "us"},
          {if_any, "per_128_candidates_us", &S::per_128_candidates_us,
           "further time for each 128 replicas of these", "us"}};
}

Fields<ChargeStats> rows_of(const ChargeStats*) {
  using S = ChargeStats;
  return {{"source", &S::source, "where the charges come from"},
          {"top_k_of_all_tokens_us", &S::top_k_of_all_tokens_us,
           "time of the gate when hidden states are gathered first", "us"},
          {"host_overhead_us", &S::host_overhead_us, "once per step", "us"},
          {if_any, "token_routing/POLICY", &S::token_routing, ""}};
}

void BreakdownSum::add(const StepRecord& record) {
  const StepCost& cost = record.cost;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t resource = 0; resource < parts[part].size(); ++resource)
      parts[part][resource] += cost.parts[part][resource];
    for (std::size_t ground = 0; ground < by_evidence[part].size(); ++ground)
      by_evidence[part][ground] += cost.by_evidence[part][ground];
  }
  idle.resize(cost.idle.size());
  for (std::size_t gpu = 0; gpu < cost.idle.size(); ++gpu) idle[gpu] += cost.idle[gpu];
}

BreakdownStats breakdown_of(const Totals& totals) {
  const double busy = totals.busy_seconds();
  const auto& sum = totals.of<BreakdownSum>();
  const auto& links = totals.of<CommunicationSum>();
  BreakdownStats breakdown;
  breakdown.busy_seconds = busy;
  std::array<double, evidence_names.size()> by_ground{};
  for (std::size_t part = 0; part < part_names.size(); ++part) {
    const auto& row = sum.parts[part];
    const double seconds = std::accumulate(row.begin(), row.end(), 0.0);
    PartStats& entry = breakdown.parts.emplace_back(part_names[part], PartStats{}).second;
    entry.seconds = seconds;
    entry.share = ratio(seconds, busy);
    for (std::size_t r = 0; r < row.size(); ++r) {
      if (row[r] > 0) entry.bound_by.emplace_back(resource_names[r], row[r]);
    }
    for (std::size_t g = 0; g < evidence_names.size(); ++g)
      by_ground[g] += sum.by_evidence[part][g];
  }
  for (std::size_t r = 0; r < resource_names.size(); ++r) {
    double seconds = 0;
    for (const auto& row : sum.parts) seconds += row[r];
    breakdown.bound_by.emplace_back(resource_names[r], seconds);
  }
  const auto share_of = [&](Evidence evidence) { return ratio(by_ground[at(evidence)], busy); };
  breakdown.extrapolated_share = share_of(Evidence::extrapolated);
  breakdown.unmeasured_share = share_of(Evidence::unmeasured);
  const double idle = std::accumulate(sum.idle.begin(), sum.idle.end(), 0.0);
  breakdown.barrier_idle_share = ratio(idle, busy * double(sum.idle.size()));
  breakdown.barrier_idle_seconds_per_gpu = sum.idle;
  const Seconds exposed = links.dispatch.time + links.combine.time + links.all_reduce.time -
                          links.dispatch.hidden - links.combine.hidden - links.all_reduce.hidden;
  breakdown.exposed_communication_share = ratio(exposed.count(), busy);
  // Only kernels that tables priced have these grounds, and what no kernel takes the last.
  const auto share_if_any = [&](Evidence evidence) {
    const bool any = by_ground[at(evidence)] > 0;
    return any ? std::optional(share_of(evidence)) : std::nullopt;
  };
  breakdown.measured_share = share_if_any(Evidence::measured);
  breakdown.interpolated_share = share_if_any(Evidence::interpolated);
  breakdown.carried_over_share = share_if_any(Evidence::carried_over);
  breakdown.charged_share = share_if_any(Evidence::charged);
  return breakdown;
}

ChargeStats charges_of(const Charges& charges) {
  ChargeStats stats{.source = charges.source,
                    .top_k_of_all_tokens_us = charges.top_k_of_all_tokens.count() * 1e6,
                    .host_overhead_us = charges.host_overhead.count() * 1e6,
                    .token_routing = {}};
  for (const auto& [policy, charge] : charges.token_routing) {
    RoutingChargeStats& of = stats.token_routing.emplace_back(policy, RoutingChargeStats{}).second;
    of.fixed_us = charge.fixed.count() * 1e6;
    of.per_128_active_us = charge.per_128_active.count() * 1e6;
    if (charge.per_128_candidates > Seconds{})
      of.per_128_candidates_us = charge.per_128_candidates.count() * 1e6;
  }
  return stats;
}

}  // namespace moesim
