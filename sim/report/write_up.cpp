// SPDX-License-Identifier: Apache-2.0
#include "sim/report/write_up.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "hardware/at.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/report/objectives.hpp"
#include "sim/report/write_up_sessions.hpp"
#include "traces/requests/arrivals.hpp"

namespace moesim {

namespace {

constexpr std::string_view version = MOESIM_VERSION;

double ratio(double a, double b) { return b == 0 ? 0 : a / b; }

// Requests of the whole run, and of those that arrived while it was measured.
struct RequestCounts {
  using State = RequestLife::State;
  std::array<std::int64_t, 6> all{}, measured{};  // by state
  std::int64_t arrived = 0;                       // while measured
  std::int64_t ttft = 0, tpot = 0, e2el = 0, good = 0;

  std::int64_t of(State state) const { return all[std::size_t(state)]; }
  std::int64_t share_of(State state) const { return measured[std::size_t(state)]; }
  // Requests that are owed their objectives: what a client that left by itself would have got is
  // not known.
  std::int64_t owed() const { return arrived - share_of(State::cancelled); }
};

// Shares that met each objective of which `has` says that there is one.
template <class Has>
std::optional<Attainment> attainment(const RequestCounts& counts, const Has& has) {
  const auto share = [&](std::optional<Seconds> Slo::*objective, std::int64_t met) {
    return has(objective) ? std::optional(ratio(double(met), double(counts.owed()))) : std::nullopt;
  };
  const Attainment met{share(&Slo::ttft, counts.ttft), share(&Slo::tpot, counts.tpot),
                       share(&Slo::e2el, counts.e2el)};
  return met.any() ? std::optional(met) : std::nullopt;
}

// What metrics are made of, over all pools.
struct Sums {
  WindowTokens tokens;
  std::int64_t completed = 0;
};

Sums sum(std::span<const Totals> pools) {
  Sums all;
  for (const Totals& totals : pools) {
    all.tokens.output += totals.tokens.output;
    all.tokens.prompt += totals.tokens.prompt;
    all.tokens.computed += totals.tokens.computed;
    all.tokens.hbm_bytes += totals.tokens.hbm_bytes;
    all.completed += totals.completed;
  }
  return all;
}

// Of all requests, or of one class.
RequestCounts count(const Deployment& e, const Measured& measured,
                    std::span<const RequestLife> requests,
                    std::optional<std::size_t> of_class = {}) {
  RequestCounts counts;
  for (const RequestLife& request : requests) {
    if (of_class && request.of_class != *of_class) continue;
    ++counts.all[std::size_t(request.state)];
    if (!measured.holds(request)) continue;
    ++counts.arrived;
    ++counts.measured[std::size_t(request.state)];
    // One that was rejected or timed out misses every objective and has no latency.
    if (request.state != RequestLife::State::finished) continue;
    const Latency latency = latency_of(request, e.anchored_ttft);
    const Met met = objectives_met(latency, e.slo_of(request.of_class));
    counts.ttft += met.ttft ? 1 : 0;
    counts.tpot += met.tpot ? 1 : 0;
    counts.e2el += met.e2el ? 1 : 0;
    counts.good += met.all() ? 1 : 0;
  }
  return counts;
}

void add_counts(Metrics& metrics, const RequestCounts& counts, bool clients_may_leave) {
  using State = RequestLife::State;
  metrics.completed = counts.of(State::finished);
  metrics.rejected = counts.of(State::rejected);
  metrics.measured_requests = counts.arrived;
  if (!clients_may_leave) return;
  const auto share = [&](State state) {
    return ratio(double(counts.share_of(state)), double(counts.arrived));
  };
  metrics.timed_out = counts.of(State::timed_out);
  metrics.cancelled = counts.of(State::cancelled);
  metrics.timeout_share = share(State::timed_out);
  metrics.cancelled_share = share(State::cancelled);
}

// One after the other, gaps first: of a long run each takes much memory.
void add_latencies(Metrics& metrics, const MeasurementSpec& e, const Measured& measured,
                   std::vector<Repeated> gaps, std::span<const RequestLife> requests) {
  metrics.itl = summarize(std::move(gaps));
  const auto finished =
      static_cast<std::size_t>(std::ranges::count_if(requests, [&](const RequestLife& request) {
        return measured.holds(request) && request.state == RequestLife::State::finished;
      }));
  const auto summary_of = [&](const auto wanted) {
    std::vector<double> samples;
    samples.reserve(finished);
    for (const RequestLife& request : requests) {
      if (!measured.holds(request) || request.state != RequestLife::State::finished) continue;
      const Latency latency = latency_of(request, e.anchored_ttft);
      if (const std::optional<double> value = latency.*wanted) samples.push_back(*value);
    }
    return summarize(std::move(samples));
  };
  metrics.tpot = summary_of(&Latency::tpot);
  metrics.ttft = summary_of(&Latency::ttft);
  metrics.e2el = summary_of(&Latency::e2el);
  const auto mean_between = [&](Time RequestLife::*begin, Time RequestLife::*end) {
    double seconds = 0;
    for (const RequestLife& request : requests) {
      if (measured.holds(request) && request.state == RequestLife::State::finished)
        seconds += to_seconds(request.*end - request.*begin).count();
    }
    return seconds * 1e3 / static_cast<double>(finished) * e.anchored_ttft;
  };
  if (finished > 0) {
    metrics.ingress_ms = mean_between(&RequestLife::arrival, &RequestLife::received);
    metrics.queue_ms = mean_between(&RequestLife::received, &RequestLife::begun);
    metrics.prefill_ms = mean_between(&RequestLife::begun, &RequestLife::first_token);
  }
  if (metrics.tpot.count > 0) metrics.tokens_per_s_per_user = ratio(1000, metrics.tpot.p50);
}

// The mean over all GPUs of what `value` says of each kind, in its pool.
template <class Value>
double mean_of_gpus(const Experiment& experiment, Value&& value) {
  std::optional<double> first;
  double sum = 0;
  bool alike = true;
  for (const Deployment& pool : experiment.pools) {
    for (const auto& [gpu, gpus] : kinds_of_gpus(pool)) {
      const double of_kind = value(gpu, pool);
      if (!first) first = of_kind;
      alike = alike && of_kind == *first;
      sum += of_kind * gpus;
    }
  }
  return alike ? *first : sum / gpus_of(experiment);
}

// Whether all GPUs say so.
template <class Predicate>
bool all_gpus(const Experiment& experiment, Predicate&& says) {
  return std::ranges::all_of(experiment.pools, [&](const ServedModel& pool) {
    return std::ranges::all_of(kinds_of_gpus(pool),
                               [&](const GpusOfKind& kind) { return says(kind.gpu); });
  });
}

void add_rates(Metrics& metrics, const Experiment& experiment, const Sums& totals, double seconds) {
  const double gpus = gpus_of(experiment);
  const double output = ratio(totals.tokens.output, seconds);
  const double prompt = ratio(totals.tokens.prompt, seconds);
  metrics.duration_s = seconds;
  metrics.completed_while_measured = totals.completed;
  metrics.request_throughput = ratio(double(totals.completed), seconds);
  metrics.output_throughput = output;
  metrics.total_token_throughput = output + prompt;
  metrics.tokens_per_s_per_gpu = output / gpus;
  metrics.total_tokens_per_s_per_gpu = (output + prompt) / gpus;
  // mfu: 2 flops per active weight and computed token, against the peak of the experts' precision.
  const double peak = mean_of_gpus(experiment, [](const GpuSpec& gpu, const ServedModel& e) {
    return gpu.peak(e.precision.experts, e.precision.activations).value();
  });
  const double bandwidth = mean_of_gpus(
      experiment, [](const GpuSpec& gpu, const ServedModel&) { return gpu.hbm_bandwidth.value(); });
  metrics.mfu =
      ratio(2 * count_parameters(experiment.decode().model).active * totals.tokens.computed,
            seconds * peak * gpus);
  metrics.mbu = ratio(totals.tokens.hbm_bytes, seconds * bandwidth * gpus);
  // All GPUs at the price of their hour; nothing where one has none.
  const bool priced =
      all_gpus(experiment, [](const GpuSpec& gpu) { return gpu.price.has_value(); });
  if (priced && output > 0) {
    constexpr double seconds_per_hour = 3600;
    const double hour = mean_of_gpus(experiment, [](const GpuSpec& gpu, const ServedModel&) {
      return gpu.price->dollars_per_hour;
    });
    metrics.cost_per_million_output_tokens = hour * gpus / seconds_per_hour / output * 1e6;
  }
}

// (GPUs + overhead) x PUE, and what that costs.
SiteEnergyStats site_of(const SitePower& site, const EnergyStats& gpus, const Metrics& metrics) {
  constexpr double joules_per_kwh = 3.6e6;
  SiteEnergyStats stats;
  stats.watts_per_gpu =
      (gpus.watts_per_gpu + site.overhead_per_gpu.value_or(Watts{}).value()) * site.pue;
  const double times = ratio(stats.watts_per_gpu, gpus.watts_per_gpu);
  stats.joules_per_output_token = gpus.joules_per_output_token.value_or(0) * times;
  stats.joules_per_token = gpus.joules_per_token.value_or(0) * times;
  stats.output_tokens_per_s_per_mw = ratio(gpus.output_tokens_per_s_per_mw, times);
  if (!site.dollars_per_kwh || !gpus.joules_per_output_token) return stats;
  const double dollars =
      stats.joules_per_output_token * 1e6 / joules_per_kwh * *site.dollars_per_kwh;
  stats.electricity_per_million_output_tokens = dollars;
  if (metrics.cost_per_million_output_tokens)
    stats.cost_with_electricity = *metrics.cost_per_million_output_tokens + dollars;
  return stats;
}

// Over all pools and the time that was measured:
//   E = sum over operations of draw x time + idle draw x (GPUs x time - time of computing)
// for each kind of GPU. Nothing where the power of some GPUs is not known.
std::optional<EnergyStats> energy_of(const Experiment& experiment, std::span<const Totals> pools,
                                     const Metrics& metrics) {
  if (!all_gpus(experiment, [](const GpuSpec& gpu) { return gpu.power != nullptr; }))
    return std::nullopt;
  Energy computed;
  double waits = 0, between_steps = 0, limit = 0, gpu_seconds = 0;
  std::set<std::string> names;
  EnergyStats stats;
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    const Deployment& e = experiment.pools[pool];
    const Totals& totals = pools[pool];
    const Energy& energy = totals.tokens.energy;
    computed.add(energy);
    const std::vector<GpusOfKind> kinds = kinds_of_gpus(e);
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto& [gpu, gpus] = kinds[kind];
      const GpuPower& power = *gpu.power;
      // Experts compute on the second kind alone.
      const double computing = kinds.size() == 1 ? energy.computing
                               : kind == 0       ? energy.computing - energy.computing_experts
                                                 : energy.computing_experts;
      double in_steps = 0;
      for (const auto& [number, group] : totals.groups)
        in_steps += group.busy * (gpus / e.instances);
      const double all = gpus * metrics.duration_s;
      waits += power.idle.value() * (in_steps - computing);
      between_steps += power.idle.value() * std::max(0.0, all - in_steps);
      limit += power.limit.value() * all;
      gpu_seconds += all;
      if (names.insert(gpu.name).second)
        stats.source += (stats.source.empty() ? "" : "; ") + power.source;
    }
  }
  if (gpu_seconds <= 0) return std::nullopt;
  const auto& parts = computed.joules;
  stats.joules = std::accumulate(parts.begin(), parts.end(), waits + between_steps);
  const double seconds = metrics.duration_s, megawatts = stats.joules / seconds / 1e6;
  const auto per_token = [&](double throughput) {
    return throughput > 0 ? std::optional(stats.joules / seconds / throughput) : std::nullopt;
  };
  stats.joules_per_output_token = per_token(metrics.output_throughput);
  stats.joules_per_token = per_token(metrics.total_token_throughput);
  stats.watts_per_gpu = stats.joules / gpu_seconds;
  stats.share_of_limit = stats.joules / limit;
  stats.output_tokens_per_s_per_mw = metrics.output_throughput / megawatts;
  stats.tokens_per_s_per_mw = metrics.total_token_throughput / megawatts;
  for (std::size_t part = 0; part < parts.size(); ++part)
    if (parts[part] > 0) stats.shares.emplace_back(part_names[part], parts[part] / stats.joules);
  stats.shares.emplace_back("waits", waits / stats.joules);
  stats.shares.emplace_back("between_steps", between_steps / stats.joules);
  if (const auto& site = experiment.decode().site_power)
    stats.site = site_of(*site, stats, metrics);
  return stats;
}

