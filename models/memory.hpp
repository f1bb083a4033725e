// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/moe_model.hpp"
#include "models/step_ops.hpp"

namespace moesim {

/// Layers whose KV cache is kept alike share a group; all groups hold the same number of layers and
/// draw from one pool of equal blocks (vLLM's hybrid KV cache manager).
struct KvGroup {
  int layers = 0;
  int window = 0;  ///< 0 = every token is kept
};

/// How one GPU's KV cache is paged.
struct KvLayout {
  int block_tokens = 16;
  Bytes block;  ///< bytes of one block of one group on one GPU
  std::vector<KvGroup> groups;
  /// Blocks that hold a sequence of `tokens`.
  std::int64_t blocks_for(std::int64_t tokens) const;
};
KvLayout kv_layout(const MoeModel&, const ParallelPlan&, const PrecisionPlan&, int block_tokens);

/// Bytes of KV cache one token adds on one GPU over all layers, windows ignored. MLA is replicated,
/// not sliced by tp.
Bytes kv_bytes_per_token(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);
/// One routed expert in one layer on one GPU (its moe_tp slice).
Bytes expert_bytes(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);
/// Every weight that is not a routed expert, on one GPU.
Bytes non_expert_bytes(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);

}  // namespace moesim
