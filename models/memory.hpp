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
  std::int64_t state_blocks = 0;  ///< that the state of a sequence's linear layers takes
  /// Blocks that hold a sequence of `tokens`, over all groups. A window's group keeps the blocks
  /// the window touches: one more than it fills, as it need not start with a block. A sequence of
  /// any tokens has a state.
  std::int64_t blocks_for(std::int64_t tokens) const;
};
/// Windows that differ in layers are cut into groups of their greatest common divisor: 36 chunked
/// and 12 full layers make four groups of 12. Of a group's layers a GPU holds those of its pipeline
/// stage, at most 1/pp rounded up.
KvLayout kv_layout(const MoeModel&, const ParallelPlan&, const PrecisionPlan&, int block_tokens);

/// Bytes of KV cache one token adds on one GPU over the layers of its stage (the largest), windows
/// ignored. MLA is replicated, not sliced by tp.
Bytes kv_bytes_per_token(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);
/// One routed expert in one layer on one GPU (its moe_tp slice).
Bytes expert_bytes(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);
/// MoE layers of the stage that has most of them.
int moe_layers_of_stage(const MoeModel&, const ParallelPlan&);
/// Every weight that is not a routed expert, on one GPU of the stage that has most: attention,
/// dense and shared FFNs sliced by tp, in the plan's `attention` precision; embeddings and LM head
/// sliced by tp, norms and gates replicated, in bf16, as deployments leave them (DeepSeek-V3,
/// arXiv:2412.19437 section 3.3).
Bytes non_expert_bytes(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);

}  // namespace moesim