Metrics metrics_of(const Experiment& experiment, std::span<const Totals> pools,
                   std::vector<Repeated> gaps, std::span<const RequestLife> requests) {
  const Deployment& e = experiment.decode();
  const Measured measured{pools.front().begin, pools.front().end};  // all pools alike
  const RequestCounts counts = count(e, measured, requests);
  Metrics metrics;
  add_counts(metrics, counts, !e.workload.patience.endless());
  add_latencies(metrics, e, measured, std::move(gaps), requests);
  add_rates(metrics, experiment, sum(pools), to_seconds(measured.end - measured.begin).count());
  // Two terms do not say how long kernels compute and read.
  const bool by_terms = std::ranges::any_of(
      experiment.pools, [](const Deployment& pool) { return pool.two_term.has_value(); });
  if (by_terms) metrics.mfu = metrics.mbu = 0;
  // The share of finished requests that met every objective.
  metrics.request_goodput =
      metrics.request_throughput *
      ratio(double(counts.good), double(counts.share_of(RequestLife::State::finished)));
  metrics.slo_attainment = ratio(double(counts.good), double(counts.owed()));
  metrics.attainment =
      attainment(counts, [&](auto objective) { return e.has_objective(objective); });
  return metrics;
}

// Goodput as metrics_of() has it: that of all classes sums to the whole.
Named<ClassStats> classes_of(const Deployment& e, const Measured& measured, const Metrics& metrics,
                             std::span<const RequestLife> requests) {
  using State = RequestLife::State;
  const RequestCounts all = count(e, measured, requests);
  Named<ClassStats> classes;
  for (std::size_t i = 0; i < e.classes.size(); ++i) {
    const Slo& slo = e.classes[i].slo;
    const RequestCounts counts = count(e, measured, requests, i);
    std::vector<double> ttft, tpot;
    for (const RequestLife& request : requests) {
      if (request.of_class != i || request.state != State::finished || !measured.holds(request))
        continue;
      const Latency latency = latency_of(request, e.anchored_ttft);
      ttft.push_back(latency.ttft);
      if (latency.tpot) tpot.push_back(*latency.tpot);
    }
    const auto has = [&](auto objective) { return (slo.*objective).has_value(); };
    classes.emplace_back(
        e.classes[i].name,
        ClassStats{
            .requests = counts.arrived,
            .ttft = summarize(std::move(ttft)),
            .tpot = summarize(std::move(tpot)),
            .attainment = attainment(counts, has),
            .slo_attainment = ratio(double(counts.good), double(counts.owed())),
            .request_goodput = metrics.request_throughput *
                               ratio(double(counts.good), double(all.share_of(State::finished)))});
  }
  return classes;
}

