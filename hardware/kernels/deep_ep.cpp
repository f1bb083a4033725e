// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/deep_ep.hpp"

#include <algorithm>
#include <cmath>

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
  // Normal kernels send one copy to each other node that holds an expert of the token; a GPU there
  // passes it on to each other GPU of the node that does. Their test limits a token to four nodes
  // (DeepEP, tests/test_internode.py: num_topk_groups).
  const double reached = std::min(c.nodes, 4.0);
  const double nodes = reached * (1 - misses(1 / reached, c));
  const double ranks =
      measured_gpus_per_node * reached * (1 - misses(1 / (measured_gpus_per_node * reached), c));
  return {token * ranks * peers / measured_gpus_per_node, token * nodes * (c.nodes - 1) / c.nodes};
}

const MeasuredKernel& low_latency_table() {
  static const MeasuredKernel table{
      "low_latency", 6, {1, 2, 3, 4, 5}, {0}, "tokens_per_rank", exchange_samples<true>};
  return table;
}

const MeasuredKernel& normal_table() {
  static const MeasuredKernel table{
      "normal", 6, {1, 2, 3, 4, 5}, {0}, "tokens_per_rank", exchange_samples<false>};
  return table;
}

Question ask(const ExchangeCall& call, const GpuSpec& gpu) {
  return {call.low_latency ? low_latency_table() : normal_table(),
          {call.combine ? "combine" : "dispatch"},
          locate(call, gpu)};
}

}  // namespace moesim
