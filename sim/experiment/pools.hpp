// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/experiment.hpp"

namespace moesim {

/// Keys that parts of an experiment have in common.
struct CommonKeys {
  std::span<const std::string_view> keys;       ///< that no part may have
  std::span<const std::string_view> taken_out;  ///< of a part's experiment: first what holds parts
  std::string_view all, one;                    ///< for messages: both pools, pool
};
/// The experiment of one part: its own keys, whole, in the place of those of all of `node`. Throws
/// ConfigError where the part has a common key, or `node` has failures, which are of one part.
ConfigNode part_of(const ConfigNode& node, const ConfigNode& part, const CommonKeys&);

/// A layout and how often it is there: "2 x tp2 dp4 ep8".
std::string layout_text(const ParallelPlan&, int instances);
/// GPUs of all groups of a pool.
int gpus_of(const ServedModel&);
/// Number of GPUs of its "cluster": all but experts' GPUs in a cluster of their own.
int gpus_in_cluster(const ServedModel&);
/// GPUs of a pool that are of one kind.
struct GpusOfKind {
  const GpuSpec& gpu;
  int gpus;
};
/// GPUs by kind, those of its "cluster" first. Refers to the pool.
std::vector<GpusOfKind> kinds_of_gpus(const ServedModel&);
/// True if two pools say the same "cluster", whose GPUs they then share: by a name or a path of one
/// file, or in equal words.
bool one_cluster(const PoolSpec&, const PoolSpec&);

/// Cost of moving the KV cache of a prompt to the other pool.
struct KvTransferCost {
  Bytes bytes{};      ///< that GPUs of the decode rank receive, over all links
  Seconds all{};      ///< on links without other traffic
  Seconds exposed{};  ///< of it, what no computation can hide
};
/// Every GPU of the decode rank receives the blocks that it will hold, in each of its pipeline
/// stages. Links work in parallel. The busiest is that of a GPU in the pool whose GPUs hold more
/// of a prompt: a narrower tp, fewer stages, a window. Or a GPU sends to several copies. The
/// experiment has two pools.
KvTransferCost kv_transfer(const Experiment&, std::int32_t prompt_tokens);

/// True if both pools have a key of their own, so that the one beside them has no effect.
bool both_pools_have(const Json& config, const std::string& key);
/// Throws ConfigError where a key stands beside pools that both have their own.
void refuse_keys_beside_pools(const ConfigNode& experiment);

/// Reads prefill and decode on GPUs of their own: {"prefill": {..}, "decode": {..}} under "pools",
/// and "kv_transfer": {"level": "nvlink" | "network"}. A request is prefilled, up to its first
/// token, in one pool; its KV cache crosses a link; it is decoded in the other. A pool's config is
/// the whole one with the keys of the pool in the place of its own. "level" is NVLink if one domain
/// holds all GPUs. Keys that must be equal in both (workload, model, seed, ..) are refused. A pool
/// may have a "cluster" of its own: KV caches then cross the network, at the rate of the slower
/// NIC. Throws ConfigError.
ExperimentSpec read_pools(const ConfigNode&, const Policies&);
std::span<const Key> pools_keys();
std::span<const Key> kv_transfer_keys();
/// Every key of two pools with its default: what is of both stands beside them.
Json resolved_pools(const ExperimentSpec&);

}  // namespace moesim