Distribution distribution(const CountHistogram& histogram) {
  return {.mean = histogram.mean(),
          .p50 = histogram.quantile(.50),
          .p95 = histogram.quantile(.95),
          .p99 = histogram.quantile(.99),
          .max = histogram.max()};
}

ExpertSummary expert_summary(const ExpertTotals& totals) {
  const double n = totals.layer_steps;
  const auto if_any = [&](double sum) { return sum > 0 ? std::optional(sum / n) : std::nullopt; };
  const auto near = [&](std::int64_t selections) {
    return totals.locality.selections > 0
               ? std::optional(ratio(double(selections), double(totals.locality.selections)))
               : std::nullopt;
  };
  return {.max_activated_mean = ratio(totals.max_activated, n),
          .activated_mean = ratio(totals.mean_activated, n),
          .active_experts_mean = ratio(totals.active_experts, n),
          .uniform_experts_mean = ratio(totals.uniformly_active, n),
          .max_tokens_mean = ratio(totals.max_tokens, n),
          .tokens_mean = ratio(totals.mean_tokens, n),
          .balancedness = ratio(totals.mean_tokens, totals.max_tokens),
          .imbalance = ratio(totals.max_tokens, totals.mean_tokens),
          .cv = ratio(totals.cv, n),
          .gemm_occupancy = ratio(totals.useful_rows, totals.padded_rows),
          .imbalance_with_shared = totals.max_rows > 0
                                       ? std::optional(totals.max_rows / totals.mean_rows)
                                       : std::nullopt,
          .own_gpu_share = near(totals.locality.own_gpu),
          .own_domain_share = near(totals.locality.own_domain),
          .step_copies_mean = if_any(totals.step_copies),
          .step_copy_bytes_mean = if_any(totals.step_copy_bytes),
          .hot_rank_events = {totals.hot_layer_steps, totals.hottest}};
}

