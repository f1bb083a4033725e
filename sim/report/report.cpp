// SPDX-License-Identifier: Apache-2.0
#include "sim/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "sim/experiment/pools.hpp"
#include "traces/requests/arrivals.hpp"

namespace moesim {

namespace {

constexpr std::string_view version = "0.1.0";

double ms(Duration duration) { return to_seconds(duration).count() * 1e3; }
double ratio(double a, double b) { return b == 0 ? 0 : a / b; }

void add_summary(OrderedJson& metrics, const std::string& name, const Summary& summary) {
  if (summary.count == 0) {
    for (const char* statistic : {"mean", "median", "std", "p50", "p90", "p95", "p99"}) {
      metrics[fmt::format("{}_{}_ms", statistic, name)] = nullptr;
    }
    return;
  }
  metrics["mean_" + name + "_ms"] = summary.mean;
  metrics["median_" + name + "_ms"] = summary.p50;
  metrics["std_" + name + "_ms"] = summary.std;
  metrics["p50_" + name + "_ms"] = summary.p50;
  metrics["p90_" + name + "_ms"] = summary.p90;
  metrics["p95_" + name + "_ms"] = summary.p95;
  metrics["p99_" + name + "_ms"] = summary.p99;
}

struct Latency {
  double ttft;  // ms, as are the others
  std::optional<double> tpot;
  double e2el;
};

// TTFT = first token - arrival, corrected by measured runs where there are any; TPOT = (e2el -
// ttft)/(output - 1) for outputs of two tokens and more.
Latency latency_of(const RequestLife& request, double anchored_ttft) {
  const double ttft = ms(request.first_token - request.arrival);
  const double e2el = ms(request.last_token - request.arrival);
  Latency latency{ttft * anchored_ttft, std::nullopt, e2el + ttft * (anchored_ttft - 1)};
  if (request.output_tokens > 1) latency.tpot = (e2el - ttft) / (request.output_tokens - 1);
  return latency;
}

// Which objectives a request met; those that nobody set, it met.
struct Met {
  bool ttft, tpot, e2el;
  bool all() const { return ttft && tpot && e2el; }
};

Met objectives_met(const Latency& latency, const Slo& slo) {
  const auto within = [](double value, const std::optional<Seconds>& limit) {
    return !limit || value <= limit->count() * 1e3;
  };
  return {within(latency.ttft, slo.ttft), within(latency.tpot.value_or(0), slo.tpot),
          within(latency.e2el, slo.e2el)};
}

// Requests of the whole run, and of those that arrived while it was measured.
struct RequestCounts {
  using State = RequestLife::State;
  std::array<std::int64_t, 6> all{}, measured{};  // by state
  std::int64_t arrived = 0;                       // while measured
  std::int64_t ttft = 0, tpot = 0, e2el = 0, good = 0;

