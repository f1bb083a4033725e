// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/linear_attention.hpp"

#include "hardware/kernels/rough.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

// Chunked, the rule multiplies each token of a head with its chunk's keys and with the state.
double flops_of(const LinearAttentionCall& c) {
  constexpr double chunk = 64;
  if (c.convolution || c.decode) return 0;
  return c.tokens * c.value_heads *
         (6 * c.key_dim * c.value_dim + 2 * chunk * (3 * c.key_dim + 2 * c.value_dim));
}

// Rows of queries, keys and values in bf16 pass once in and out; the rule reads and writes the
// state of each sequence in fp32.
double bytes_of(const LinearAttentionCall& c) {
  const double row = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim;
  const double state = c.convolution ? 0 : c.value_heads * c.key_dim * c.value_dim * 4;
  return c.tokens * 2 * row * 2 + c.sequences * 2 * state;
}

Located locate(const LinearAttentionCall& c, const GpuSpec& gpu) {
  constexpr double launch_us = 3, share_of_peak = 0.2;
  return {.at = {log_of(c.tokens), log_of(c.sequences), log_of(c.value_heads), log_of(c.key_heads)},
          .rough_us = launch_us + loads_us(bytes_of(c), gpu) +
                      flops_us(flops_of(c), Precision::bf16, gpu) / share_of_peak};
}

std::string group_of(const LinearAttentionCall& c) {
  std::string group = c.convolution ? "convolution " : "rule ";
  return group += c.decode ? "generation" : "context";
}

template <bool by_channel>
std::vector<Sample> linear_samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  const std::string_view phase = row.text("phase");
  const LinearAttentionCall call{
      .by_channel = by_channel,
      .decode = phase != "context",
      .convolution = row.text("kernel").find("conv1d") != std::string_view::npos,
      .sequences = row.number("batch"),
      .tokens = row.number("tokens"),
      .key_heads = row.number("k_heads"),
      .value_heads = row.number("v_heads"),
      .key_dim = row.number("head_k_dim"),
      .value_dim = row.number("head_v_dim")};
  Sample one = sample(group_of(call), row, locate(call, gpu));
  // Several tokens of each sequence at once: no step asks for them.
  if (phase == "verify") one.group += " verified";
  return {std::move(one)};
}

constexpr std::array<TableAxis, 8> linear_axes{{{"tokens"},
                                                {"sequences"},
                                                {"value heads", TableAxis::by_shape},
                                                {"key heads", TableAxis::by_shape}}};
constexpr MeasuredTable gdn_table{.name = "gdn",
                                  .axes = linear_axes,
                                  .along = "tokens",
                                  .samples = linear_samples<false>,
                                  .model = {"model"}};
constexpr MeasuredTable kda_table{.name = "kda",
                                  .axes = linear_axes,
                                  .along = "tokens",
                                  .samples = linear_samples<true>,
                                  .model = {"model"}};

}  // namespace

constinit const Kernel gdn_kernel{
    .name = "gdn",
    .summary = "gated delta net: the short convolution, or the delta rule",
    .table = &gdn_table,
};
constinit const Kernel kda_kernel{
    .name = "kda",
    .summary =
        "linear attention with a decay for each channel: the short convolution, or the delta rule",
    .table = &kda_table,
};

std::optional<Cost> linear_attention(const LinearAttentionCall& call, const GpuSpec& gpu) {
  if (!gpu.tables || call.tokens <= 0) return std::nullopt;
  const Cost cost{.work = {.flops = Flops(flops_of(call)), .hbm = Bytes(bytes_of(call))},
                  .peak = gpu.peak(Precision::bf16, Precision::bf16)};
  return by_tables({call.by_channel ? kda_table : gdn_table, {group_of(call)}, locate(call, gpu)},
                   cost, cost.peak, call.by_channel ? kda_kernel : gdn_kernel, gpu);
}

}  // namespace moesim