ExpertTotals sum(const std::array<StepTotals, 3>& kinds) {
  ExpertTotals all;
  for (const StepTotals& kind : kinds) {
    const ExpertTotals& part = kind.experts;
    all.layer_steps += part.layer_steps;
    all.max_activated += part.max_activated;
    all.mean_activated += part.mean_activated;
    all.max_tokens += part.max_tokens;
    all.mean_tokens += part.mean_tokens;
    all.cv += part.cv;
    all.active_experts += part.active_experts;
    all.uniformly_active += part.uniformly_active;
    all.useful_rows += part.useful_rows;
    all.padded_rows += part.padded_rows;
    all.max_rows += part.max_rows;
    all.mean_rows += part.mean_rows;
    all.locality += part.locality;
    all.step_copies += part.step_copies;
    all.step_copy_bytes += part.step_copy_bytes;
    all.capacity += part.capacity;
    all.hot_layer_steps += part.hot_layer_steps;
    all.hottest = std::max(all.hottest, part.hottest);
  }
  return all;
}

// Tokens per expert over the whole run, [workload tag][layer][expert]: what was replayed, row by
// row.
Named<ExpertCounts> expert_counts(const Deployment& e, const Measurement& measurement) {
  std::map<std::string, ExpertCounts> counts;
  const auto layers = static_cast<std::size_t>(e.model.moe_layers());
  const auto experts = static_cast<std::size_t>(e.model.experts);
  const auto k = static_cast<std::size_t>(e.model.experts_per_token);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const RoutingTrace& trace =
        phase == Phase::prefill && e.prefill_trace ? *e.prefill_trace : e.trace;
    const std::vector<std::uint32_t>& uses = measurement.row_uses(phase);
    trace.visit([&](auto ids) {
      for (const TraceRequest& request : trace.requests()) {
        auto& tag = counts[trace.workloads()[at(request.workload)]];
        tag.resize(layers, std::vector<std::int64_t>(experts));
        for (std::int64_t r = request.row_start; r < request.row_start + request.num_tokens; ++r) {
          const auto row = static_cast<std::size_t>(r);
          if (uses[row] == 0) continue;
          const auto* id = ids.data() + row * layers * k;
          for (std::size_t l = 0; l < layers; ++l) {
            for (std::size_t j = 0; j < k; ++j) tag[l][at(*id++)] += uses[row];
          }
        }
      }
    });
  }
  return {counts.begin(), counts.end()};
}

ExpertMemoryStats expert_memory_of(const Deployment& e, const ExpertMemoryTally& tally) {
  if (!e.expert_memory) return {"resident", {}};
  return {
      e.expert_memory->type,
      ExpertTransferStats{
          .hits = tally.hits,
          .misses = tally.misses,
          .hit_rate = ratio(double(tally.hits), double(tally.hits + tally.misses)),
          .streamed = tally.streamed,
          .prefetch = {.issued = tally.prefetches,
                       .used = tally.prefetches_used,
                       .late = tally.late,
                       .wasted = tally.prefetches_wasted},
          .host_bytes = tally.host.value(),
          .nvme_bytes = tally.nvme.value(),
          .stall_seconds = tally.stall.count(),
          .held_up_seconds = e.host_link ? std::optional(tally.for_blocks.count()) : std::nullopt,
          .host_source = e.expert_memory->host.source}};
}

ExpertKindStats expert_kind_of(const Deployment& e, const ExpertTotals& totals) {
  ExpertKindStats kind{expert_summary(totals), {}};
  for (std::size_t l = 0; l < totals.layers.size(); ++l) {
    const ExpertTotals::Layer& layer = totals.layers[l];
    kind.layers.push_back({e.trace.meta().layer_ids[l],
                           {distribution(layer.rank_activated), layer.activated_of_rank},
                           {distribution(layer.rank_tokens), layer.tokens_of_rank},
                           distribution(layer.expert_tokens)});
  }
  return kind;
}