  std::int64_t of(State state) const { return all[std::size_t(state)]; }
  std::int64_t share_of(State state) const { return measured[std::size_t(state)]; }
  // Who is owed its objectives: nobody knows what those who left by themselves would have got.
  std::int64_t owed() const { return arrived - share_of(State::cancelled); }
};

void add_attainment(OrderedJson& metrics, const RequestCounts& counts, const Slo& slo) {
  const auto add = [&](const char* name, const std::optional<Seconds>& limit, std::int64_t met) {
    if (limit) metrics["attainment"][name] = ratio(double(met), double(counts.owed()));
  };
  add("ttft", slo.ttft, counts.ttft);
  add("tpot", slo.tpot, counts.tpot);
  add("e2el", slo.e2el, counts.e2el);
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

OrderedJson metrics_of(const Experiment& e, std::span<const Totals> pools,
                       std::vector<Repeated> gaps, std::span<const RequestLife> requests) {
  using State = RequestLife::State;
  const Time begin = pools.front().begin, end = pools.front().end;  // all are measured alike
  const Sums totals = sum(pools);
  const auto measured = [&](const RequestLife& request) {
    return request.arrival >= begin && request.arrival <= end;
  };
  RequestCounts counts;
  for (const RequestLife& request : requests) {
    ++counts.all[std::size_t(request.state)];
    if (!measured(request)) continue;
    ++counts.arrived;
    ++counts.measured[std::size_t(request.state)];
    // One that was rejected or timed out misses every objective and has no latency.
    if (request.state != State::finished) continue;
    const Latency latency = latency_of(request, e.anchored_ttft);
    const Met met = objectives_met(latency, e.slo);
    counts.ttft += met.ttft ? 1 : 0;
    counts.tpot += met.tpot ? 1 : 0;
    counts.e2el += met.e2el ? 1 : 0;
    counts.good += met.all() ? 1 : 0;
  }
  // One after the other, gaps first: of a long run each takes much memory.
  const Summary itl_summary = summarize(std::move(gaps));
  const auto summary_of = [&](const auto wanted) {
    std::vector<double> samples;
    samples.reserve(std::size_t(counts.share_of(State::finished)));
    for (const RequestLife& request : requests) {
      if (!measured(request) || request.state != State::finished) continue;
      const Latency latency = latency_of(request, e.anchored_ttft);
      if (const std::optional<double> value = latency.*wanted) samples.push_back(*value);
    }
    return summarize(std::move(samples));
  };
  const double seconds = to_seconds(end - begin).count();
  const double gpus = gpus_of(e);
  const double output = ratio(totals.tokens.output, seconds);
  const double prompt = ratio(totals.tokens.prompt, seconds);
  const double request_rate = ratio(double(totals.completed), seconds);
  const Summary tpot_summary = summary_of(&Latency::tpot);

  OrderedJson metrics;
  metrics["completed"] = counts.of(State::finished);
  metrics["rejected"] = counts.of(State::rejected);
  if (!e.workload.patience.endless()) {
    const auto share = [&](State state) {
      return ratio(double(counts.share_of(state)), double(counts.arrived));
    };
    metrics["timed_out"] = counts.of(State::timed_out);
    metrics["cancelled"] = counts.of(State::cancelled);
    metrics["timeout_share"] = share(State::timed_out);
    metrics["cancelled_share"] = share(State::cancelled);
  }
  metrics["measured_requests"] = counts.arrived;
  metrics["completed_while_measured"] = totals.completed;
  metrics["duration_s"] = seconds;
  metrics["request_throughput"] = request_rate;
  // Of those that finish, the share that met every objective.
  metrics["request_goodput"] =
      request_rate * ratio(double(counts.good), double(counts.share_of(State::finished)));
  metrics["slo_attainment"] = ratio(double(counts.good), double(counts.owed()));
  add_attainment(metrics, counts, e.slo);
  metrics["output_throughput"] = output;
  metrics["total_token_throughput"] = output + prompt;
  add_summary(metrics, "ttft", summary_of(&Latency::ttft));
  add_summary(metrics, "tpot", tpot_summary);
  add_summary(metrics, "itl", itl_summary);
  add_summary(metrics, "e2el", summary_of(&Latency::e2el));
  metrics["tokens_per_s_per_gpu"] = output / gpus;
  metrics["tokens_per_s_per_user"] =
      tpot_summary.count == 0 ? OrderedJson() : OrderedJson(ratio(1000, tpot_summary.p50));
  metrics["total_tokens_per_s_per_gpu"] = (output + prompt) / gpus;
  // mfu: 2 flops per active weight and computed token, against the peak of the experts' precision.
  const GpuSpec& gpu = e.cluster.gpu;
  const double peak = gpu.peak(e.precision.experts, e.precision.activations).value();
  metrics["mfu"] =
      ratio(2 * count_parameters(e.model).active * totals.tokens.computed, seconds * peak * gpus);
  metrics["mbu"] = ratio(totals.tokens.hbm_bytes, seconds * gpu.hbm_bandwidth.value() * gpus);
  // All GPUs at the price of their hour; nothing where nobody gives one.
  metrics["cost_per_million_output_tokens"] = nullptr;
  if (gpu.price && output > 0) {
    constexpr double seconds_per_hour = 3600;
    metrics["cost_per_million_output_tokens"] =
        gpu.price->dollars_per_hour * gpus / seconds_per_hour / output * 1e6;
  }
  return metrics;
}

OrderedJson distribution(const CountHistogram& histogram) {
  return {{"mean", histogram.mean()},
          {"p50", histogram.quantile(.50)},
          {"p95", histogram.quantile(.95)},
          {"p99", histogram.quantile(.99)},
          {"max", histogram.max()}};
}

// Of what ranks do in each step of one layer: over (rank, step), and each rank's sum over the
// steps.
OrderedJson rank_distribution(const CountHistogram& histogram,
                              const std::vector<std::int64_t>& total_by_rank) {
  OrderedJson json = distribution(histogram);
  json["total_by_rank"] = total_by_rank;
  return json;
}

OrderedJson expert_summary(const ExpertTotals& totals) {
  const double n = totals.layer_steps;
  return {
      {"max_activated_mean", ratio(totals.max_activated, n)},
      {"activated_mean", ratio(totals.mean_activated, n)},
      {"active_experts_mean", ratio(totals.active_experts, n)},
      {"max_tokens_mean", ratio(totals.max_tokens, n)},
      {"tokens_mean", ratio(totals.mean_tokens, n)},
      {"balancedness", ratio(totals.mean_tokens, totals.max_tokens)},
      {"imbalance", ratio(totals.max_tokens, totals.mean_tokens)},
      {"cv", ratio(totals.cv, n)},
      {"gemm_occupancy", ratio(totals.useful_rows, totals.padded_rows)},
      {"hot_rank_events", {{"layer_steps", totals.hot_layer_steps}, {"worst", totals.hottest}}}};
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
    all.useful_rows += part.useful_rows;
    all.padded_rows += part.padded_rows;
    all.capacity += part.capacity;
    all.hot_layer_steps += part.hot_layer_steps;
    all.hottest = std::max(all.hottest, part.hottest);
  }
  return all;
}

// Tokens per expert over the whole run, [workload tag][layer][expert]: what was replayed, row by
// row.
OrderedJson expert_counts(const Experiment& e, const Measurement& measurement) {
  std::map<std::string, std::vector<std::vector<std::int64_t>>> counts;
  const auto layers = static_cast<std::size_t>(e.model.moe_layers());
  const auto experts = static_cast<std::size_t>(e.model.experts);
  const auto k = static_cast<std::size_t>(e.model.experts_per_token);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const RoutingTrace& trace =
        phase == Phase::prefill && e.prefill_trace ? *e.prefill_trace : e.trace;
    const std::vector<std::uint32_t>& uses = measurement.row_uses(phase);
    trace.visit([&](auto ids) {
      for (const TraceRequest& request : trace.requests()) {
        auto& tag = counts[trace.workloads()[static_cast<std::size_t>(request.workload)]];
        tag.resize(layers, std::vector<std::int64_t>(experts));
        for (std::int64_t r = request.row_start; r < request.row_start + request.num_tokens; ++r) {
          const auto row = static_cast<std::size_t>(r);
          if (uses[row] == 0) continue;
          const auto* id = ids.data() + row * layers * k;
          for (std::size_t l = 0; l < layers; ++l) {
            for (std::size_t j = 0; j < k; ++j)
              tag[l][static_cast<std::size_t>(*id++)] += uses[row];
          }
        }
      }
    });
  }
  return counts;
}

// Shares of the selections that the gate made.
void add_capacity(OrderedJson& experts, const CapacityTally& tally) {
  const auto share = [&](std::int64_t selections) {
    return ratio(double(selections), double(tally.selections));
  };
  experts["dropped"] = share(tally.dropped);
  experts["rerouted"] = share(tally.rerouted);
  experts["delayed"] = share(tally.delayed);
}

OrderedJson expert_memory_of(const Experiment& e, const ExpertMemoryTally& tally) {
  if (!e.expert_memory) return {{"type", "resident"}};
  const auto runs = double(tally.hits + tally.misses);
  return {{"type", e.expert_memory->type},
          {"hits", tally.hits},
          {"misses", tally.misses},
          {"hit_rate", ratio(double(tally.hits), runs)},
          {"streamed", tally.streamed},
          {"prefetch",
           {{"issued", tally.prefetches},
            {"used", tally.prefetches_used},
            {"late", tally.late},
            {"wasted", tally.prefetches_wasted}}},
          {"host_bytes", tally.host_bytes},
          {"nvme_bytes", tally.nvme_bytes},
          {"stall_seconds", tally.stall_seconds},
          {"host_source", e.expert_memory->host.source}};
}

OrderedJson experts_of(const Experiment& e, const Totals& totals, const Measurement& measurement) {
  OrderedJson experts = expert_summary(sum(totals.by_kind));
  experts["by_step_kind"] = OrderedJson::object();
  experts["replicas"] =
      e.placement.empty() ? 0 : e.placement.front().slots() - e.placement.front().experts();
  experts["replication_effective"] = e.replication_effective;
  add_capacity(experts, sum(totals.by_kind).capacity);
  experts["hot_rank_threshold"] = e.hot_rank_threshold;
  for (const HotRank& hot : totals.hot_ranks) {
    experts["hottest_ranks"].push_back(
        {{"time_s", to_seconds(hot.at).count()},
         {"layer", e.trace.meta().layer_ids[static_cast<std::size_t>(hot.layer)]},
         {"rank", hot.rank},
         {"ratio", hot.ratio}});
  }
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const ExpertTotals& part = totals.by_kind[kind].experts;
    if (part.layer_steps == 0) continue;
    OrderedJson& by_kind = experts["by_step_kind"][std::string(step_kind_names[kind])];
    by_kind = expert_summary(part);
    for (std::size_t l = 0; l < part.layers.size(); ++l) {
      const ExpertTotals::Layer& layer = part.layers[l];
      by_kind["layers"].push_back(
          {{"layer", e.trace.meta().layer_ids[l]},
           {"rank_activated", rank_distribution(layer.rank_activated, layer.activated_of_rank)},
           {"rank_tokens", rank_distribution(layer.rank_tokens, layer.tokens_of_rank)},
           {"expert_tokens", distribution(layer.expert_tokens)}});
    }
  }
  if (e.expert_counts) experts["tokens_per_expert_by_workload"] = expert_counts(e, measurement);
  return experts;
}

