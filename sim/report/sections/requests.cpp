// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/requests.hpp"

#include <array>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/report/objectives.hpp"
#include "sim/report/write_up.hpp"

namespace moesim {

using enum Better;

Fields<Attainment> rows_of(const Attainment*) {
  using S = Attainment;
  return {{if_any, "ttft", &S::ttft, "requests that met slo/ttft", "share of requests", more},
          {if_any, "tpot", &S::tpot, "requests that met slo/tpot", "share of requests", more},
          {if_any, "e2el", &S::e2el, "requests that met slo/e2el", "share of requests", more}};
}

namespace {

// mean_ttft_ms, median_ttft_ms, ... of one latency; null where no request has it.
void add_latency(Fields<Metrics>& rows, std::string_view name, std::string_view what,
                 Summary Metrics::*latency) {
  struct Statistic {
    std::string_view name, what;
    double Summary::*value;
  };
  constexpr std::array<Statistic, 7> statistics{{{"mean", "mean", &Summary::mean},
                                                 {"median", "median", &Summary::p50},
                                                 {"std", "standard deviation", &Summary::std},
                                                 {"p50", "median", &Summary::p50},
                                                 {"p90", "90th percentile", &Summary::p90},
                                                 {"p95", "95th percentile", &Summary::p95},
                                                 {"p99", "99th percentile", &Summary::p99}}};
  for (const Statistic& statistic : statistics) {
    rows.push_back({fmt::format("{}_{}_ms", statistic.name, name),
                    [latency, value = statistic.value](const Metrics& metrics) {
                      const Summary& summary = metrics.*latency;
                      return summary.count == 0 ? std::nullopt : std::optional(summary.*value);
                    },
                    fmt::format("{} of {}", statistic.what, what), "ms", less});
  }
}

}  // namespace

Fields<Metrics> rows_of(const Metrics*) {
  using S = Metrics;
  Fields<S> rows{
      {"completed", &S::completed, "requests of the whole run that finished", "", more},
      {"rejected", &S::rejected, "requests that no rank can ever hold", "", less},
      {if_any, "timed_out", &S::timed_out, "requests whose client gave up waiting", "", less},
      {if_any, "cancelled", &S::cancelled, "requests whose client left before the end", "", less},
      {if_any, "timeout_share", &S::timeout_share, "measured requests that timed out",
       "share of requests", less},
      {if_any, "cancelled_share", &S::cancelled_share, "measured requests that were cancelled",
       "share of requests", less},
      {"measured_requests", &S::measured_requests, "requests that arrived while measured"},
      {"completed_while_measured", &S::completed_while_measured,
       "requests that finished while measured"},
      {"duration_s", &S::duration_s, "length of what was measured", "s"},
      {"request_throughput", &S::request_throughput, "requests that finish", "1/s", more},
      {"request_goodput", &S::request_goodput,
       "requests that finish within every objective of the SLO", "1/s", more},
      {"slo_attainment", &S::slo_attainment,
       "requests that met every objective; rejected and timed-out ones met none",
       "share of requests", more},
      {if_any, "attainment", &S::attainment, ""},
      {"output_throughput", &S::output_throughput, "tokens emitted", "tokens/s", more},
      {"total_token_throughput", &S::total_token_throughput,
       "tokens emitted, and prompt tokens of requests with their first token; without prompts "
       "that arrive computed (decode_only)",
       "tokens/s", more}};
  add_latency(rows, "ttft", "time to first token, from arrival", &S::ttft);
  rows.insert(
      rows.end(),
      {{if_any, "mean_ingress_ms", &S::ingress_ms,
        "part of mean_ttft_ms: from sending a request until the engine has its tokens", "ms", less},
       {if_any, "mean_queue_ms", &S::queue_ms,
        "part of mean_ttft_ms: from the arrival of the tokens until the first step of "
        "the prompt",
        "ms", less},
       {if_any, "mean_prefill_ms", &S::prefill_ms,
        "part of mean_ttft_ms: from the first step of the prompt until the first token", "ms",
        less}});
  add_latency(rows, "tpot", "(E2EL - TTFT) / (output tokens - 1) of each request", &S::tpot);
  add_latency(rows, "itl", "time between two tokens of a request", &S::itl);
  add_latency(rows, "e2el", "time from arrival to the last token", &S::e2el);
  rows.insert(
      rows.end(),
      {{"tokens_per_s_per_gpu", &S::tokens_per_s_per_gpu, "output_throughput / GPUs", "tokens/s",
        more},
       {"tokens_per_s_per_user", &S::tokens_per_s_per_user, "1000 / median_tpot_ms", "tokens/s",
        more},
       {"total_tokens_per_s_per_gpu", &S::total_tokens_per_s_per_gpu,
        "total_token_throughput / GPUs", "tokens/s", more},
       {"mfu", &S::mfu,
        "2 flops per active weight and computed token, of the GPUs' peak at the experts' "
        "precision",
        "share", more},
       {"mbu", &S::mbu, "HBM bytes read and written, of the GPUs' bandwidth", "share", more},
       {"cost_per_million_output_tokens", &S::cost_per_million_output_tokens,
        "all GPUs at the price of their hour; null without a price", "dollars", less}});
  return rows;
}

Fields<ClassStats> rows_of(const ClassStats*) {
  using S = ClassStats;
  const auto ms = [](Summary S::*latency, double Summary::*value) {
    return [latency, value](const S& of_class) {
      const Summary& summary = of_class.*latency;
      return summary.count == 0 ? std::nullopt : std::optional(summary.*value);
    };
  };
  return {{"requests", &S::requests, "requests of the class that arrived while measured"},
          {"mean_ttft_ms", ms(&S::ttft, &Summary::mean), "mean time to first token", "ms", less},
          {"p50_ttft_ms", ms(&S::ttft, &Summary::p50), "median of the same", "ms", less},
          {"p99_ttft_ms", ms(&S::ttft, &Summary::p99), "99th percentile of the same", "ms", less},
          {"mean_tpot_ms", ms(&S::tpot, &Summary::mean), "mean time per output token", "ms", less},
          {"p99_tpot_ms", ms(&S::tpot, &Summary::p99), "99th percentile of the same", "ms", less},
          {if_any, "attainment", &S::attainment, ""},
          {"slo_attainment", &S::slo_attainment, "requests that met every objective of the class",
           "share of requests", more},
          {"request_goodput", &S::request_goodput,
           "requests that finish within every objective of the class", "1/s", more}};
}

namespace {

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

// Sums that metrics are made of, over all pools.
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

// Counts all requests, or those of one class.
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

// Adds latencies one after the other, gaps first: of a long run each takes much memory.
void add_latencies(Metrics& metrics, const MeasurementSpec& e, const Measured& measured,
                   std::vector<Repeated> gaps, std::span<const RequestLife> requests) {
  metrics.itl = summarize(std::move(gaps));
  const auto finished = at(std::ranges::count_if(requests, [&](const RequestLife& request) {
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

}  // namespace

bool all_gpus(const Experiment& experiment, bool (*says)(const GpuSpec&)) {
  return std::ranges::all_of(experiment.pools, [&](const Deployment& pool) {
    return std::ranges::all_of(kinds_of_gpus(pool),
                               [&](const GpusOfKind& kind) { return says(kind.gpu); });
  });
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

}  // namespace moesim