ExpertStats experts_of(const Deployment& e, const Totals& totals, const Measurement& measurement) {
  const ExpertTotals all = sum(totals.by_kind);
  ExpertStats experts;
  experts.summary = expert_summary(all);
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const ExpertTotals& part = totals.by_kind[kind].experts;
    if (part.layer_steps == 0) continue;
    experts.by_step_kind.emplace_back(step_kind_names[kind], expert_kind_of(e, part));
  }
  if (!e.placement.empty()) {
    experts.replicas = e.placement.front().slots() - e.placement.front().experts();
  }
  experts.replication_effective = e.replication_effective;
  // Shares are of the selections that the gate made.
  const auto share = [&](std::int64_t selections) {
    return ratio(double(selections), double(all.capacity.selections));
  };
  // A selection is dropped in the step after the gate's: the gate's own may be few by then.
  experts.dropped = ratio(double(all.capacity.dropped), double(all.capacity.decided()));
  experts.rerouted = share(all.capacity.rerouted);
  experts.delayed = share(all.capacity.delayed);
  experts.hot_rank_threshold = e.hot_rank_threshold;
  for (const HotRank& hot : totals.hot_ranks) {
    experts.hottest_ranks.push_back(
        {to_seconds(hot.at).count(), e.trace.meta().layer_ids[at(hot.layer)], hot.rank, hot.ratio});
  }
  if (e.expert_counts) experts.tokens_per_expert_by_workload = expert_counts(e, measurement);
  return experts;
}

TrafficStats traffic_of(const Traffic& traffic, double busy) {
  return {.seconds = traffic.time.count(),
          .hidden_seconds = traffic.hidden.count(),
          .share_of_busy_time = ratio(traffic.time.count(), busy),
          .nvlink_bytes = traffic.nvlink.value(),
          .network_bytes = traffic.network.value()};
}

CommunicationStats communication_of(const Totals& totals) {
  const double busy = totals.busy_seconds();
  const auto per_layer = [&](const Traffic& traffic, const CountHistogram& layer_ns) {
    return LayerTrafficStats{traffic_of(traffic, busy), layer_ns.mean() / 1e3,
                             double(layer_ns.quantile(.99)) / 1e3};
  };
  return {{totals.layers_by_dispatch.begin(), totals.layers_by_dispatch.end()},
          per_layer(totals.dispatch, totals.dispatch_ns),
          per_layer(totals.combine, totals.combine_ns),
          traffic_of(totals.all_reduce, busy)};
}

BreakdownStats breakdown_of(const Totals& totals) {
  const double busy = totals.busy_seconds();
  BreakdownStats breakdown;
  breakdown.busy_seconds = busy;
  std::array<double, evidence_names.size()> by_ground{};
  for (std::size_t part = 0; part < part_names.size(); ++part) {
    const auto& row = totals.parts[part];
    const double seconds = std::accumulate(row.begin(), row.end(), 0.0);
    PartStats& entry = breakdown.parts.emplace_back(part_names[part], PartStats{}).second;
    entry.seconds = seconds;
    entry.share = ratio(seconds, busy);
    for (std::size_t r = 0; r < row.size(); ++r) {
      if (row[r] > 0) entry.bound_by.emplace_back(resource_names[r], row[r]);
    }
    for (std::size_t g = 0; g < evidence_names.size(); ++g)
      by_ground[g] += totals.by_evidence[part][g];
  }
  for (std::size_t r = 0; r < resource_names.size(); ++r) {
    double seconds = 0;
    for (const auto& row : totals.parts) seconds += row[r];
    breakdown.bound_by.emplace_back(resource_names[r], seconds);
  }
  const auto share_of = [&](Evidence evidence) { return ratio(by_ground[at(evidence)], busy); };
  breakdown.extrapolated_share = share_of(Evidence::extrapolated);
  breakdown.unmeasured_share = share_of(Evidence::unmeasured);
  const double idle = std::accumulate(totals.idle.begin(), totals.idle.end(), 0.0);
  breakdown.barrier_idle_share = ratio(idle, busy * double(totals.idle.size()));
  breakdown.barrier_idle_seconds_per_gpu = totals.idle;
  const Seconds exposed = totals.dispatch.time + totals.combine.time + totals.all_reduce.time -
                          totals.dispatch.hidden - totals.combine.hidden - totals.all_reduce.hidden;
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

StepStats steps_of(const ServedModel& e, const Totals& totals) {
  StepStats steps;
  const double busy = totals.busy_seconds();
  std::int64_t count = 0;
  for (const StepTotals& kind : totals.by_kind) count += kind.steps;
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const StepTotals& part = totals.by_kind[kind];
    const auto n = double(part.steps);
    StepKindStats& stats =
        steps.by_kind.emplace_back(step_kind_names[kind], StepKindStats{}).second;
    stats = {
        .steps = part.steps,
        .seconds = part.seconds,
        .share_of_time = ratio(part.seconds, busy),
        .mean_ms = ratio(part.seconds * 1e3, n),
        .mean_prefill_tokens = ratio(part.prefill_tokens, n),
        .mean_decode_tokens = ratio(part.decode_tokens, n),
        .mean_decode_tokens_per_rank = ratio(part.decode_tokens, n * e.parallel.dp),
        .mean_dummy_ranks = ratio(part.dummy_ranks, n),
        .decode_tokens_per_s_per_gpu = ratio(part.decode_tokens, part.seconds * e.parallel.gpus()),
        .parts_mean_ms = {}};
    for (std::size_t p = 0; p < part_names.size(); ++p) {
      stats.parts_mean_ms.emplace_back(part_names[p], ratio(part.parts[p] * 1e3, n));
    }
  }
  for (std::size_t rule = 0; rule < 3; ++rule) {
    steps.by_rule.emplace_back(step_kind_names[rule],
                               RuleShares{ratio(double(totals.steps_by_rule[rule]), double(count)),
                                          ratio(totals.seconds_by_rule[rule], busy)});
  }
  return steps;
}