OrderedJson traffic_of(const Traffic& traffic, double seconds) {
  return {{"seconds", traffic.seconds},
          {"hidden_seconds", traffic.hidden},
          {"share_of_busy_time", ratio(traffic.seconds, seconds)},
          {"nvlink_bytes", traffic.nvlink_bytes},
          {"network_bytes", traffic.network_bytes}};
}

OrderedJson communication_of(const Totals& totals) {
  const double busy = totals.busy_seconds();
  const auto per_layer = [](OrderedJson traffic, const CountHistogram& layer_ns) {
    traffic["mean_us_per_layer"] = layer_ns.mean() / 1e3;
    traffic["p99_us_per_layer"] = double(layer_ns.quantile(.99)) / 1e3;
    return traffic;
  };
  OrderedJson layers_by_dispatch = OrderedJson::object();
  for (const auto& [name, layers] : totals.layers_by_dispatch) {
    layers_by_dispatch[std::string(name)] = layers;
  }
  return {{"layers_by_dispatch", std::move(layers_by_dispatch)},
          {"dispatch", per_layer(traffic_of(totals.dispatch, busy), totals.dispatch_ns)},
          {"combine", per_layer(traffic_of(totals.combine, busy), totals.combine_ns)},
          {"tp_all_reduce", traffic_of(totals.all_reduce, busy)}};
}

