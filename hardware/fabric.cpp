// SPDX-License-Identifier: Apache-2.0
#include "hardware/fabric.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/kernels/collectives.hpp"
#include "hardware/kernels/deep_ep.hpp"
#include "hardware/shipped.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

std::span<const Key> network_keys() {
  static constexpr Key keys[] = {
      {"latency", form::time, required, "latency of a message between two nodes"},
      {"latency_per_doubling", form::time, "0 us", "latency added by each doubling of the GPUs"},
      {"bandwidth", form::bytes_per_second, required, "per GPU and direction"},
      {"bandwidth_share", form::number(0.001, 1), "1",
       "share of the bandwidth that large messages reach"},
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
  node.child("nodes").fail(fmt::format("{} nodes of {} GPUs are {} GPUs; expected at most {}",
                                       cluster.nodes, cluster.gpus_per_node, gpus, most));
}

/// A domain is made of whole nodes, or a node of whole domains, and the cluster of whole domains.
void check_domain(const ClusterSpec& cluster, const ConfigNode& node) {
  const int domain = cluster.scale_up_domain;
  const bool nests = domain % cluster.gpus_per_node == 0 || cluster.gpus_per_node % domain == 0;
  if (nests && cluster.gpus() % domain == 0) return;
  node.child("scale_up_domain")
      .fail(fmt::format("{} GPUs do not divide {} nodes of {} GPUs evenly; expected e.g. {}",
                        domain, cluster.nodes, cluster.gpus_per_node, cluster.gpus_per_node));
}

/// See Fabric: chunks of the best size.
Seconds transfer_time(double bytes, BytesPerSecond rate, Seconds ramp) {
  const Seconds full_rate = Bytes(bytes) / rate;
  return full_rate + Seconds(std::sqrt(ramp.count() * full_rate.count()));
}

// A measured time in the place of what the constants give, but no less than the links allow. Links
// differ more between siblings than kernels do: constants fitted on this GPU go before times that
// are carried over.
void take(CollectiveCost& cost, const TableTime& measured, Seconds least) {
  const bool fitted = cost.evidence == Evidence::calibrated;
  if (fitted && measured.evidence == Evidence::carried_over) return;
  cost.time = std::max(measured.time, least);
  cost.evidence = measured.evidence;
  if (least * 2 < cost.time) cost.bound = Resource::latency;
}

// A collective of NCCL or the engine as tables time it, inside one NVLink domain.
void take_measured(CollectiveCost& cost, const ClusterSpec& cluster, const CollectiveCall& call) {
  const GpuSpec& gpu = cluster.gpu;
  if (!gpu.tables || call.gpus > cluster.scale_up_domain || cost.time <= Seconds{}) return;
  const auto measured = gpu.tables->time(ask(call, gpu));
  // A switch may add up on the way: then an all-reduce sends each byte once.
  const Bytes moved(call.bytes * (call.gpus - 1) / call.gpus);
  if (measured) take(cost, *measured, moved / gpu.scale_up_bandwidth);
}

// The mean of `ranks` equal Poisson counts whose greatest is about `greatest`: the greatest of
// normal variables is so many deviations above their mean.
double mean_below(double greatest, double ranks) {
  const double a = std::sqrt(2 * std::log(ranks));
  const double deviations =
      a - (std::log(std::log(ranks)) + std::log(4 * std::numbers::pi)) / (2 * a);
  const double root = std::sqrt(deviations * deviations + 4 * greatest) - deviations;
  return root * root / 4;
}

// DeepEP's time for so many tokens of evenly chosen experts as keep the slower of the busiest
// ranks' links as long: the other link may have a busier rank that delays no other rank.
std::optional<TableTime> exchange_time(const GpuSpec& gpu, const TokenExchange& tokens, int gpus,
                                       int domains, double nvlink_bytes, double network_bytes) {
  constexpr double sms_of_normal_kernels = 20;  // DeepEP, Buffer.num_sms
  ExchangeCall call{.low_latency = tokens.low_latency,
                    .combine = tokens.combine,
                    .nodes = static_cast<double>(domains),
                    .hidden = tokens.hidden,
                    .top_k = tokens.top_k,
                    .experts = tokens.experts,
                    .sms = tokens.low_latency ? 0 : sms_of_normal_kernels};
  const ExchangeVolume one = volume_of(call);
  // Rows were measured with experts drawn at random: their busiest rank has more than the mean,
  // too, and in steps of few tokens by much.
  const auto mean = [&](double bytes) {
    return tokens.low_latency ? mean_below(bytes / tokens.bytes, gpus) * tokens.bytes : bytes;
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

Fabric::Fabric(ClusterSpec cluster) : cluster_(std::move(cluster)) {}

CollectiveCost Fabric::cost(Collective kind, int gpus, int network_passes,
                            const Volume& volume) const {
  if (volume.nvlink_all + volume.network_all <= 0) return {};
  const CollectiveConstants& constants = cluster_.gpu.collective(kind);
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
  return volume;
}

CollectiveCost Fabric::all_gather(std::span<const double> contribution) const {
  const int gpus = static_cast<int>(contribution.size());
  check(gpus <= cluster_.gpus(), "an all-gather is wider than the cluster");
  if (gpus <= 1) return {};
  CollectiveCost gathered = cost(Collective::all_gather, gpus, 1, gather_volume(contribution));
  const double total = std::accumulate(contribution.begin(), contribution.end(), 0.0);
  take_measured(gathered, cluster_, {false, "all_gather", double(gpus), total});
  return gathered;
}

CollectiveCost Fabric::send(int from, int to, Bytes bytes) const {
  check(std::max(from, to) < cluster_.gpus(), "a send goes beyond the cluster");
  const bool near = domain_of(from) == domain_of(to);
  Volume volume;
  (near ? volume.nvlink_rank : volume.network_rank) =
      bytes.value() * (near ? 1 : cluster_.oversubscription);
  (near ? volume.nvlink_all : volume.network_all) = bytes.value();
  CollectiveCost sent = cost(Collective::all_gather, 2, 0, volume);
  if (!near) sent.time += cluster_.network.latency + cluster_.network.latency_per_doubling;
  return sent;
}

CollectiveCost Fabric::reduce_scatter(std::span<const double> contribution) const {
  const int gpus = static_cast<int>(contribution.size());
  check(gpus <= cluster_.gpus(), "a reduce-scatter is wider than the cluster");
  if (gpus <= 1) return {};
  CollectiveCost sums = cost(Collective::reduce_scatter, gpus, 1, gather_volume(contribution));
  const double total = std::accumulate(contribution.begin(), contribution.end(), 0.0);
  take_measured(sums, cluster_, {false, "reduce_scatter", double(gpus), total});
  return sums;
}

CollectiveCost Fabric::all_reduce(int gpus, Bytes bytes, Collective kind) const {
  check(gpus <= cluster_.gpus(), "an all-reduce is wider than the cluster");
  if (gpus <= 1) return {};
  const std::vector<double> slices(static_cast<std::size_t>(gpus), bytes.value() / gpus);
  Volume volume = gather_volume(slices);
  for (double* bytes_moved :
       {&volume.nvlink_rank, &volume.network_rank, &volume.nvlink_all, &volume.network_all}) {
    *bytes_moved *= 2;
  }
  CollectiveCost sum = cost(kind, gpus, 2, volume);
  const bool engine = kind == Collective::one_shot_all_reduce;
  take_measured(sum, cluster_, {engine, "all_reduce", double(gpus), bytes.value()});
  return sum;
}

CollectiveCost Fabric::all_reduce(int gpus, Bytes bytes) const {
  const CollectiveCost ring = all_reduce(gpus, bytes, Collective::all_reduce);
  if (gpus > cluster_.scale_up_domain) return ring;
  const CollectiveCost one_shot = all_reduce(gpus, bytes, Collective::one_shot_all_reduce);
  return one_shot.time < ring.time ? one_shot : ring;
}

Fabric::Volume Fabric::exchange_volume(const TrafficMatrix& messages, double bytes) const {
  const int gpus = messages.gpus();
  const auto all = static_cast<std::size_t>(gpus), domain = at(cluster_.scale_up_domain);
  // Row by row, which is how the matrix lies in memory.
  std::vector<double> sums(4 * all);
  const auto part = [&](std::size_t i) { return std::span(sums).subspan(i * all, all); };
  const std::span<double> near_out = part(0), far_out = part(1), near_in = part(2),
                          far_in = part(3);
  for (std::size_t gpu = 0; gpu < all; ++gpu) {
    const std::size_t first = gpu / domain * domain, end = std::min(all, first + domain);
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
  return volume;
}

CollectiveCost Fabric::all_to_all(const TrafficMatrix& messages, Collective kind,
                                  double bytes) const {
  const int gpus = messages.gpus();
  check(gpus <= cluster_.gpus(), "an all-to-all is wider than the cluster");
  if (gpus <= 1) return {};
  return cost(kind, gpus, 1, exchange_volume(messages, bytes));
}

CollectiveCost Fabric::exchange(const TokenExchange& tokens) const {
  const int gpus = tokens.copies.gpus();
  check(gpus <= cluster_.gpus(), "an exchange is wider than the cluster");
  if (gpus <= 1) return {};
  const Collective back = Collective::low_latency_combine;
  const Collective out = Collective::low_latency_all_to_all;
  const Collective kind =
      tokens.low_latency ? (tokens.combine ? back : out) : Collective::all_to_all;
  const Volume volume = exchange_volume(tokens.copies, tokens.bytes);
  CollectiveCost exchange = cost(kind, gpus, 1, volume);
  const GpuSpec& gpu = cluster_.gpu;
  if (!gpu.tables || tokens.hidden <= 0 || exchange.time <= Seconds{}) return exchange;
  const int domains = domain_of(gpus - 1) + 1;
  const bool like_measured = std::abs(cluster_.network.bandwidth.value() / measured_nic - 1) < 0.2;
  if (domains > 1 && !like_measured) return exchange;
  const auto measured =
      exchange_time(gpu, tokens, gpus, domains, volume.nvlink_rank, volume.network_rank);
  if (measured) take(exchange, *measured, Bytes(volume.nvlink_rank) / gpu.scale_up_bandwidth);
  return exchange;
}

}  // namespace moesim