MemoryStats memory_of(const MemoryBudget& memory) {
  return {.capacity_bytes = memory.capacity.value(),
          .usable_bytes = memory.usable.value(),
          .weights_bytes = memory.weights.value(),
          .experts_bytes = memory.experts.value(),
          .replicas_bytes = memory.replicas.value(),
          .buffers_bytes = memory.buffers.value(),
          .rebalance_buffer_bytes = memory.rebalance_buffer.value(),
          .kv_bytes = memory.kv.value()};
}

AfdStats afd_of(const Deployment& e, const Totals& totals) {
  const ParallelPlan& plan = e.parallel;
  const double busy = totals.busy_seconds();
  const auto share = [&](AfdStage stage) { return ratio(totals.afd.busy_of(stage).count(), busy); };
  // Of the mean GPU from `first` to before `end`.
  const auto idle_share = [&](int first, int end) {
    if (totals.idle.empty()) return 0.0;
    const auto begin = totals.idle.begin();
    const double idle = std::accumulate(begin + first, begin + end, 0.0);
    return std::clamp(ratio(idle, busy * (end - first)), 0.0, 1.0);
  };
  AfdStats stats{.attention_gpus = plan.attention_gpus(),
                 .ffn_gpus = plan.ffn_gpus,
                 .micro_batches = plan.micro_batches,
                 .attention_idle_share = idle_share(0, plan.attention_gpus()),
                 .ffn_idle_share = idle_share(plan.attention_gpus(), plan.gpus()),
                 .critical_path = {},
                 .ffn_memory = memory_of(*e.ffn_memory)};
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
                                     ratio(totals.afd.critical[stage].count(), busy));
  }
  if (totals.afd.stalls > Seconds{})
    stats.critical_path.emplace_back("rebalancing", ratio(totals.afd.stalls.count(), busy));
  stats.ffn_memory.kv_bytes = 0;  // what is left there holds no KV cache
  return stats;
}

KvStats kv_of(const Deployment& e, const Totals& totals, std::int64_t total_blocks) {
  const double used = ratio(totals.kv_block_seconds, totals.busy_seconds());
  KvStats stats{.block_tokens = e.kv_layout.block_tokens,
                .blocks_per_rank = e.memory.kv_blocks,
                .mean_utilization = ratio(used, double(total_blocks)),
                .peak_utilization = ratio(double(totals.kv_blocks_peak), double(total_blocks)),
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

Named<TierStats> tiers_of(const PoolRun& pool) {
  Named<TierStats> all;
  const std::vector<KvTierPlan>& tiers = pool.deployment.kv_cache.tiers;
  for (std::size_t depth = 0; depth < tiers.size(); ++depth)
    all.emplace_back(tiers[depth].name, tier_stats(pool, depth));
  return all;
}

// As vLLM counts: the length is what a verification yields, its own token included.
SpeculationStats speculation_of(const SpeculationTally& tally, double busy) {
  const double length =
      tally.verifications == 0 ? 0.0 : 1 + double(tally.accepted) / double(tally.verifications);
  return {.num_drafts = tally.verifications,
          .num_draft_tokens = tally.drafted,
          .num_accepted_tokens = tally.accepted,
          .draft_acceptance_rate = ratio(double(tally.accepted), double(tally.drafted)),
          .mean_acceptance_length = length,
          .draft_seconds = tally.draft_seconds,
          .draft_share = ratio(tally.draft_seconds, busy)};
}

Named<CoverageStats> coverage_of(const Totals& totals) {
  Named<CoverageStats> phases;
  for (std::size_t phase = 0; phase < 2; ++phase) {
    const RoutingCoverage& coverage = totals.coverage[phase];
    const auto total = double(coverage.total());
    phases.emplace_back(phase_names[phase],
                        CoverageStats{.tokens = coverage.total(),
                                      .recorded = ratio(double(coverage.recorded), total),
                                      .borrowed = ratio(double(coverage.borrowed), total),
                                      .wrapped = ratio(double(coverage.wrapped), total),
                                      .synthetic = ratio(double(coverage.synthetic), total)});
  }
  return phases;
}

ChargeStats charges_of(const Charges& charges) {
  ChargeStats stats{.source = charges.source,
                    .top_k_of_all_tokens_us = charges.top_k_of_all_tokens.count() * 1e6,
                    .host_overhead_us = charges.host_overhead.count() * 1e6,
                    .token_routing = {}};
  for (const auto& [policy, charge] : charges.token_routing) {
    stats.token_routing.emplace_back(
        policy,
        RoutingChargeStats{charge.fixed.count() * 1e6, charge.per_128_active.count() * 1e6});
  }
  return stats;
}

// Each EP group by itself, while it was measured.
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
         .kv_mean_utilization = ratio(group.kv_block_seconds, group.seconds * blocks),
         .kv_peak_utilization = ratio(double(group.kv_blocks_peak), blocks),
         .prefix_hit_rate = ratio(double(group.prefix_hit), double(group.prefix_queried)),
         .preemptions = group.preemptions});
  }
  return instances;
}

