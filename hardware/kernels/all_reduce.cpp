// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/collectives.hpp"
#include "hardware/kernels/rough.hpp"

namespace moesim {

namespace {

constexpr std::string_view summed = "all_reduce";
constexpr double engine_launch_us = 3;
// A thread of the host sends NCCL's messages over the network, beside the latency of sends that
// GPUs start, which clusters have. With it a sum over two nodes takes 58 to 73 us. Measured are 75
// us of 4 KB on H100 (nccl#1453), 59 us over four nodes (local-inference-lab/vllm#295), and 60 to
// 130 us by what decode steps of TP 16 lack otherwise (sglang#7687, tt-inference-server#356).
constexpr Seconds host_proxy{20e-6};
constexpr int passes = 2;

std::vector<Sample> one_shot_samples(const TableRow& row, const GpuSpec& gpu,
                                     const EngineVersion&) {
  const CollectiveCall call{summed, row.number("gpus"), row.number("bytes")};
  return {sample(std::string(summed), row, place_of(call, engine_launch_us, gpu))};
}

constexpr MeasuredTable one_shot_table{.name = "all_reduce",
                                       .axes = {{{"bytes"}, {"GPUs", TableAxis::by_shape}}},
                                       .along = "bytes",
                                       .samples = one_shot_samples};

Question ask_one_shot(const CollectiveCall& call, const GpuSpec& gpu) {
  return {one_shot_table, {std::string(summed)}, place_of(call, engine_launch_us, gpu)};
}

CollectiveCost by_ring(const Fabric& fabric, int gpus, Bytes bytes) {
  return fabric.all_reduce(gpus, bytes, all_reduce_kernel);
}

CollectiveCost by_one_shot(const Fabric& fabric, int gpus, Bytes bytes) {
  return fabric.all_reduce(gpus, bytes, one_shot_all_reduce_kernel);
}

}  // namespace

constinit const Kernel one_shot_all_reduce_kernel = link_kernel(
    "one_shot_all_reduce", "the engine's own sum of `bytes` over the GPUs of one NVLink domain",
    {"collective", "custom"}, &one_shot_table, by_one_shot);

constinit const Kernel all_reduce_kernel =
    link_kernel("all_reduce", "NCCL's sum of `bytes` over all GPUs, left on each",
                {"collective", "all_reduce"}, &nccl_table, by_ring);

CollectiveCost Fabric::all_reduce(int gpus, Bytes bytes, const Kernel& kernel) const {
  check(gpus <= cluster_.gpus(), "an all-reduce is wider than the cluster");
  if (gpus <= 1) return {};
  const std::vector<double> slices(at(gpus), bytes.value() / gpus);
  Volume volume = gather_volume(slices);
  for (double* bytes_moved :
       {&volume.nvlink_rank, &volume.network_rank, &volume.nvlink_all, &volume.network_all}) {
    *bytes_moved *= passes;
  }
  CollectiveCost sum = cost(kernel, gpus, passes, volume);
  const bool by_proxy = gpus > cluster_.scale_up_domain && &kernel == &all_reduce_kernel;
  if (by_proxy && sum.time > Seconds{}) {
    sum.time += passes * host_proxy;
    if (sum.time < 2 * passes * host_proxy) sum.bound = Resource::latency;
  }
  take_measured(sum, cluster_, {summed, double(gpus), bytes.value()},
                &kernel == &one_shot_all_reduce_kernel ? ask_one_shot : ask_nccl);
  return sum;
}

CollectiveCost Fabric::all_reduce(int gpus, Bytes bytes) const {
  const CollectiveCost ring = all_reduce(gpus, bytes, all_reduce_kernel);
  if (gpus > cluster_.scale_up_domain) return ring;
  const CollectiveCost one_shot = all_reduce(gpus, bytes, one_shot_all_reduce_kernel);
  return one_shot.time < ring.time ? one_shot : ring;
}

}  // namespace moesim