OrderedJson breakdown_of(const Totals& totals) {
  const double busy = totals.busy_seconds();
  OrderedJson by_part, by_resource;
  std::array<double, evidence_names.size()> by_ground{};
  for (std::size_t part = 0; part < part_names.size(); ++part) {
    const auto& row = totals.parts[part];
    const double seconds = std::accumulate(row.begin(), row.end(), 0.0);
    OrderedJson& entry = by_part[std::string(part_names[part])];
    entry = {{"seconds", seconds}, {"share", ratio(seconds, busy)}};
    for (std::size_t r = 0; r < row.size(); ++r) {
      if (row[r] > 0) entry["bound_by"][std::string(resource_names[r])] = row[r];
    }
    for (std::size_t g = 0; g < evidence_names.size(); ++g) by_ground[g] += totals.grounds[part][g];
  }
  for (std::size_t r = 0; r < resource_names.size(); ++r) {
    double seconds = 0;
    for (const auto& row : totals.parts) seconds += row[r];
    by_resource[std::string(resource_names[r])] = seconds;
  }
  const double idle = std::accumulate(totals.idle.begin(), totals.idle.end(), 0.0);
  const double exposed = totals.dispatch.seconds + totals.combine.seconds +
                         totals.all_reduce.seconds - totals.dispatch.hidden -
                         totals.combine.hidden - totals.all_reduce.hidden;
  OrderedJson breakdown{
      {"busy_seconds", busy},
      {"parts", by_part},
      {"bound_by", by_resource},
      {"extrapolated_share", ratio(by_ground[std::size_t(Evidence::extrapolated)], busy)},
      {"unmeasured_share", ratio(by_ground[std::size_t(Evidence::unmeasured)], busy)},
      {"barrier_idle_share", ratio(idle, busy * double(totals.idle.size()))},
      {"barrier_idle_seconds_per_gpu", totals.idle},
      {"exposed_communication_share", ratio(exposed, busy)}};
  // Only kernels that tables priced have these grounds.
  for (const Evidence evidence :
       {Evidence::measured, Evidence::interpolated, Evidence::carried_over}) {
    const auto g = static_cast<std::size_t>(evidence);
    if (by_ground[g] > 0)
      breakdown[fmt::format("{}_share", evidence_names[g])] = ratio(by_ground[g], busy);
  }
  return breakdown;
}