RebalancingLog rebalancing_of(const PoolRun& pool) {
  RebalancingLog log;
  for (const InstanceRun& instance : pool.instances) log += instance.rebalancing;
  return log;
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

// Seconds of a request that finished.
double ttft_of(const RequestLife& request) {
  return to_seconds(request.first_token - request.arrival).count();
}
double tpot_of(const RequestLife& request) {
  return to_seconds(request.last_token - request.first_token).count() /
         double(request.output_tokens - 1);
}

// The mean of a latency, in seconds, over those of these requests that finished and have it: with
// at least so many output tokens.
double mean_of(double (*latency)(const RequestLife&), int least_tokens,
               std::span<const RequestLife> requests) {
  double sum = 0;
  std::int64_t served = 0;
  for (const RequestLife& request : requests) {
    if (request.state != RequestLife::State::finished || request.output_tokens < least_tokens)
      continue;
    sum += latency(request);
    ++served;
  }
  return ratio(sum, double(served));
}
double mean_ttft(std::span<const RequestLife> requests) { return mean_of(ttft_of, 0, requests); }
double mean_tpot(std::span<const RequestLife> requests) { return mean_of(tpot_of, 2, requests); }

// By how much more requests arrive than can be served: of each second between two arrivals that
// share of a second is added to the wait. From the first to the last quarter of the requests.
double queue_growth(std::span<const RequestLife> requests) {
  const std::size_t quarter = requests.size() / 4;
  if (quarter == 0) return 0;
  const auto first = requests.first(quarter), last = requests.last(quarter);
  const double between = to_seconds(last[quarter / 2].arrival - first[quarter / 2].arrival).count();
  return ratio(mean_ttft(last) - mean_ttft(first), between);
}

// The mean wait for a first token in each quarter of the requests.
std::array<double, 4> waits_by_quarter(std::span<const RequestLife> requests) {
  const std::size_t quarter = requests.size() / 4;
  std::array<double, 4> waits{};
  for (std::size_t i = 0; i < 4 && quarter > 0; ++i)
    waits[i] = mean_ttft(requests.subspan(i * quarter, quarter));
  return waits;
}

// Whether the wait rises from each quarter to the next, to twice what it was: a queue that grows
// slowly.
bool rises(const std::array<double, 4>& waits) {
  return std::ranges::is_sorted(waits, std::ranges::less_equal{}) &&
         waits.back() >= 2 * waits.front();
}

// Seconds by which a mean latency grows in a second, from the first quarter of these requests to
// the last. 0 where that may be chance: below three standard errors, by four stretches of each
// quarter.
double growth_of(double (*mean_latency)(std::span<const RequestLife>),
                 std::span<const RequestLife> requests) {
  constexpr std::size_t stretches = 16, of_quarter = stretches / 4;
  constexpr double sure = 3;
  const std::size_t length = requests.size() / stretches;
  if (length == 0) return 0;
  const auto quarter = [&](std::size_t first) {
    double sum = 0, squares = 0;
    for (std::size_t i = first; i < first + of_quarter; ++i) {
      const double latency = mean_latency(requests.subspan(i * length, length));
      sum += latency;
      squares += latency * latency;
    }
    const double mean = sum / of_quarter;
    return std::pair(mean, std::max(0., squares / of_quarter - mean * mean) / (of_quarter - 1));
  };
  const auto [before, variance_before] = quarter(0);
  const auto [after, variance_after] = quarter(stretches - of_quarter);
  if (after - before < sure * std::sqrt(variance_before + variance_after)) return 0;
  const std::size_t half_quarter = length * of_quarter / 2;
  const Duration between =
      requests[requests.size() - half_quarter].arrival - requests[half_quarter].arrival;
  return ratio(after - before, to_seconds(between).count());
}

std::span<const RequestLife> measured_of(std::span<const RequestLife> requests,
                                         const Measured& measured) {
  const auto first = std::ranges::lower_bound(requests, measured.begin, {}, &RequestLife::arrival);
  const auto last = std::ranges::upper_bound(requests, measured.end, {}, &RequestLife::arrival);
  return {first, last};
}

// Whether each request that is owed its objectives met all of them, in order of arrival.
std::vector<std::uint8_t> met_in_order(const Deployment& e, const Measured& measured,
                                       std::span<const RequestLife> requests) {
  std::vector<std::uint8_t> met;
  for (const RequestLife& request : requests) {
    if (!measured.holds(request) || request.state == RequestLife::State::cancelled) continue;
    const bool finished = request.state == RequestLife::State::finished;
    met.push_back(
        finished &&
        objectives_met(latency_of(request, e.anchored_ttft), e.slo_of(request.of_class)).all());
  }
  return met;
}

// Requests that are near each other meet the SLO together: how far attainment varies is told by
// stretches of the run, not by single requests.
std::optional<AttainmentAlong> attainment_along(const Deployment& e, const Measured& measured,
                                                std::span<const RequestLife> requests) {
  constexpr std::size_t stretches = 10, fewest = 5;  // requests of a stretch
  if (!e.has_objective(&Slo::ttft) && !e.has_objective(&Slo::tpot) && !e.has_objective(&Slo::e2el))
    return std::nullopt;
  const std::vector<std::uint8_t> all = met_in_order(e, measured, requests);
  const std::span<const std::uint8_t> met(all);
  if (met.size() < stretches * fewest) return std::nullopt;
  const auto share = [](std::span<const std::uint8_t> some) {
    return std::accumulate(some.begin(), some.end(), 0.0) / double(some.size());
  };
  const double mean = share(met);
  double squares = 0;
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t from = i * met.size() / stretches, to = (i + 1) * met.size() / stretches;
    squares += std::pow(share(met.subspan(from, to - from)) - mean, 2);
  }
  constexpr Measured whole{Time::min(), Time::max()};
  return AttainmentAlong{share(met.first(met.size() / 2)), share(met.subspan(met.size() / 2)),
                         std::sqrt(squares / double(stretches * (stretches - 1))),
                         share(met_in_order(e, whole, requests))};
}

