// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hardware/config.hpp"
#include "hardware/units.hpp"
#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

struct Deployment;
struct ServedModel;

/// Which GPUs of a group: all alike, or with AFD those of attention or of the experts.
enum class GpuRole { both, attention, ffn };

/// Uses of one GPU's memory.
struct MemoryBudget {
  Bytes capacity;              ///< of the GPU
  Bytes usable;                ///< capacity * gpu_memory_utilization
  Bytes weights;               ///< everything but routed experts
  Bytes experts;               ///< routed experts, one copy of each over the group
  Bytes replicas;              ///< redundant slots, and once what a step's copies have room in
  Bytes buffers;               ///< exchange buffers, activations, logits, rebalance buffer
  Bytes rebalance_buffer;      ///< the rebalance buffer alone
  Bytes kv;                    ///< what is left
  std::int64_t kv_blocks = 0;  ///< per DP rank
};

/// The budget of a GPU that holds the KV cache, for a deployment whose placement, rules and KV
/// layout stand. Throws DoesNotFit if nothing is left for the KV cache.
MemoryBudget memory_budget(const Deployment&);
/// Sequences of a rank whose states fit the share of what is left that SGLang gives them.
std::int64_t seats_for_states(const Deployment&);

/// The budget of a GPU that holds experts alone, for a deployment with AFD. `kv` is unused and
/// holds no blocks. Throws DoesNotFit if weights and buffers take more than there is.
MemoryBudget ffn_memory_budget(const Deployment&);

/// KV blocks that each rank gives up while so many of its EP ranks are live. They make room for the
/// slots that all experts need there beyond the budget. 0 where its slots are enough, or no rank is
/// live.
std::int64_t kv_blocks_for_experts(const Deployment&, std::ptrdiff_t live);
/// Throws DoesNotFit if an outage takes all of a KV cache.
void check_outages(const Deployment&);

/// DP ranks that share a tier of the KV cache, where there are as many.
int ranks_of_tier(const ServedModel&, const KvTierPlan&);
/// Blocks that a tier holds which so many ranks share. A block counts on all GPUs of its rank, as
/// vLLM counts `kv_offloading_size`.
std::int64_t tier_blocks(const Deployment&, const KvTierPlan&, int ranks);
/// Throws ConfigError if a tier holds less than a block.
void check_tiers(const Deployment&);

}  // namespace moesim
