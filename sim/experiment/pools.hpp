// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/experiment.hpp"

namespace moesim {

/// Prefill and decode on GPUs of their own. A request is prefilled, up to its first token, in one
/// pool; its KV cache crosses a link; it is decoded in the other. Each pool has its own router,
/// plan, placement and policies.
struct Pools {
  Experiment prefill, decode;
  Fabric fabric;
  bool network = false;  ///< the link is the network, else NVLink
  /// The KV cache of a layer leaves as the layer is computed, else all of it after the first token.
  bool overlap = true;
};

/// What the KV cache of a prompt takes to cross over.
struct KvTransferCost {
  Bytes bytes{};         ///< over all links
  Seconds all{};         ///< on links that nobody else uses
  Seconds last_layer{};  ///< of it, what no computation can hide
};
/// Blocks as the pool that needs more of them holds them (a narrower tp, a window): every GPU of
/// the decode rank takes its share over one link, from a GPU of the prefill rank.
KvTransferCost kv_transfer(const Pools&, std::int32_t prompt_tokens);

/// An experiment with "pools": {"prefill": {..}, "decode": {..}} and "kv_transfer": {"level":
/// "nvlink" | "network", "overlap": true}. A pool's experiment is the whole config with the keys of
/// the pool in the place of its own. "level" is NVLink if one domain holds all GPUs. What must be
/// one for both pools (workload, model, cluster, seed, ...) is refused in them. Throws ConfigError.
std::span<const Key> pools_keys();
std::span<const Key> kv_transfer_keys();
Experiment load_pools(const ConfigNode&, TraceLibrary&, const Policies&);

}  // namespace moesim
