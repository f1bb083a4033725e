// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/collectives.hpp"

namespace moesim {

namespace {

CollectiveCost even_all_to_all(const Fabric& fabric, int gpus, Bytes bytes) {
  const GpuSpec& gpu = fabric.cluster().gpu;
  if (gpu.tables) {
    const CollectiveCall call{"alltoall", double(gpus), bytes.value()};
    if (const auto measured = gpu.tables->time(ask_nccl(call, gpu)))
      return {.time = measured->time, .evidence = measured->evidence};
  }
  return fabric.all_to_all(even_traffic(gpus, bytes.value() / gpus));
}

}  // namespace

constinit const Kernel all_to_all_kernel =
    link_kernel("all_to_all", "messages between all GPUs, [from, to]", {"collective", "alltoall"},
                &nccl_table, even_all_to_all);

CollectiveCost Fabric::all_to_all(const TrafficMatrix& messages, const Kernel& kernel,
                                  double bytes) const {
  return all_to_all(LinkTraffic(messages, cluster_.scale_up_domain), kernel, bytes);
}

CollectiveCost Fabric::all_to_all(const LinkTraffic& messages, const Kernel& kernel,
                                  double bytes) const {
  const int gpus = messages.gpus();
  check(gpus <= cluster_.gpus(), "an all-to-all is wider than the cluster");
  if (gpus <= 1) return {};
  return cost(kernel, gpus, 1, exchange_volume(messages, bytes));
}

}  // namespace moesim
