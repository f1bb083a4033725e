// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/pools.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace moesim {

namespace {

constexpr std::array<const char*, 8> of_both_pools{
    "workload", "model", "cluster", "seed", "slo", "measurement", "pools", "kv_transfer"};
constexpr std::array<std::string_view, 2> levels{"nvlink", "network"};

// The pool's own keys before those of the whole experiment.
ConfigNode pool_config(const ConfigNode& node, const ConfigNode& pool) {
  if (!pool.json().is_object()) pool.fail("expected an object");
  for (const char* key : of_both_pools) {
    if (pool.json().contains(key)) {
      pool.child(key).fail("is one for both pools; write it beside \"pools\"");
    }
  }
  if (node.json().contains("failures")) {
    node.child("failures").fail("says not in which pool; write it in one of \"pools\"");
  }
  Json config = node.json();
  config.erase("pools");
  config.erase("kv_transfer");
  for (const auto& [key, value] : pool.json().items()) config[key] = value;
  return {std::move(config), node.file(), pool.pointer()};
}

void check_pair(const ConfigNode& node, const Experiment& prefill, const Experiment& decode) {
  const ConfigNode pools = node.child("pools");
  const ClusterSpec& cluster = decode.cluster;
  const int p = gpus_of(prefill), d = gpus_of(decode);
  if (p + d > cluster.gpus()) {
    pools.fail(fmt::format("{} GPUs for prefill and {} for decode are {}, but {} has {}", p, d,
                           p + d, cluster.name, cluster.gpus()));
  }
  if (prefill.scheduler->prompts_arrive_computed()) {
    pools.child("prefill").fail(
        "\"decode_only\" computes no prompts; use \"chunked_prefill\" or \"prefill_first\"");
  }
  if (prefill.precision.kv_cache != decode.precision.kv_cache) {
    pools.fail("the pools store the KV cache in different precisions; it travels as it is");
  }
}

}  // namespace

KvTransferCost kv_transfer(const Pools& pools, std::int32_t prompt_tokens) {
  const auto held = [&](const Experiment& e) {
    return e.kv_layout.block.value() * double(e.kv_layout.blocks_for(prompt_tokens));
  };
  const double per_link = std::max(held(pools.prefill), held(pools.decode));
  const int links = pools.decode.parallel.tp;
  // GPU i sends to GPU `first` + i, which is of the next domain where the network is the way.
  const int first = pools.network ? std::max(links, pools.fabric.cluster().scale_up_domain) : links;
  const auto time = [&](double bytes) {
    TrafficMatrix matrix(first + links);
    for (int i = 0; i < links; ++i) matrix.at(i, first + i) = bytes;
    return pools.fabric.all_to_all(matrix).time;
  };
  return {Bytes(per_link * links), time(per_link),
          time(per_link / double(pools.decode.model.layers.size()))};
}

std::span<const Key> pools_keys() {
  static constexpr Form pool = form::partial_object(group_keys);
  static constexpr Key keys[] = {{"prefill", pool, required, "keys of the groups that prefill"},
                                 {"decode", pool, required, "keys of the groups that decode"}};
  return keys;
}

std::span<const Key> kv_transfer_keys() {
  static constexpr Key keys[] = {
      {"level", form::choice(levels), otherwise("nvlink, if it joins all"),
       "the links that are used"},
      {"overlap", form::flag, "true", "a layer's KV leaves while the next is computed"}};
  return keys;
}

Experiment load_pools(const ConfigNode& node, TraceLibrary& library, const Policies& policies) {
  // Keys of the groups are read by the pools, which refuse what they do not know.
  ConfigReader reader(node, experiment_keys);
  const auto load = [&](ConfigReader& pools, const char* name) {
    return load_experiment(pool_config(node, pools.child(name)), library, policies);
  };
  return read_object(reader.child("pools"), pools_keys, [&](ConfigReader& names) {
    Experiment prefill = load(names, "prefill");
    Experiment decode = load(names, "decode");
    prefill.prefill_only = true;
    check_pair(node, prefill, decode);
    const ClusterSpec& cluster = decode.cluster;
    const int gpus = gpus_of(prefill) + gpus_of(decode);
    const ConfigNode transfer = reader.child("kv_transfer");
    const auto [network, overlap] =
        read_object(transfer, kv_transfer_keys, [&](ConfigReader& options) {
          const bool far = gpus > cluster.scale_up_domain;
          const bool by_network = options.choice_or("level", levels, far ? 1 : 0) == 1;
          if (by_network && cluster.gpus() <= cluster.scale_up_domain) {
            options.child("level").fail(
                fmt::format("{} is one NVLink domain; use \"nvlink\"", cluster.name));
          }
          if (!by_network && far) {
            options.child("level").fail(
                fmt::format("NVLink joins {} GPUs, the pools have {}; use \"network\"",
                            cluster.scale_up_domain, gpus));
          }
          return std::pair(by_network, options.flag("overlap"));
        });
    Experiment e = decode;
    // As it is read: what is of both pools beside them, everything else in each.
    e.config = node.json();
    for (const char* key : of_both_pools) {
      if (!decode.config.contains(key)) continue;
      e.config[key] = decode.config[key];
      prefill.config.erase(key);
      decode.config.erase(key);
    }
    e.config["pools"] = {{"prefill", prefill.config}, {"decode", decode.config}};
    e.config["kv_transfer"] = {{"level", network ? "network" : "nvlink"}, {"overlap", overlap}};
    e.pools = std::make_shared<const Pools>(
        Pools{std::move(prefill), std::move(decode), Fabric(e.cluster), network, overlap});
    return e;
  });
}

}  // namespace moesim
