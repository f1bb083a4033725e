// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/gemm.hpp"

#include <cmath>

#include <fmt/format.h>

#include "hardware/kernels/rough.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

// Bytes of both operands and of the product.
double loaded(std::string_view format, double m, double n, double k) {
  const Format f = format_of(format);
  return n * k * f.weights + m * k * f.activations + m * n * 2;
}

// Kernels come with tiles of 16, 64, 128, .. rows, and one row more takes the next: at 65 rows a
// GEMM may take a third longer than at 64. Rows of a table beyond such an end are so many octaves
// farther. Of 30 tables (three engines, H100, H200, B200) a GEMM of 8, 16, 32, .. rows that was
// left out is predicted 1.7 % too slow in the mean, and 4.3 % without this. Steps of decode are
// padded to such rows.
double place_of_rows(double m) {
  constexpr double octaves = 3;
  int ends = 0;
  for (const double end : {16, 64, 128, 256, 512, 1024, 2048}) ends += m > end ? 1 : 0;
  return log_of(m) + octaves * ends;
}

Located locate(const GemmCall& c, const GpuSpec& gpu) {
  constexpr double launch_us = 3;  // chosen by leaving out points and shapes of the tables
  const Format f = format_of(c.precision);
  const double loads = loads_us(loaded(c.precision, c.m, c.n, c.k), gpu);
  const double arithmetic = flops_us(2 * c.m * c.n * c.k, f.multiplied, gpu);
  return {.at = {place_of_rows(c.m), log_of(c.n), log_of(c.k)},
          .rough_us = launch_us + std::max(loads, arithmetic),
          // No file says how fast a GPU multiplies int8.
          .least_us = c.precision == "sq" ? 0 : arithmetic};
}

std::vector<Sample> gemm_samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  const std::string precision(table_name(row.text("precision")));
  const GemmCall call{precision, row.number("m"), row.number("n"), row.number("k")};
  return {sample(precision, row, locate(call, gpu))};
}

std::optional<RooflineCall> gemm_call(const TableRow& row, const GpuSpec& gpu,
                                      const EngineVersion&) {
  const auto operands = operands_of(table_name(row.text("precision")));
  if (!operands) return std::nullopt;
  const double m = row.number("m");
  return RooflineCall{.operands = *operands,
                      .prefill = m > most_decode_rows,
                      .shape = fmt::format("{} {}", row.text("n"), row.text("k")),
                      .work = gemm_work(m, row.number("n"), row.number("k"), *operands,
                                        tile_of(gemm_kernel, gpu), gpu.sms)};
}

constexpr MeasuredTable gemm_table{
    .name = "gemm",
    .axes = {{{"m"}, {"n", TableAxis::by_shape}, {"k", TableAxis::by_shape}}},
    .along = "m",
    .samples = gemm_samples};

}  // namespace

constinit const Kernel gemm_kernel{
    .name = "gemm",
    .summary = "[m, k] x [k, n] in one format",
    .law = Law::roofline,
    .table = &gemm_table,
    .points = {"gemm"},
    .power = PowerClass::gemm,
    .roofline_call = gemm_call,
};

Question ask(const GemmCall& call, const GpuSpec& gpu) {
  Question question{gemm_table, {std::string(call.precision)}, locate(call, gpu)};
  constexpr double most_rows_of_decode = 256;
  const FlopsPerSecond rate = gpu.tables ? gpu.tables->prompt_gemms() : FlopsPerSecond{};
  if (rate > FlopsPerSecond{} && call.precision == "fp8_block" && call.m > most_rows_of_decode)
    question.place.least_us *= gpu.peak(Precision::fp8_block, Precision::fp8_block) / rate;
  return question;
}

TiledWork gemm_work(double m, double n, double k, Operands operands, Tile tile, int sms) {
  GroupedRows rows;
  add_slot(rows, std::llround(std::ceil(m)), tile.m);
  TiledWork total;
  add_projection(
      total, rows,
      {n, k, bytes_per_element(operands.weights), bytes_per_element(operands.activations), 2}, tile,
      sms);
  return total;
}

Cost gemm(double m, double n, double k, Precision weights, Precision activations,
          const GpuSpec& gpu) {
  if (m <= 0 || n <= 0 || k <= 0) return {};
  const TiledWork total =
      gemm_work(m, n, k, {weights, activations}, tile_of(gemm_kernel, gpu), gpu.sms);
  if (gpu.tables) {
    for (const std::string_view name : table_names(weights, activations)) {
      const auto measured = gpu.tables->time(ask(GemmCall{name, m, n, k}, gpu));
      if (!measured) continue;
      // The kernel's own format may multiply faster than the activations would let it.
      const Precision multiplied = format_of(name).multiplied;
      const FlopsPerSecond peak = gpu.peak(multiplied, multiplied);
      const Cost cost =
          priced({.work = total.work, .peak = peak}, *measured,
                 Bytes(loaded(name, m, n, k)) / gpu.hbm_bandwidth, Flops(2 * m * n * k) / peak);
      return drawing(cost, gemm_kernel, gpu);
    }
  }
  return drawing(tiled_cost(total, Roofline({weights, activations}, gemm_kernel, gpu)), gemm_kernel,
                 gpu);
}

}  // namespace moesim