OrderedJson steps_of(const Experiment& e, const Totals& totals) {
  OrderedJson steps;
  const double busy = totals.busy_seconds();
  std::int64_t count = 0;
  for (const StepTotals& kind : totals.by_kind) count += kind.steps;
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const StepTotals& part = totals.by_kind[kind];
    const auto n = double(part.steps);
    const std::string name(step_kind_names[kind]);
    steps[name] = {{"steps", part.steps},
                   {"seconds", part.seconds},
                   {"share_of_time", ratio(part.seconds, busy)},
                   {"mean_ms", ratio(part.seconds * 1e3, n)},
                   {"mean_prefill_tokens", ratio(part.prefill_tokens, n)},
                   {"mean_decode_tokens", ratio(part.decode_tokens, n)},
                   {"mean_decode_tokens_per_rank", ratio(part.decode_tokens, n * e.parallel.dp)},
                   {"mean_dummy_ranks", ratio(part.dummy_ranks, n)},
                   {"decode_tokens_per_s_per_gpu",
                    ratio(part.decode_tokens, part.seconds * e.parallel.gpus())}};
    for (std::size_t p = 0; p < part_names.size(); ++p) {
      steps[name]["parts_mean_ms"][std::string(part_names[p])] = ratio(part.parts[p] * 1e3, n);
    }
  }
  for (std::size_t rule = 0; rule < 3; ++rule) {
    steps["by_rule"][std::string(step_kind_names[rule])] = {
        {"share_of_steps", ratio(double(totals.steps_by_rule[rule]), double(count))},
        {"share_of_time", ratio(totals.seconds_by_rule[rule], busy)}};
  }
  return steps;
}

