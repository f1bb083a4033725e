// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/deep_ep.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hardware/kernels/collectives.hpp"
#include "hardware/kernels/hybrid_ep.hpp"
#include "hardware/kernels/one_sided.hpp"
#include "hardware/kernels/rough.hpp"

namespace moesim {

namespace {

// The chance that none of a token's experts is in a share of them, all different.
double misses(double share, const ExchangeCall& c) {
  double none = 1;
  for (double chosen = 0; chosen < c.top_k; ++chosen)
    none *= std::max(0.0, 1 - share * c.experts / (c.experts - chosen));
  return none;
}

Located locate(const ExchangeCall& c, const GpuSpec& gpu) {
  constexpr double launch_us = 15;
  const ExchangeVolume one = volume_of(c);
  const double near = link_us(c.tokens_per_rank * one.nvlink, gpu) / 0.6;
  const double far = c.tokens_per_rank * one.network / measured_nic * 1e6 / 0.8;
  return {.at = {log_of(c.tokens_per_rank), log_of(c.hidden), log_of(c.top_k),
                 log_of(c.experts) / 2, 4 * log_of(c.nodes), 2 * log_of(std::max(1.0, c.sms))},
          .rough_us = launch_us + std::max(near, far)};
}

template <bool low_latency>
std::vector<Sample> exchange_samples(const TableRow& row, const GpuSpec& gpu,
                                     const EngineVersion&) {
  ExchangeCall c{.low_latency = low_latency,
                 .nodes = row.number("nodes"),
                 .hidden = row.number("hidden"),
                 .tokens_per_rank = row.number("tokens_per_rank"),
                 .top_k = row.number("top_k"),
                 .experts = row.number("experts"),
                 .sms = row.number("sms", 0)};
  const Sample out{"dispatch", "deepep", locate(c, gpu), row.number("dispatch_us")};
  c.combine = true;
  return {out, {"combine", "deepep", locate(c, gpu), row.number("combine_us")}};
}

}  // namespace

ExchangeVolume volume_of(const ExchangeCall& c) {
  // fp8 with a scale for 128 values on the way out, bf16 back.
  const double token = c.combine ? 2 * c.hidden : c.hidden * (1 + 4.0 / 128);
  const double gpus = measured_gpus_per_node * c.nodes;
  constexpr double peers = measured_gpus_per_node - 1;
  // Low latency sends a copy for each expert, straight to it.
  if (c.low_latency) {
    const double copies = token * c.top_k / gpus;
    return {copies * peers, copies * (gpus - measured_gpus_per_node)};
  }
  // Normal kernels send one copy to each other node that holds an expert of the token. A GPU there
  // passes it on to each other GPU of the node that does. Their test limits a token to four nodes
  // (DeepEP, tests/test_internode.py: num_topk_groups).
  const double reached = std::min(c.nodes, 4.0);
  const double nodes = reached * (1 - misses(1 / reached, c));
  const double ranks =
      measured_gpus_per_node * reached * (1 - misses(1 / (measured_gpus_per_node * reached), c));
  return {token * ranks * peers / measured_gpus_per_node, token * nodes * (c.nodes - 1) / c.nodes};
}

namespace {

constexpr std::array<TableAxis, 8> exchange_axes{{{"tokens of a rank"},
                                                  {"hidden", TableAxis::by_shape},
                                                  {"top_k", TableAxis::by_shape},
                                                  {"experts", TableAxis::by_shape},
                                                  {"nodes", TableAxis::by_shape},
                                                  {"SMs", TableAxis::by_shape}}};
constexpr MeasuredTable low_latency_table{.name = "low_latency",
                                          .axes = exchange_axes,
                                          .along = "tokens_per_rank",
                                          .samples = exchange_samples<true>};
constexpr MeasuredTable normal_table{.name = "normal",
                                     .axes = exchange_axes,
                                     .along = "tokens_per_rank",
                                     .samples = exchange_samples<false>};

}  // namespace

constinit const Kernel low_latency_all_to_all_kernel =
    link_kernel("low_latency_all_to_all",
                "tokens to experts, one message for each expert: tokens, hidden, top_k, experts",
                {"moe_a2a"}, &low_latency_table);

constinit const Kernel low_latency_combine_kernel =
    link_kernel("low_latency_combine", "the same tokens on their way back", {"moe_a2a", "combine"},
                &low_latency_table);

constinit const Kernel normal_all_to_all_kernel{
    .name = "normal_all_to_all",
    .summary = "tokens to experts or back, one message for each node and GPU",
    .law = Law::links,
    .constants_of = &all_to_all_kernel,
    .table = &normal_table,
    .points = {"moe_a2a", "normal"},
    .power = PowerClass::exchanges,
};

Question ask(const ExchangeCall& call, const GpuSpec& gpu) {
  return {call.low_latency ? low_latency_table : normal_table,
          {call.combine ? "combine" : "dispatch"},
          locate(call, gpu)};
}

namespace {

// The mean of `ranks` equal Poisson counts whose greatest is about `greatest`: the greatest of
// normal variables is so many deviations above their mean.
double mean_below(double greatest, double ranks) {
  const double a = std::sqrt(2 * std::log(ranks));
  const double deviations =
      a - (std::log(std::log(ranks)) + std::log(4 * std::numbers::pi)) / (2 * a);
  const double root = std::sqrt(deviations * deviations + 4 * greatest) - deviations;
  return root * root / 4;
}

// Time of DeepEP for so many tokens of evenly chosen experts as keep the slower of the busiest
// ranks' links as long. The other link may have a busier rank that delays no other rank.
std::optional<TableTime> exchange_time(const GpuSpec& gpu, const TokenExchange& tokens, int gpus,
                                       int domains, double nvlink_bytes, double network_bytes) {
  constexpr double sms_of_normal_kernels = 20;  // DeepEP, Buffer.num_sms
  const bool low_latency = tokens.kernels == TokenKernels::low_latency;
  ExchangeCall call{.low_latency = low_latency,
                    .combine = tokens.combine,
                    .nodes = static_cast<double>(domains),
                    .hidden = tokens.hidden,
                    .top_k = tokens.top_k,
                    .experts = tokens.experts,
                    .sms = low_latency ? 0 : sms_of_normal_kernels};
  const ExchangeVolume one = volume_of(call);
  // Rows were measured with experts drawn at random: their busiest rank has more than the mean,
  // too, and in steps of few tokens by much.
  const auto mean = [&](double bytes) {
    return low_latency ? mean_below(bytes / tokens.bytes, gpus) * tokens.bytes : bytes;
  };
  const auto busy = [&](double nvlink, double network) {
    return std::max(nvlink / gpu.scale_up_bandwidth.value(), network / measured_nic);
  };
  call.tokens_per_rank =
      std::max(1.0, busy(mean(nvlink_bytes), mean(network_bytes)) / busy(one.nvlink, one.network));
  auto time = gpu.tables->time(ask(call, gpu));
  if (!time) return time;
  // More GPUs behind one switch than a node had were not measured.
  const double per_node = static_cast<double>(gpus) / domains;
  if (per_node > measured_gpus_per_node) time->evidence = Evidence::extrapolated;
  if (per_node < measured_gpus_per_node && time->evidence == Evidence::measured)
    time->evidence = Evidence::interpolated;
  return time;
}

const Kernel& kernel_of(const TokenExchange& tokens) {
  switch (tokens.kernels) {
    case TokenKernels::low_latency:
      return tokens.combine ? low_latency_combine_kernel : low_latency_all_to_all_kernel;
    case TokenKernels::one_sided:
      return tokens.combine ? one_sided_combine_kernel : one_sided_all_to_all_kernel;
    case TokenKernels::hybrid:
      return tokens.combine ? hybrid_combine_kernel : hybrid_all_to_all_kernel;
    case TokenKernels::normal: break;
  }
  return normal_all_to_all_kernel;
}

}  // namespace

CollectiveCost Fabric::exchange(const TokenExchange& tokens) const {
  const int gpus = tokens.copies.gpus();
  check(gpus <= cluster_.gpus(), "an exchange is wider than the cluster");
  if (gpus <= 1) return {};
  const Kernel& kernel = kernel_of(tokens);
  const Volume volume = exchange_volume(tokens.copies, tokens.bytes);
  CollectiveCost exchange = cost(kernel, gpus, 1, volume);
  const GpuSpec& gpu = cluster_.gpu;
  if (!gpu.tables || kernel.table == nullptr) return exchange;
  if (tokens.hidden <= 0 || exchange.time <= Seconds{}) return exchange;
  const int domains = domain_of(gpus - 1) + 1;
  const Seconds least = Bytes(volume.nvlink_rank) / gpu.scale_up_bandwidth;
  if (tokens.kernels == TokenKernels::one_sided) {
    const OneSidedCall call{tokens.combine, double(gpus), volume.nvlink_rank};
    if (const auto measured = gpu.tables->time(ask(call, gpu))) take(exchange, *measured, least);
    return exchange;
  }
  const bool like_measured = std::abs(cluster_.network.bandwidth.value() / measured_nic - 1) < 0.2;
  if (domains > 1 && !like_measured) return exchange;
  const auto measured =
      exchange_time(gpu, tokens, gpus, domains, volume.nvlink_rank, volume.network_rank);
  if (measured) take(exchange, *measured, least);
  return exchange;
}

}  // namespace moesim
