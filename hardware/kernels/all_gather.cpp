// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "hardware/kernels/collectives.hpp"

namespace moesim {

namespace {

std::vector<double> even_shares(int gpus, Bytes bytes) {
  return std::vector<double>(at(gpus), bytes.value() / gpus);
}

CollectiveCost even_all_gather(const Fabric& fabric, int gpus, Bytes bytes) {
  return fabric.all_gather(even_shares(gpus, bytes));
}

CollectiveCost even_reduce_scatter(const Fabric& fabric, int gpus, Bytes bytes) {
  return fabric.reduce_scatter(even_shares(gpus, bytes));
}

}  // namespace

constinit const Kernel all_gather_kernel =
    link_kernel("all_gather", "every GPU's contribution, `bytes` together, on each",
                {"collective", "all_gather"}, &nccl_table, even_all_gather);

constinit const Kernel reduce_scatter_kernel =
    link_kernel("reduce_scatter", "a sum of `bytes` over all GPUs, a share left on each",
                {"collective", "reduce_scatter"}, &nccl_table, even_reduce_scatter);

CollectiveCost Fabric::all_gather(std::span<const double> contribution) const {
  const int gpus = static_cast<int>(contribution.size());
  check(gpus <= cluster_.gpus(), "an all-gather is wider than the cluster");
  if (gpus <= 1) return {};
  CollectiveCost gathered = cost(all_gather_kernel, gpus, 1, gather_volume(contribution));
  const double total = std::accumulate(contribution.begin(), contribution.end(), 0.0);
  take_measured(gathered, cluster_, {"all_gather", double(gpus), total}, ask_nccl);
  return gathered;
}

CollectiveCost Fabric::reduce_scatter(std::span<const double> contribution) const {
  const int gpus = static_cast<int>(contribution.size());
  check(gpus <= cluster_.gpus(), "a reduce-scatter is wider than the cluster");
  if (gpus <= 1) return {};
  CollectiveCost sums = cost(reduce_scatter_kernel, gpus, 1, gather_volume(contribution));
  const double total = std::accumulate(contribution.begin(), contribution.end(), 0.0);
  take_measured(sums, cluster_, {"reduce_scatter", double(gpus), total}, ask_nccl);
  return sums;
}

CollectiveCost Fabric::send(int from, int to, Bytes bytes) const {
  check(std::max(from, to) < cluster_.gpus(), "a send goes beyond the cluster");
  const bool near = domain_of(from) == domain_of(to);
  Volume volume;
  (near ? volume.nvlink_rank : volume.network_rank) =
      bytes.value() * (near ? 1 : cluster_.oversubscription);
  (near ? volume.nvlink_all : volume.network_all) = bytes.value();
  CollectiveCost sent = cost(all_gather_kernel, 2, 0, volume);
  if (!near) sent.time += cluster_.network.latency + cluster_.network.latency_per_doubling;
  return sent;
}

}  // namespace moesim