OrderedJson memory_of(const MemoryBudget& memory) {
  return {{"capacity_bytes", memory.capacity.value()},
          {"usable_bytes", memory.usable.value()},
          {"weights_bytes", memory.weights.value()},
          {"experts_bytes", memory.experts.value()},
          {"replicas_bytes", memory.replicas.value()},
          {"buffers_bytes", memory.buffers.value()},
          {"rebalance_buffer_bytes", memory.rebalance_buffer.value()},
          {"kv_bytes", memory.kv.value()}};
}

OrderedJson kv_of(const Experiment& e, const Totals& totals, std::int64_t total_blocks) {
  const double busy = totals.busy_seconds();
  const double used = ratio(totals.kv_block_seconds, busy);
  return {{"block_tokens", e.kv_layout.block_tokens},
          {"blocks_per_rank", e.memory.kv_blocks},
          {"mean_utilization", ratio(used, double(total_blocks))},
          {"peak_utilization", ratio(double(totals.kv_blocks_peak), double(total_blocks))},
          {"preemptions", totals.preemptions},
          {"prefix_caching", e.prefix_caching},
          {"prefix_queried_tokens", totals.prefix_queried},
          {"prefix_hit_tokens", totals.prefix_hit},
          {"prefix_hit_rate", ratio(double(totals.prefix_hit), double(totals.prefix_queried))}};
}

// Keys as vLLM counts: the length is what a verification yields, its own token included.
OrderedJson speculation_of(const SpeculationTally& tally, double busy) {
  return {
      {"num_drafts", tally.verifications},
      {"num_draft_tokens", tally.drafted},
      {"num_accepted_tokens", tally.accepted},
      {"draft_acceptance_rate", ratio(double(tally.accepted), double(tally.drafted))},
      {"mean_acceptance_length",
       tally.verifications == 0 ? 0.0 : 1 + double(tally.accepted) / double(tally.verifications)},
      {"draft_seconds", tally.draft_seconds},
      {"draft_share", ratio(tally.draft_seconds, busy)}};
}

OrderedJson coverage_of(const Totals& totals) {
  OrderedJson json;
  for (std::size_t phase = 0; phase < 2; ++phase) {
    const RoutingCoverage& coverage = totals.coverage[phase];
    const auto total = double(coverage.total());
    json[std::string(phase_names[phase])] = {
        {"tokens", coverage.total()},
        {"recorded", ratio(double(coverage.recorded), total)},
        {"borrowed", ratio(double(coverage.borrowed), total)},
        {"wrapped", ratio(double(coverage.wrapped), total)},
        {"synthetic", ratio(double(coverage.synthetic), total)}};
  }
  return json;
}

OrderedJson charges_of(const Charges& charges) {
  OrderedJson json{{"source", charges.source},
                   {"top_k_of_all_tokens_us", charges.top_k_of_all_tokens.count() * 1e6},
                   {"host_overhead_us", charges.host_overhead.count() * 1e6}};
  for (const auto& [policy, charge] : charges.token_routing) {
    json["token_routing"][policy] = {{"fixed_us", charge.fixed.count() * 1e6},
                                     {"per_128_active_us", charge.per_128_active.count() * 1e6}};
  }
  return json;
}

// Each EP group by itself, while it was measured.
OrderedJson instances_of(const PoolRun& pool, const Totals& totals) {
  const double seconds = to_seconds(totals.end - totals.begin).count();
  const auto blocks = double(pool.measurement.total_blocks());
  OrderedJson json = OrderedJson::array();
  for (const InstanceRun& instance : pool.instances) {
    const auto found = totals.groups.find(instance.number);
    const GroupTotals group = found == totals.groups.end() ? GroupTotals{} : found->second;
    const double gpus = pool.experiment.parallel.gpus();
    json.push_back(
        {{"instance", instance.number},
         {"steps", group.steps},
         {"mean_step_ms", ratio(group.seconds * 1e3, double(group.steps))},
         {"utilization", ratio(group.busy, seconds)},
         {"barrier_idle_share", ratio(group.idle, group.seconds * gpus)},
         {"output_tokens", group.output_tokens},
         {"prefill_tokens", group.prefill_tokens},
         {"decode_tokens", group.decode_tokens},
         {"kv_mean_utilization", ratio(group.kv_block_seconds, group.seconds * blocks)},
         {"kv_peak_utilization", ratio(double(group.kv_blocks_peak), blocks)},
         {"prefix_hit_rate", ratio(double(group.prefix_hit), double(group.prefix_queried))},
         {"preemptions", group.preemptions}});
  }
  return json;
}

