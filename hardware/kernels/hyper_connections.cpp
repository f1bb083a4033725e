// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/hyper_connections.hpp"

#include "hardware/kernels/memory.hpp"
#include "hardware/kernels/rough.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

constexpr double sites = 2;  // attention and FFN; a row times both

// Before: all streams in, one out. After: the output and all streams in, all streams out.
double bytes_of(bool before, double tokens, double hidden, double streams) {
  return sites * tokens * hidden * (before ? streams + 1 : 2 * streams + 1) * 2;
}

Located locate(bool before, double tokens, double hidden, double streams, const GpuSpec& gpu) {
  constexpr double launches_us = 8;
  return {.at = {log_of(tokens), log_of(hidden)},
          .rough_us = launches_us + loads_us(bytes_of(before, tokens, hidden, streams), gpu)};
}

std::string_view group_of(bool before) { return before ? "pre" : "post"; }

std::vector<Sample> mhc_samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  const std::string_view op = row.text("op");
  return {sample(std::string(op), row,
                 locate(op == group_of(true), row.number("tokens"), row.number("hidden"),
                        row.number("hc_mult"), gpu))};
}

constexpr MeasuredTable mhc_table{.name = "mhc_module",
                                  .axes = {{{"tokens"}, {"hidden", TableAxis::by_shape}}},
                                  .along = "tokens",
                                  .samples = mhc_samples,
                                  .model = {"hidden"}};

}  // namespace

constinit const Kernel hyper_connections_kernel{
    .name = "mhc_module",
    .summary = "hyper-connections of a layer: streams before attention and FFN, or behind them",
    .law = Law::roofline,
    .constants_of = &memory_kernel,
    .table = &mhc_table,
};

Cost hyper_connections(bool before, double tokens, double hidden, double streams,
                       const GpuSpec& gpu) {
  const Cost cost = memory_op(Bytes(bytes_of(before, tokens, hidden, streams)), gpu);
  if (!gpu.tables) return cost;
  const auto measured = gpu.tables->time(
      {mhc_table, {std::string(group_of(before))}, locate(before, tokens, hidden, streams, gpu)});
  if (!measured) return cost;
  return drawing(priced(cost, *measured, cost.work.hbm / gpu.hbm_bandwidth, {}),
                 hyper_connections_kernel, gpu);
}

double hyper_connection_parameters(double hidden, double streams) {
  return streams > 1 ? sites * streams * (streams + 2) * streams * hidden : 0;
}

}  // namespace moesim
