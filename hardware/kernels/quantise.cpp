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

}  // namespace

const MeasuredKernel& quantise_table() {
  static const MeasuredKernel table{"quantize", 2, {1}, {0}, "m", quantise_samples};
  return table;
}

Question ask(const QuantiseCall& call, const GpuSpec& gpu) {
  return {quantise_table(), {"fp8"}, locate(call, gpu)};
}

Cost quantise(double m, double k, Precision precision, const GpuSpec& gpu) {
  const Cost cost = memory_op(Bytes(m * k * (2 + bytes_per_element(precision))), gpu);
  const auto measured = gpu.tables ? gpu.tables->time(ask(QuantiseCall{m, k}, gpu)) : std::nullopt;
  return measured ? priced(cost, *measured, cost.work.hbm / gpu.hbm_bandwidth, {}) : cost;
}

}  // namespace moesim
