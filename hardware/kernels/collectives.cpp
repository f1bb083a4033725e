// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/collectives.hpp"

#include "hardware/kernels/rough.hpp"

namespace moesim {

Located place_of(const CollectiveCall& c, double launch_us, const GpuSpec& gpu) {
  const double passes = c.op == "all_reduce" ? 2 : 1;
  const double moved = passes * c.bytes * (c.gpus - 1) / c.gpus;
  return {.at = {log_of(c.bytes), 8 * log_of(c.gpus)},
          .rough_us = launch_us + link_us(moved, gpu) / 0.75};
}

namespace {

constexpr double nccl_launch_us = 8;

std::vector<Sample> nccl_samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  const std::string op(row.text("op"));
  const CollectiveCall call{op, row.number("gpus"), row.number("bytes")};
  return {sample(op, row, place_of(call, nccl_launch_us, gpu))};
}

}  // namespace

constinit const MeasuredTable nccl_table{.name = "collectives",
                                         .axes = {{{"bytes"}, {"GPUs", TableAxis::by_shape}}},
                                         .along = "bytes",
                                         .samples = nccl_samples};

Question ask_nccl(const CollectiveCall& call, const GpuSpec& gpu) {
  return {nccl_table, {std::string(call.op)}, place_of(call, nccl_launch_us, gpu)};
}

void take(CollectiveCost& cost, const TableTime& measured, Seconds least) {
  const bool fitted = cost.evidence == Evidence::calibrated;
  if (fitted && measured.evidence == Evidence::carried_over) return;
  cost.time = std::max(measured.time, least);
  cost.evidence = measured.evidence;
  if (least * 2 < cost.time) cost.bound = Resource::latency;
}

void take_measured(CollectiveCost& cost, const ClusterSpec& cluster, const CollectiveCall& call,
                   Question (*ask)(const CollectiveCall&, const GpuSpec&)) {
  const GpuSpec& gpu = cluster.gpu;
  if (!gpu.tables || call.gpus > cluster.scale_up_domain || cost.time <= Seconds{}) return;
  const auto measured = gpu.tables->time(ask(call, gpu));
  // A switch may add up on the way: then an all-reduce sends each byte once.
  const Bytes moved(call.bytes * (call.gpus - 1) / call.gpus);
  if (!measured) return;
  take(cost, *measured, moved / gpu.scale_up_bandwidth);
  if (cost.bound != Resource::latency) return;
  // A slow link is not latency: a message without bytes is then soon there.
  const auto empty = gpu.tables->time(ask({call.op, call.gpus, 1}, gpu));
  if (empty && empty->time * 2 < cost.time) cost.bound = Resource::nvlink;
}

}  // namespace moesim
