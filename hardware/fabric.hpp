// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
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
  std::span<double> row(int from) { return std::span(bytes_).subspan(index(from, 0), row_size()); }
  std::span<const double> row(int from) const {
    return std::span(bytes_).subspan(index(from, 0), row_size());
  }
  void clear() { bytes_.assign(bytes_.size(), 0.0); }

 private:
  std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(gpus_) +
           static_cast<std::size_t>(to);
  }
  std::size_t row_size() const { return static_cast<std::size_t>(gpus_); }
  int gpus_;
  std::vector<double> bytes_;
};

/// Bytes that each GPU sends and receives, all that an all-to-all's time depends on: [gpus], to and
/// from its own NVLink domain, and to and from others. What stays on its GPU is not in it. Of a
/// wide group this is much less than the matrix.
struct LinkTraffic {
  explicit LinkTraffic(int gpus = 0, int gpus_per_domain = 1);
  /// The sums of a matrix.
  LinkTraffic(const TrafficMatrix&, int gpus_per_domain);
  int gpus() const { return static_cast<int>(near_out.size()); }
  void clear();
  void add(int from, int to, double amount);
  bool operator==(const LinkTraffic&) const = default;

  int domain;  ///< GPUs of an NVLink domain
  std::vector<double> near_out, far_out, near_in, far_in;
};

/// Every GPU sends `to_each` bytes to every other.
TrafficMatrix even_traffic(int gpus, double to_each);

/// Cost of one collective. Bytes are summed over all GPUs, by link level, each byte once per link
/// it crosses.
struct CollectiveCost {
  Seconds time{};
  Resource bound =
      Resource::latency;  ///< nvlink, network or latency (when alpha is more than half of it)
  Bytes nvlink{};
  Bytes network{};
  Evidence evidence = Evidence::calibrated;  ///< what its constants were fitted on
};

/// The network as a GPU sees it: one direction of one GPU's link, and what crossing it adds to a
/// collective: latency + latency_per_doubling log2(domains).
struct LinkSpec {
  Seconds latency{};
  Seconds latency_per_doubling{};
  BytesPerSecond bandwidth{};  ///< of the data sheet
  double bandwidth_share = 1;  ///< that large messages reach, in (0, 1]
  /// Rate of the switches above the domains, in one direction, from all domains to all others;
  /// unset: whatever the NICs send.
  std::optional<BytesPerSecond> spine{};
  std::string source;
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
  /// >= 1: what leaves a domain shares its NICs' bandwidth divided by this.
  double oversubscription = 1;
  int gpus() const { return gpus_per_node * nodes; }
};

/// Reads a cluster file; its "gpu" is a path to a GPU file or an inline object. Throws ConfigError.
ClusterSpec read_cluster(const ConfigNode&);
std::span<const Key> cluster_keys();

/// Returns two clusters as the network between them sees them. It is the one whose NICs bring less
/// (`b` if both bring as much), with the GPUs of both, the slower NVLink and `b`'s domains.
ClusterSpec joined(const ClusterSpec& a, const ClusterSpec& b);

/// Kernels that carry tokens. DeepEP has normal ones, and low-latency ones (a copy for each expert,
/// straight to its GPU). NVLinkOneSided sends a copy for each GPU, within one NVLink domain.
/// Hybrid-EP sends the copies of the normal ones.
enum class TokenKernels { normal, low_latency, one_sided, hybrid };

/// Token copies on their way to the experts, or the same copies on their way back. The way back
/// swaps what each GPU sends and receives, of which the fabric takes the larger, so one count
/// serves for both ways.
struct TokenExchange {
  const LinkTraffic& copies;
  double bytes = 0;  ///< of a copy
  TokenKernels kernels = TokenKernels::normal;
  bool combine = false;  ///< the way back
  /// Sizes of the model: the width of a token, its experts, and the experts of a layer. 0: no table
  /// is asked.
  double hidden = 0, top_k = 0, experts = 0;
};

