// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/communication.hpp"

#include <cmath>

namespace moesim {

using enum Better;

Fields<TrafficStats> rows_of(const TrafficStats*) {
  using S = TrafficStats;
  return {{"seconds", &S::time, "time that links were busy", "s", less},
          {"hidden_seconds", &S::hidden, "seconds hidden behind computation", "s"},
          {"share_of_busy_time", &S::share_of_busy_time, "seconds over all steps' time",
           "share of time", less},
          {"nvlink_bytes", &S::nvlink, "over NVLink", "B", less},
          {"network_bytes", &S::network, "over the network", "B", less}};
}

Fields<LayerTrafficStats> rows_of(const LayerTrafficStats*) {
  using S = LayerTrafficStats;
  return {{merged, &S::all},
          {"mean_us_per_layer", &S::mean_us_per_layer, "mean over (MoE layer, step)", "us", less},
          {"p99_us_per_layer", &S::p99_us_per_layer, "99th percentile of the same", "us", less}};
}

Fields<CommunicationStats> rows_of(const CommunicationStats*) {
  using S = CommunicationStats;
  return {{"layers_by_dispatch/DISPATCH", &S::layers_by_dispatch,
           "(layer, step) pairs that it carried"},
          {"dispatch", &S::dispatch, "tokens to the GPUs of their experts"},
          {"combine", &S::combine, "results back"},
          {"tp_all_reduce", &S::tp_all_reduce,
           "all-reduces within tensor-parallel ranks, exchanges of DCP"}};
}

void CommunicationSum::add(const StepRecord& record) {
  dispatch += record.cost.dispatch;
  combine += record.cost.combine;
  all_reduce += record.cost.all_reduce;
}

void CommunicationSum::add_layers(std::span<const LayerOutcome> layers, std::int64_t steps) {
  const auto nanoseconds = [](Seconds time) { return std::llround(time.count() * 1e9); };
  for (const LayerOutcome& layer : layers) {
    if (!layer.exchange.name.empty()) layers_by_dispatch[layer.exchange.name] += steps;
    dispatch_ns.add(nanoseconds(layer.exchange.dispatch.time), steps);
    combine_ns.add(nanoseconds(layer.exchange.combine.time), steps);
  }
}

CommunicationStats communication_of(const CommunicationSum& totals, double busy) {
  const auto traffic_of = [&](const Traffic& traffic) {
    return TrafficStats{traffic, ratio(traffic.time.count(), busy)};
  };
  const auto per_layer = [&](const Traffic& traffic, const CountHistogram& layer_ns) {
    return LayerTrafficStats{traffic_of(traffic), layer_ns.mean() / 1e3,
                             double(layer_ns.quantile(.99)) / 1e3};
  };
  return {{totals.layers_by_dispatch.begin(), totals.layers_by_dispatch.end()},
          per_layer(totals.dispatch, totals.dispatch_ns),
          per_layer(totals.combine, totals.combine_ns),
          traffic_of(totals.all_reduce)};
}

}  // namespace moesim
