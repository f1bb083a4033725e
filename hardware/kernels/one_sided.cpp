// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/one_sided.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hardware/kernels/collectives.hpp"
#include "hardware/kernels/rough.hpp"

namespace moesim {

double spread_copies(double top_k, double gpus) {
  return std::min(top_k, gpus) * (gpus - 1) / gpus;
}

namespace {

Located locate(const OneSidedCall& c, const GpuSpec& gpu) {
  constexpr double launch_us = 15, share = 0.72;
  return {.at = {log_of(c.bytes), log_of(c.gpus)},
          .rough_us = launch_us + link_us(c.bytes, gpu) / share,
          .least_us = link_us(c.bytes, gpu)};
}

// Bytes of a number on its way out, the scales of 16 or 128 included.
double sent_bytes(std::string_view precision) {
  if (precision == "nvfp4") return 0.5 + 1.0 / 16;
  return precision == "fp8" ? 1 + 4.0 / 128 : 2;
}

// The table's balanced draws give a token experts on as many GPUs as can be. Only so do long
// combines of 2 to 64 GPUs take the same share of NVLink (67 to 72 %). TensorRT-LLM's blog 18,
// whose router is said to do so, is within 10 % at 16 GPUs. At 64 its combines take a fifth less.
// bf16 comes back.
std::vector<Sample> samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  const std::string op(row.text("op"));
  const bool combine = op.find("combine") != op.npos;
  const double hidden = row.number("hidden"), gpus = row.number("ep");
  // The two-sided kernels send ids before tokens.
  const double copy = op.find("prepare") != op.npos
                          ? 4 * row.number("top_k")
                          : hidden * (combine ? 2 : sent_bytes(row.text("precision")));
  const OneSidedCall call{combine, gpus,
                          row.number("tokens") * spread_copies(row.number("top_k"), gpus) * copy};
  return {sample(fmt::format("{} {}", row.text("kernel"), op), row, locate(call, gpu))};
}

constexpr MeasuredTable table{.name = "nvlink_alltoall",
                              .axes = {{{"bytes"}, {"GPUs", TableAxis::by_shape}}},
                              .along = "tokens",
                              .samples = samples};

}  // namespace

constinit const Kernel one_sided_all_to_all_kernel = link_kernel(
    "one_sided_all_to_all", "tokens to experts over NVLink, written once into each GPU's memory",
    {"moe_a2a", "OneSided dispatch"}, &table);

constinit const Kernel one_sided_combine_kernel = link_kernel(
    "one_sided_combine", "the same tokens on their way back, read from each GPU's memory",
    {"moe_a2a", "OneSided combine"}, &table);

Question ask(const OneSidedCall& call, const GpuSpec& gpu) {
  return {table,
          {call.combine ? "NVLinkOneSided alltoall_combine" : "NVLinkOneSided alltoall_dispatch"},
          locate(call, gpu)};
}

}  // namespace moesim
