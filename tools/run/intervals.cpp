// SPDX-License-Identifier: Apache-2.0
#include "tools/run/intervals.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "hardware/kernels/kernel.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "sim/report/metric_catalogue.hpp"
#include "sim/report/statistics.hpp"
#include "sim/serving/simulator.hpp"

namespace moesim {

namespace {

constexpr std::array banded{&metric("mean_tpot_ms"), &metric("p99_tpot_ms"),
                            &metric("mean_ttft_ms"), &metric("output_throughput"),
                            &metric("tokens_per_s_per_gpu")};
constexpr double middle = 0.9;

/// exp(s z); half of a normal lies within 0.6745 of its standard deviations.
double slowdown(double median_error, double z) {
  return std::exp(std::log1p(median_error) / 0.6745 * z);
}

double slowdown(const std::optional<Calibration>& calibration, Rng& rng) {
  return slowdown(calibration ? calibration->median_error : unmeasured_error, rng.normal());
}

/// A table's times are wrong together, by as much as what they rest on lets expect.
void resample_tables(GpuSpec& gpu, std::uint64_t seed, int draw) {
  if (!gpu.tables) return;
  TableFactors factors;
  for (const MeasuredTable* table : measured_tables()) {
    const double z = Rng(seed, fmt::format("interval {} table {}", draw, table->name)).normal();
    auto& of_table = factors[table->name];
    for (std::size_t e = 0; e < evidence_names.size(); ++e)
      of_table[e] = slowdown(gpu.tables->error(*table, static_cast<Evidence>(e)), z);
  }
  gpu.tables = scaled(*gpu.tables, factors);
}

void resample_constants(GpuSpec& gpu, std::uint64_t seed, int draw) {
  const auto stream = [&](std::string_view name) {
    return Rng(seed, fmt::format("interval {} {}", draw, name));
  };
  for (auto& [kernel, constants] : gpu.kernels) {
    Rng rng = stream(kernel->name);
    const double factor = slowdown(constants.calibration, rng);
    constants.launch *= factor;
    constants.bandwidth_share = std::min(1.0, constants.bandwidth_share / factor);
    constants.copies *= factor;
    constants.held_copies *= factor;
    for (auto& [precision, share] : constants.peak_share) share = std::min(1.0, share / factor);
    for (auto& [precision, own] : constants.by_precision) {
      own.launch *= factor;
      own.bandwidth_share = std::min(1.0, own.bandwidth_share / factor);
      own.copies *= factor;
      own.held_copies *= factor;
    }
  }
  for (auto& [kernel, collective] : gpu.collectives) {
    Rng rng = stream(kernel->name);
    const double factor = slowdown(collective.calibration, rng);
    collective.launch *= factor;
    collective.per_gpu *= factor;
    collective.bandwidth_share = std::min(1.0, collective.bandwidth_share / factor);
    collective.ramp *= factor;
  }
}

RoutingTrace resampled_requests(const RoutingTrace& trace, Rng rng) {
  const auto recorded = trace.requests();
  std::vector<TraceRequest> drawn;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const std::size_t parity = i % 2;
    drawn.push_back(recorded[2 * rng.below((recorded.size() - parity + 1) / 2) + parity]);
  }
  return trace.with_requests(std::move(drawn));
}

OrderedJson band(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return {{"low", interpolated(values, (1 - middle) / 2)},
          {"median", interpolated(values, 0.5)},
          {"high", interpolated(values, (1 + middle) / 2)}};
}

}  // namespace

void resample_hardware(PoolSpec& pool, int draw) {
  pool.each_cluster([&](ClusterSpec& cluster) {
    resample_constants(cluster.gpu, pool.seed, draw);
    resample_tables(cluster.gpu, pool.seed, draw);
  });
}

Traces resampled(Traces traces, std::uint64_t seed, int draw) {
  const auto of_phase = [&](std::string_view phase) {
    return Rng(seed, fmt::format("interval {} {} requests", draw, phase));
  };
  if (!traces.decode.meta().synthetic)
    traces.decode = resampled_requests(traces.decode, of_phase("decode"));
  if (traces.prefill && !traces.prefill->meta().synthetic)
    traces.prefill = resampled_requests(*traces.prefill, of_phase("prefill"));
  traces.fits = std::make_shared<TraceFits>();
  return traces;
}

OrderedJson intervals(const ConfigNode& config, int runs,
                      const std::function<void(int)>& finished) {
  const std::uint64_t seed = config.json().value("seed", std::uint64_t{1});
  std::vector<Report> reports(at(runs));
  std::mutex mutex;
  int done = 0;
  tbb::parallel_for(0, runs, [&](int i) {
    Json json = config.json();
    json["seed"] = Rng(seed, fmt::format("interval {} seed", i)).below(1u << 30);
    TraceLibrary traces;
    ExperimentSpec spec = read_spec(ConfigNode(std::move(json), config.file()));
    const Traces drawn = resampled(traces.open(spec), spec.pools.back().seed, i);
    for (PoolSpec& pool : spec.pools) resample_hardware(pool, i);
    reports[at(i)].metrics = run(deploy(spec, drawn)).metrics;
    const std::lock_guard lock(mutex);
    finished(++done);
  });
  OrderedJson result{{"runs", runs}, {"share", middle}, {"metrics", OrderedJson::object()}};
  for (const Metric* metric : banded) {
    std::vector<double> values;
    for (const Report& report : reports) {
      if (const auto value = metric->value(report)) values.push_back(*value);
    }
    result["metrics"][std::string(metric->name)] = band(std::move(values));
  }
  return result;
}

}  // namespace moesim