OrderedJson rebalancing_of(const PoolRun& pool) {
  RebalancingLog log;
  for (const InstanceRun& instance : pool.instances) log += instance.rebalancing;
  return to_json(log);
}

OrderedJson failures_of(const PoolRun& pool, Time now) {
  OrderedJson failures = OrderedJson::array();
  for (const InstanceRun& instance : pool.instances) {
    for (OrderedJson& outage : to_json(instance.outages, now)) {
      if (pool.instances.size() > 1) outage["instance"] = instance.number;
      failures.push_back(std::move(outage));
    }
  }
  return failures;
}

// The mean TTFT, in seconds, of these requests; as far as they got a token.
double mean_ttft(std::span<const RequestLife> requests) {
  double sum = 0;
  std::int64_t served = 0;
  for (const RequestLife& request : requests) {
    if (request.state != RequestLife::State::finished) continue;
    sum += to_seconds(request.first_token - request.arrival).count();
    ++served;
  }
  return ratio(sum, double(served));
}

// By how much more requests arrive than can be served: of each second between two arrivals that
// share of a second is added to the wait. From the first to the last quarter of the requests.
double queue_growth(std::span<const RequestLife> requests) {
  const std::size_t quarter = requests.size() / 4;
  if (quarter == 0) return 0;
  const auto first = requests.first(quarter), last = requests.last(quarter);
  const double between = to_seconds(last[quarter / 2].arrival - first[quarter / 2].arrival).count();
  return ratio(mean_ttft(last) - mean_ttft(first), between);
}

// Which part of the run was measured, and whether it is a steady state. Whose clients wait for each
// other (a closed loop) never asks for more than is served.
OrderedJson measurement_of(const Experiment& e, Measurement::Window window, const Totals& totals,
                           std::span<const RequestLife> requests) {
  using Window = Measurement::Window;
  constexpr double overload = 0.1;  // of the rate that is served
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
  if (window == Window::whole) state = "too_short";
  if (growth > overload) state = "overloaded";
  OrderedJson json{{"window", windows[std::size_t(window)]},
                   {"state", state},
                   {"begin_s", to_seconds(totals.begin).count()},
                   {"end_s", to_seconds(totals.end).count()},
                   {"offered_request_rate", nullptr},
                   {"served_request_rate", served}};
  if (!closed) json["offered_request_rate"] = offered;
  return json;
}

// What a pool did, section by section.
void add_sections(OrderedJson& document, const PoolRun& pool, const Totals& totals, Time now) {
  const Experiment& e = pool.experiment;
  const Measurement& measurement = pool.measurement;
  document["steps"] = steps_of(e, totals);
  document["experts"] = experts_of(e, totals, measurement);
  document["expert_memory"] = expert_memory_of(e, totals.expert_memory);
  document["expert_buffers"] = {{"tokens_per_rank", e.buffer_tokens},
                                {"steps_cut", totals.cut_steps},
                                {"rank_steps_cut", totals.cut_rank_steps}};
  document["communication"] = communication_of(totals);
  document["breakdown"] = breakdown_of(totals);
  document["charges"] = charges_of(e.charges);
  document["memory"] = memory_of(e.memory);
  document["kv"] = kv_of(e, totals, measurement.total_blocks());
  if (e.speculation.tokens > 0) {
    document["speculative"] = speculation_of(totals.speculation, totals.busy_seconds());
  }
  document["routing_coverage"] = coverage_of(totals);
  document["rebalancing"] = rebalancing_of(pool);
  document["failures"] = failures_of(pool, now);
  document["over_time"] = measurement.over_time().report(measurement.total_blocks());
}