/// NCCL's; and the engines' own all-reduce for small sums inside an NVLink domain.
extern const Kernel all_reduce_kernel, all_gather_kernel, reduce_scatter_kernel, all_to_all_kernel;
extern const Kernel one_shot_all_reduce_kernel;

/// Times collectives between the first n GPUs of a cluster. Each is defined next to its row, in
/// hardware/kernels.
///
///   time = alpha(op, n, domains) + max over levels of (x + sqrt(ramp x))
///   x    = max over ranks of max(sent, received) / (share bandwidth of the level)
///
/// If the network has a spine, x of the network is no less than what the group sends between
/// domains, over the spine's bandwidth. Messages straight from one GPU to one other (send) and
/// collectives at the same time are left out. The constant alpha is launch + per_gpu (GPUs of the
/// group in one domain - 1). Across domains the network's latency + latency_per_doubling
/// log2(domains) is added. Both rules are extrapolated beyond what was measured. The time of a
/// transfer cut into chunks of the best size is x + sqrt(ramp x). Every chunk pays a latency, and
/// the last one is not overlapped. No bytes, or a group of one GPU, take no time. Pure: same
/// arguments, same answer.
class Fabric {
 public:
  explicit Fabric(ClusterSpec cluster);
  const ClusterSpec& cluster() const { return cluster_; }

  /// Every GPU holds `bytes` and ends with the sum: a reduce-scatter and an all-gather,
  /// hierarchical across domains (a GPU's NIC carries its share of its domain's sum).
  CollectiveCost all_reduce(int gpus, Bytes bytes) const;
  /// An all-reduce by one algorithm: all_reduce_kernel (NCCL) or one_shot_all_reduce_kernel. Across
  /// domains NCCL's takes the host's thread besides; NCCL's other collectives are not charged so.
  CollectiveCost all_reduce(int gpus, Bytes bytes, const Kernel&) const;
  /// GPU i contributes contribution[i]; every GPU ends with all.
  CollectiveCost all_gather(std::span<const double> contribution) const;
  /// The reverse of all_gather: GPU i ends with contribution[i] bytes, summed over all.
  CollectiveCost reduce_scatter(std::span<const double> contribution) const;
  /// Messages as the matrix says, of `bytes` each: whether a token travels once per expert, GPU or
  /// node is the caller's. The kernel chooses the constants.
  CollectiveCost all_to_all(const TrafficMatrix& messages, const Kernel& kernel = all_to_all_kernel,
                            double bytes = 1) const;
  CollectiveCost all_to_all(const LinkTraffic& messages, const Kernel& kernel = all_to_all_kernel,
                            double bytes = 1) const;
  /// Prices tokens on their way to experts or back. Tables of their kernels are taken where the GPU
  /// has them, else an all-to-all of the copies.
  CollectiveCost exchange(const TokenExchange&) const;
  /// GPU `from` sends bytes to GPU `to` while the GPUs after them do likewise. With the constants
  /// of an all-gather between two, in which one has nothing to give.
  CollectiveCost send(int from, int to, Bytes bytes) const;
  /// Index of a GPU's NVLink domain.
  int domain_of(int gpu) const { return gpu / cluster_.scale_up_domain; }

 private:
  /// The busiest rank of each level, and the sums over all ranks.
  struct Volume {
    double nvlink_rank = 0, network_rank = 0;
    double nvlink_all = 0, network_all = 0;
  };
  Volume gather_volume(std::span<const double> contribution) const;
  Volume exchange_volume(const LinkTraffic& messages, double bytes) const;
  /// Bytes of one NIC that take as long as all these on the spine; 0 without a spine.
  double as_of_one_nic(double on_spine) const;
  /// Cost by a row's constants. A pass is one way over the network: its latency counts each time.
  CollectiveCost cost(const Kernel&, int gpus, int network_passes, const Volume&) const;

  ClusterSpec cluster_;
};

}  // namespace moesim
