// SPDX-License-Identifier: Apache-2.0
#include "hardware/fabric.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/shipped.hpp"

namespace moesim {

namespace {

std::span<const Key> network_keys() {
  static constexpr Key keys[] = {
      {"latency", form::time, required, "latency of a message between two nodes"},
      {"latency_per_doubling", form::time, "0 us", "latency added by each doubling of the GPUs"},
      {"bandwidth", form::bytes_per_second, required, "per GPU and direction"},
      {"bandwidth_share", form::number(0.001, 1), "1",
       "share of the bandwidth that large messages reach"},
      {"spine_bandwidth", form::bytes_per_second, unset("all that NICs send"),
       "what all NVLink domains together send each other, in one direction"},
      {"source", form::text, required, "where these numbers come from"}};
  return keys;
}

LinkSpec read_network(const ConfigNode& node) {
  return read_object(node, network_keys, [](ConfigReader& reader) {
    LinkSpec link{.latency = reader.quantity<Seconds>("latency"),
                  .latency_per_doubling = reader.quantity<Seconds>("latency_per_doubling"),
                  .bandwidth = reader.quantity<BytesPerSecond>("bandwidth"),
                  .bandwidth_share = reader.number("bandwidth_share"),
                  .source = reader.text("source")};
    if (link.bandwidth <= BytesPerSecond(0))
      reader.child("bandwidth").fail("must be more than zero");
    if (reader.optional("spine_bandwidth")) {
      link.spine = reader.quantity<BytesPerSecond>("spine_bandwidth");
      if (*link.spine <= BytesPerSecond(0))
        reader.child("spine_bandwidth").fail("must be more than zero");
    }
    return link;
  });
}

/// A GPU file as it is now: read again only where its time or size has changed.
GpuSpec read_gpu_file(const std::filesystem::path& file) {
  static std::mutex mutex;
  static std::map<std::string, GpuSpec> known;
  std::error_code absent;
  const auto time = std::filesystem::last_write_time(file, absent).time_since_epoch().count();
  const auto size = absent ? 0 : std::filesystem::file_size(file, absent);
  const std::string key = fmt::format("{} {} {}", time, size, file.string());
  if (!absent) {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  GpuSpec gpu = read_gpu(ConfigNode::from_file(file));
  const std::lock_guard lock(mutex);
  return known.try_emplace(key, std::move(gpu)).first->second;
}

GpuSpec read_gpu_of(const ConfigNode& node) {
  if (node.json().is_object()) return read_gpu(node);
  return read_gpu_file(named_file(node, Shipped::gpu));
}

// GPUs are counted in 32 bits.
void check_size(const ClusterSpec& cluster, const ConfigNode& node) {
  const std::int64_t gpus = std::int64_t{cluster.gpus_per_node} * cluster.nodes;
  constexpr std::int64_t most = 1'000'000;
  if (gpus <= most) return;
  node.child("nodes").fail("{} nodes of {} GPUs are {} GPUs; expected at most {}", cluster.nodes,
                           cluster.gpus_per_node, gpus, most);
}

/// A domain is made of whole nodes, or a node of whole domains, and the cluster of whole domains.
void check_domain(const ClusterSpec& cluster, const ConfigNode& node) {
  const int domain = cluster.scale_up_domain;
  const bool nests = domain % cluster.gpus_per_node == 0 || cluster.gpus_per_node % domain == 0;
  if (nests && cluster.gpus() % domain == 0) return;
  node.child("scale_up_domain")
      .fail("{} GPUs do not divide {} nodes of {} GPUs evenly; expected e.g. {}", domain,
            cluster.nodes, cluster.gpus_per_node, cluster.gpus_per_node);
}

/// See Fabric: chunks of the best size.
Seconds transfer_time(double bytes, BytesPerSecond rate, Seconds ramp) {
  const Seconds full_rate = Bytes(bytes) / rate;
  return full_rate + Seconds(std::sqrt(ramp.count() * full_rate.count()));
}

}  // namespace

std::span<const Key> cluster_keys() {
  static constexpr Form count = form::integer(1, 1e6);
  static constexpr Form inline_gpu = form::object(gpu_keys);
  static constexpr Key keys[] = {
      {"name", form::text, required, "the cluster's name in reports"},
      {"source", form::text, required, "where these numbers come from"},
      {"gpu", form::file.or_a(inline_gpu), required, "its GPU: hardware/gpus/*.json"},
      {"gpus_per_node", count, required, "GPUs of one host"},
      {"nodes", count, required, "hosts"},
      {"scale_up_domain", count, required, "GPUs that NVLink joins"},
      {"network", form::object(network_keys), required, "between NVLink domains"},
      {"oversubscription", form::number(1, 1000), "1",
       "how much the network above a node is oversubscribed"}};
  return keys;
}

ClusterSpec read_cluster(const ConfigNode& node) {
  return read_object(node, cluster_keys, [&](ConfigReader& reader) {
    ClusterSpec cluster;
    cluster.name = reader.text("name");
    cluster.source = reader.text("source");
    cluster.gpu = read_gpu_of(reader.child("gpu"));
    cluster.gpus_per_node = static_cast<int>(reader.integer("gpus_per_node"));
    cluster.nodes = static_cast<int>(reader.integer("nodes"));
    cluster.scale_up_domain = static_cast<int>(reader.integer("scale_up_domain"));
    cluster.network = read_network(reader.child("network"));
    cluster.oversubscription = reader.number("oversubscription");
    check_size(cluster, node);
    check_domain(cluster, node);
    return cluster;
  });
}

ClusterSpec joined(const ClusterSpec& a, const ClusterSpec& b) {
  const auto rate = [](const ClusterSpec& c) {
    return c.network.bandwidth * c.network.bandwidth_share / c.oversubscription;
  };
  ClusterSpec cluster = rate(a) < rate(b) ? a : b;
  // Nodes may differ in size, so the GPUs are counted and the nodes told as large as they divide.
  cluster.gpus_per_node = std::gcd(a.gpus_per_node, b.gpus_per_node);
  cluster.nodes = (a.gpus() + b.gpus()) / cluster.gpus_per_node;
  cluster.scale_up_domain = b.scale_up_domain;
  cluster.gpu.scale_up_bandwidth = std::min(a.gpu.scale_up_bandwidth, b.gpu.scale_up_bandwidth);
  return cluster;
}

Fabric::Fabric(ClusterSpec cluster) : cluster_(std::move(cluster)) {}

CollectiveCost Fabric::cost(const Kernel& kernel, int gpus, int network_passes,
                            const Volume& volume) const {
  if (volume.nvlink_all + volume.network_all <= 0) return {};
  const CollectiveConstants& constants = cluster_.gpu.collective(kernel);
  const LinkSpec& net = cluster_.network;
  const int domains = domain_of(gpus - 1) + 1;
  const int neighbours = std::min(gpus, cluster_.scale_up_domain) - 1;

  Seconds alpha = constants.launch + constants.per_gpu * neighbours;
  if (domains > 1)
    alpha += network_passes * (net.latency + net.latency_per_doubling * std::log2(domains));
  const Seconds nvlink =
      transfer_time(volume.nvlink_rank, cluster_.gpu.scale_up_bandwidth * constants.bandwidth_share,
                    constants.ramp);
  const Seconds network =
      transfer_time(volume.network_rank, net.bandwidth * net.bandwidth_share, constants.ramp);
  const Seconds transfer = std::max(nvlink, network);
  const Resource slower = network > nvlink ? Resource::network : Resource::nvlink;
  return {.time = alpha + transfer,
          .bound = alpha > transfer ? Resource::latency : slower,
          .nvlink = Bytes(volume.nvlink_all),
          .network = Bytes(volume.network_all),
          .evidence = constants.evidence_for(volume.nvlink_rank)};
}

double Fabric::as_of_one_nic(double on_spine) const {
  const LinkSpec& net = cluster_.network;
  return net.spine ? on_spine * (net.bandwidth * net.bandwidth_share / *net.spine) : 0;
}

// A domain receives what other domains contribute once, spread over the NICs of its GPUs, and
// spreads it over NVLink: GPU i takes (total - own) less what its own NIC brought.
Fabric::Volume Fabric::gather_volume(std::span<const double> contribution) const {
  const double total = std::accumulate(contribution.begin(), contribution.end(), 0.0);
  const auto domain = static_cast<std::size_t>(cluster_.scale_up_domain);
  Volume volume;
  for (std::size_t first = 0; first < contribution.size(); first += domain) {
    const auto members = contribution.subspan(first, std::min(domain, contribution.size() - first));
    const double inside = std::accumulate(members.begin(), members.end(), 0.0);
    // A single domain has nothing outside, whatever the rounding of the two sums.
    const double outside = members.size() == contribution.size() ? 0 : total - inside;
    const double per_nic = outside / static_cast<double>(members.size());
    volume.network_rank = std::max(volume.network_rank, per_nic * cluster_.oversubscription);
    volume.network_all += outside;
    for (const double own : members) {
      const double received = total - own - per_nic;
      volume.nvlink_rank = std::max(volume.nvlink_rank, received);
      volume.nvlink_all += received;
    }
  }
  volume.network_rank = std::max(volume.network_rank, as_of_one_nic(volume.network_all));
  return volume;
}

TrafficMatrix even_traffic(int gpus, double to_each) {
  TrafficMatrix traffic(gpus);
  for (int from = 0; from < gpus; ++from)
    for (int to = 0; to < gpus; ++to)
      if (to != from) traffic.at(from, to) = to_each;
  return traffic;
}

LinkTraffic::LinkTraffic(int gpus, int gpus_per_domain)
    : domain(gpus_per_domain),
      near_out(at(gpus)),
      far_out(at(gpus)),
      near_in(at(gpus)),
      far_in(at(gpus)) {}

LinkTraffic::LinkTraffic(const TrafficMatrix& messages, int gpus_per_domain)
    : LinkTraffic(messages.gpus(), gpus_per_domain) {
  const std::size_t all = near_out.size(), in_domain = at(domain);
  // Row by row, which is how the matrix lies in memory.
  for (std::size_t gpu = 0; gpu < all; ++gpu) {
    const std::size_t first = gpu / in_domain * in_domain, end = std::min(all, first + in_domain);
    const std::span<const double> row = messages.row(static_cast<int>(gpu));
    const auto send = [&](std::size_t from, std::size_t to, double& out, std::span<double> in) {
      for (std::size_t peer = from; peer < to; ++peer) in[peer] += row[peer];
      for (std::size_t peer = from; peer < to; ++peer) out += row[peer];
    };
    send(0, first, far_out[gpu], far_in);
    send(first, gpu, near_out[gpu], near_in);
    send(gpu + 1, end, near_out[gpu], near_in);
    send(end, all, far_out[gpu], far_in);
  }
}

void LinkTraffic::clear() {
  for (std::vector<double>* sums : {&near_out, &far_out, &near_in, &far_in})
    std::ranges::fill(*sums, 0.0);
}

void LinkTraffic::add(int from, int to, double amount) {
  if (from == to) return;
  const bool near = from / domain == to / domain;
  (near ? near_out : far_out)[at(from)] += amount;
  (near ? near_in : far_in)[at(to)] += amount;
}

Fabric::Volume Fabric::exchange_volume(const LinkTraffic& messages, double bytes) const {
  check(messages.domain == cluster_.scale_up_domain,
        "traffic was counted for other NVLink domains");
  const auto& [in_domain, near_out, far_out, near_in, far_in] = messages;
  const std::size_t all = near_out.size(), domain = at(in_domain);
  Volume volume;
  for (std::size_t first = 0; first < all; first += domain) {
    const std::size_t end = std::min(all, first + domain);
    double domain_out = 0, domain_in = 0;
    for (std::size_t gpu = first; gpu < end; ++gpu) {
      volume.nvlink_rank =
          std::max({volume.nvlink_rank, near_out[gpu] * bytes, near_in[gpu] * bytes});
      volume.network_rank =
          std::max({volume.network_rank, far_out[gpu] * bytes, far_in[gpu] * bytes});
      volume.nvlink_all += near_out[gpu] * bytes;
      volume.network_all += far_out[gpu] * bytes;
      domain_out += far_out[gpu] * bytes;
      domain_in += far_in[gpu] * bytes;
    }
    // The group's share of the domain's uplink, as if all of it crossed one link per GPU.
    const double uplink = std::max(domain_out, domain_in) * cluster_.oversubscription /
                          static_cast<double>(end - first);
    volume.network_rank = std::max(volume.network_rank, uplink);
  }
  volume.network_rank = std::max(volume.network_rank, as_of_one_nic(volume.network_all));
  return volume;
}

}  // namespace moesim