OrderedJson transfers_of(const Pools& pools, const KvTransferTally& tally) {
  const auto mean_ms = [&](Seconds sum) {
    return ratio(sum.count() * 1e3, double(tally.transfers));
  };
  return {{"level", pools.network ? "network" : "nvlink"},
          {"transfers", tally.transfers},
          {"bytes", tally.bytes.value()},
          {"mean_ms", mean_ms(tally.on_links)},
          {"mean_wait_ms", mean_ms(tally.waited)},
          {"mean_exposed_ms", mean_ms(tally.exposed)}};
}

// Of a key, whether its number is a part of a whole.
bool is_share(std::string_view key) {
  constexpr std::array<std::string_view, 8> shares{
      "mfu",         "mbu",      "balancedness",   "gemm_occupancy",
      "utilization", "hit_rate", "slo_attainment", "share"};
  return std::ranges::find(shares, key) != shares.end() || key.starts_with("share_of_") ||
         key.ends_with("_share") || key.ends_with("_utilization") || key.ends_with("_hit_rate");
}

void check_shares(const OrderedJson& document) {
  constexpr double rounding = 1e-9;
  for (const auto& [key, value] : document.items()) {
    if (document.is_object() && (key == "context" || key == "config")) continue;
    if (value.is_structured()) check_shares(value);
    if (!document.is_object() || !value.is_number() || !is_share(key)) continue;
    if (value.get<double>() > 1 + rounding) {
      throw std::logic_error(fmt::format("a share of a report, {}, is {}", key, value.dump()));
    }
  }
}

}  // namespace

bool all_numbers_finite(const OrderedJson& document) {
  if (document.is_number_float()) return std::isfinite(document.get<double>());
  return std::all_of(document.begin(), document.end(), [](const OrderedJson& value) {
    return (!value.is_structured() && !value.is_number_float()) || all_numbers_finite(value);
  });
}

Report write_report(const Experiment& e, std::span<const PoolRun> pools,
                    const KvTransferTally& transfers, const Requests& requests, Time now) {
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
  OrderedJson& document = report.document;
  document["context"] = {{"moesim", version}, {"seed", e.seed}, {"config", e.config}};
  if (e.anchor) {
    document["anchored"] = {{"deployment", e.anchor->deployment},
                            {"runs", e.anchor->tpot.runs},
                            {"leave_one_out_error", e.anchor->tpot.leave_one_out},
                            {"tpot_factor", e.anchored_tpot},
                            {"ttft_factor", e.anchored_tpot * e.anchored_ttft}};
  }
  document["metrics"] = metrics_of(e, totals, std::move(gaps), requests.lives());
  document["measurement"] = measurement_of(e, window, totals.back(), requests.lives());
  add_sections(document, pools.back(), totals.back(), now);
  if (e.pools) {
    OrderedJson& prefill = document["pools"]["prefill"];
    prefill = {{"gpus", gpus_of(e.pools->prefill)},
               {"instances", instances_of(pools.front(), totals.front())}};
    add_sections(prefill, pools.front(), totals.front(), now);
    document["pools"]["decode"] = {{"gpus", gpus_of(e.pools->decode)},
                                   {"instances", instances_of(pools.back(), totals.back())}};
    document["pools"]["kv_transfer"] = transfers_of(*e.pools, transfers);
  } else if (e.instances > 1) {
    document["instances"] = instances_of(pools.back(), totals.back());
  }
  for (const PoolRun& pool : pools) {
    report.work.steps += pool.measurement.steps();
    report.work.routed_ids += pool.measurement.routed_ids();
  }
  check(all_numbers_finite(document), "a report holds a number that is none");
  check_shares(document);
  report.work.generated_tokens = requests.generated_tokens();
  return report;
}

}  // namespace moesim
