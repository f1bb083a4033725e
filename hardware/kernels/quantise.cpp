// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/quantise.hpp"

#include "hardware/kernels/rough.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

Located locate(const QuantiseCall& c, const GpuSpec& gpu) {
  constexpr double launch_us = 3;
  return {.at = {log_of(c.m), log_of(c.k)}, .rough_us = launch_us + loads_us(c.m * c.k * 3, gpu)};
}

std::vector<Sample> quantise_samples(const TableRow& row, const GpuSpec& gpu,
                                     const EngineVersion&) {
  return {sample(std::string(table_name(row.text("precision"))), row,
                 locate(QuantiseCall{row.number("m"), row.number("k")}, gpu))};
}

constexpr MeasuredTable quantise_table{.name = "quantize",
                                       .axes = {{{"m"}, {"k", TableAxis::by_shape}}},
                                       .along = "m",
                                       .samples = quantise_samples};

}  // namespace

constinit const Kernel quantise_kernel{
    .name = "quantize",
    .summary = "[m, k] activations to fp8 or narrower, with their scales",
    .law = Law::roofline,
    .constants_of = &memory_kernel,
    .table = &quantise_table,
};

Question ask(const QuantiseCall& call, const GpuSpec& gpu) {
  return {quantise_table, {"fp8"}, locate(call, gpu)};
}

Cost quantise(double m, double k, Precision precision, const GpuSpec& gpu) {
  const Cost cost = memory_op(Bytes(m * k * (2 + bytes_per_element(precision))), gpu);
  const auto measured = gpu.tables ? gpu.tables->time(ask(QuantiseCall{m, k}, gpu)) : std::nullopt;
  if (!measured) return cost;
  return drawing(priced(cost, *measured, cost.work.hbm / gpu.hbm_bandwidth, {}), quantise_kernel,
                 gpu);
}

}  // namespace moesim