// Which part of the run was measured, and whether it is a steady state. Whose clients wait for each
// other (a closed loop) never asks for more than is served. Requests that all wait from the start
// have no steady state: the queue only falls.
MeasurementStats measurement_of(const Deployment& e, Measurement::Window window,
                                const Totals& totals, std::span<const RequestLife> requests) {
  using Window = Measurement::Window;
  constexpr double overload = 0.1, rising = 0.005;  // of the rate that is served
  constexpr std::array<const char*, 3> windows{"steady", "after_warm_up", "whole"};
  const double seconds = to_seconds(totals.end - totals.begin).count();
  const bool closed = e.workload.arrivals->closed();
  const double growth = closed ? 0 : queue_growth(requests);
  const double arrivals =
      requests.empty() ? 0 : to_seconds(requests.back().arrival - requests.front().arrival).count();
  const double served = ratio(double(totals.completed + totals.abandoned), seconds);
  const double offered = ratio(double(requests.size()) - 1, arrivals);
  // As many leave as arrive, where a tenth may be chance.
  const bool level = double(totals.completed + totals.abandoned) >= 0.9 * double(totals.arrived);
  const char* state = window == Window::steady && (closed || level) ? "stable" : "unsteady";
  const bool at_once = requests.size() > 1 && arrivals == 0;
  if (window == Window::whole) state = "too_short";
  if (at_once) state = "offline";
  // A quarter of a few requests tells nothing.
  constexpr std::size_t telling = 16;
  if (requests.size() >= telling &&
      (growth > overload || (growth > rising && rises(waits_by_quarter(requests)))))
    state = "overloaded";
  const std::span<const RequestLife> measured = measured_of(requests, {totals.begin, totals.end});
  return {.window = windows[std::size_t(window)],
          .state = state,
          .begin_s = to_seconds(totals.begin).count(),
          .end_s = to_seconds(totals.end).count(),
          .offered_request_rate = closed || at_once ? std::nullopt : std::optional(offered),
          .served_request_rate = served,
          .ttft_growth = closed ? 0 : growth_of(mean_ttft, measured),
          .tpot_growth = growth_of(mean_tpot, measured),
          .attainment = attainment_along(e, {totals.begin, totals.end}, requests)};
}

std::optional<PrefillAlignmentStats> prefill_alignment_of(const Deployment& e,
                                                          const Totals& totals) {
  if (e.prefill_alignment.type == "none") return std::nullopt;
  std::int64_t steps = 0;
  for (const StepTotals& kind : totals.by_kind) steps += kind.steps;
  return PrefillAlignmentStats{
      .type = e.prefill_alignment.type,
      .steps_held = totals.steps_held,
      .share_of_steps = ratio(double(totals.steps_held), double(steps)),
      .tokens_held = totals.tokens_held,
      .mean_wait_ms = 1e3 * ratio(totals.prompt_seconds_held, double(totals.arrived))};
}

PoolStats pool_of(const PoolRun& pool, const Totals& totals, Time now) {
  const Deployment& e = pool.deployment;
  const Measurement& measurement = pool.measurement;
  PoolStats stats;
  stats.steps = steps_of(e, totals);
  stats.experts = experts_of(e, totals, measurement);
  stats.expert_memory = expert_memory_of(e, totals.expert_memory);
  stats.expert_buffers = {e.buffer_tokens, totals.cut_steps, totals.cut_rank_steps};
  stats.prefill_alignment = prefill_alignment_of(e, totals);
  stats.communication = communication_of(totals);
  stats.breakdown = breakdown_of(totals);
  if (e.parallel.afd()) stats.afd = afd_of(e, totals);
  stats.charges = charges_of(e.charges);
  stats.memory = memory_of(e.memory);
  stats.kv = kv_of(e, totals, measurement.total_blocks());
  stats.tiers = tiers_of(pool);
  if (e.speculation.tokens > 0) {
    stats.speculative = speculation_of(totals.speculation, totals.busy_seconds());
  }
  if (e.charges.request_routing > Seconds{}) stats.request_router = router_of(pool, now);
  stats.sampled = pool.sampled;
  stats.routing_coverage = coverage_of(totals);
  stats.rebalancing = rebalancing_of(pool);
  stats.failures = failures_of(pool, now);
  stats.over_time = measurement.over_time().buckets(measurement.total_blocks());
  return stats;
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

// Which groups were in which pool, over the whole run.
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
  report.measurement = measurement_of(e, window, totals.back(), requests.lives());
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
