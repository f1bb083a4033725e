// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/roofline.hpp"

namespace moesim {

/// Bytes that travel between GPUs, [from, to], row-major. The diagonal (local copies) costs
/// nothing.
class TrafficMatrix {
 public:
  explicit TrafficMatrix(int gpus = 0)
      : gpus_(gpus), bytes_(static_cast<std::size_t>(gpus) * static_cast<std::size_t>(gpus)) {}
  int gpus() const { return gpus_; }
  double& at(int from, int to) { return bytes_[index(from, to)]; }
  double at(int from, int to) const { return bytes_[index(from, to)]; }
  void clear() { bytes_.assign(bytes_.size(), 0.0); }

 private:
  std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(gpus_) +
           static_cast<std::size_t>(to);
  }
  int gpus_;
  std::vector<double> bytes_;
};

enum class Collective {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  low_latency_all_to_all
};
inline constexpr std::array<std::string_view, 5> collective_names{
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "low_latency_all_to_all"};

/// What one collective took. Bytes are summed over all GPUs, by link level, each byte once per link
/// it crosses.
struct CollectiveCost {
  Seconds time{};
  Resource bound =
      Resource::latency;  ///< nvlink, network or latency (when alpha is more than half of it)
  Bytes nvlink{};
  Bytes network{};
};

/// One level of the network as a GPU sees it: `bandwidth` is one direction of one GPU's link.
struct LinkSpec {
  Seconds latency{};
  BytesPerSecond bandwidth{};
};

/// GPUs of one kind in nodes, nodes in scale-up (NVLink) domains, domains joined by the network.
struct ClusterSpec {
  std::string name;
  std::string source;
  GpuSpec gpu;
  int gpus_per_node = 0;
  int nodes = 0;
  int scale_up_domain =
      0;             ///< GPUs that reach each other over NVLink; gpus_per_node, or more (NVL72)
  LinkSpec network;  ///< one NIC per GPU
  double oversubscription = 1;  ///< >= 1: the network's bandwidth between domains is divided by it
  int gpus() const { return gpus_per_node * nodes; }
};

/// Reads a cluster file; its "gpu" is a path to a GPU file or an inline object. Throws ConfigError.
ClusterSpec read_cluster(const ConfigNode&);

/// Times collectives between GPUs first..first+n-1 of a cluster.
/// time = alpha(op, n, level) + max over ranks of max(sent, received)/bw_eff(bytes) per level, the
/// slowest level. A group of one GPU communicates nothing and takes no time.
class Fabric {
 public:
  explicit Fabric(ClusterSpec cluster);
  const ClusterSpec& cluster() const { return cluster_; }

  /// Every GPU holds `bytes` and ends with the sum.
  CollectiveCost all_reduce(int gpus, Bytes bytes) const;
  /// GPU i contributes contribution[i]; every GPU ends with all.
  CollectiveCost all_gather(std::span<const double> contribution) const;
  /// The reverse of all_gather: GPU i ends with contribution[i] bytes, summed over all.
  CollectiveCost reduce_scatter(std::span<const double> contribution) const;
  /// Bytes as the matrix says. `low_latency` uses the small-message kernel's alpha.
  CollectiveCost all_to_all(const TrafficMatrix& bytes,
                            Collective kind = Collective::all_to_all) const;
  /// Node or NVLink-domain index of a GPU.
  int domain_of(int gpu) const { return gpu / cluster_.scale_up_domain; }

 private:
  ClusterSpec cluster_;
};

}  // namespace moesim
