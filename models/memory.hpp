// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/moe_model.hpp"

namespace moesim {

/// Layers whose KV cache is kept in the same way share a group. All groups have room for the same
/// number of layers and draw from one pool of equal blocks (vLLM's hybrid KV cache manager).
struct KvGroup {
  int layers = 0;         ///< room for them in a block; the last group of a kind may hold fewer
  int window = 0;         ///< 0 = every token is kept
  bool chunked = false;   ///< the window is an aligned chunk (LayerSpec)
  int block_tokens = 16;  ///< of a block of this group
  /// The first block, of so many tokens, that the token at position `computed` and those after it
  /// still attend to.
  std::int64_t first_block(std::int64_t computed, int of) const;
};

/// How an engine divides a GPU's KV cache.
struct KvPaging {
  int block_tokens = 16;   ///< of one GPU's block
  bool keeps_all = false;  ///< layers with a window keep every token
  /// Layers with a window, and windows of compressed attention, have a pool of their own for so
  /// many times the tokens that the others keep (SGLang's swa_full_tokens_ratio); 0: all draw from
  /// one pool. Taken for requests longer than the window.
  double window_ratio = 0;
  /// Blocks have as many tokens as a layer's state is large. Windows of compressed attention, and
  /// tokens whose entry is open, have groups of their own (vLLM).
  bool pages_as_states = false;
  /// States of a sequence in a pool of their own; 0: states are in blocks of the KV cache.
  int state_slots = 0;
  /// True if a prefix cache keeps states too, in a pool as large for any number of sequences.
  bool caches_states() const { return state_slots > 1; }
  /// Steps of a prompt that windows keep blocks for: those that run at once. vLLM from 0.26 on
  /// schedules one while another runs (vllm#47728).
  int steps_in_flight = 1;
};

/// How one GPU's KV cache is paged.
struct KvLayout {
  int block_tokens = 16;  ///< of a rank: with DCP dcp times those that one GPU's block holds
  Bytes block;            ///< bytes of one block of one group on one GPU
  double pieces = 0;  ///< contiguous ones, in which these bytes lie where each layer has its own
  std::vector<KvGroup> groups;
  bool windows_apart = false;     ///< KvPaging::window_ratio of layers with a window
  std::int64_t state_blocks = 0;  ///< that the states of a sequence take
  int steps_in_flight = 1;        ///< KvPaging's; with a pipeline one more for each further stage
  bool has_windows() const;
  /// Blocks over all groups that a sequence holds while a step computes its tokens from `computed`
  /// to before `end`. A window's group has let go of the blocks that lie before what the first of
  /// these tokens attends to. It holds those of all tokens of the step, as vLLM's does. A sequence
  /// of any tokens has a state.
  std::int64_t blocks_in_step(std::int32_t computed, std::int32_t end) const {
    std::int64_t blocks = end > 0 ? state_blocks : 0;
    for (const KvGroup& group : groups) {
      // Asked for each sequence of each step: 32 bits divide several times as fast as 64.
      const auto of = static_cast<std::uint32_t>(group.block_tokens);
      blocks += (static_cast<std::uint32_t>(end) + of - 1) / of;
      if (group.window > 0) blocks -= group.first_block(computed, group.block_tokens);
    }
    return blocks;
  }
  /// Number of these blocks beyond the `held` ones; negative where a window leaves more behind than
  /// it takes.
  std::int64_t more_in_step(std::int64_t held, std::int32_t computed, std::int32_t end) const {
    // Most often there is one group that keeps all, and room in the last block: no division then.
    if (groups.size() == 1 && groups.front().window == 0 && state_blocks == 0) {
      const std::int64_t room = held * block_tokens - end;
      if (room >= 0 && room < block_tokens) return 0;
    }
    return blocks_in_step(computed, end) - held;
  }
  /// Bound that blocks_in_step() never exceeds for a sequence of `tokens` computed in chunks of at
  /// most `chunk`. A window's group holds window - 1 + chunk tokens, for each step in flight so
  /// many, in one block more than they fill. The tokens need not start with a block (vLLM's
  /// max_admission_blocks_per_request).
  std::int64_t blocks_at_most(std::int64_t tokens, std::int64_t chunk) const;
  /// Blocks that a sequence of `tokens` holds while it decodes.
  std::int64_t blocks_for(std::int64_t tokens) const { return blocks_at_most(tokens, 1); }
};
/// Groups layers as vLLM does (v1/core/kv_cache_utils.py): as many to a group as the kind of window
/// with fewest layers has. So 36 chunked and 12 full layers make four groups of 12, and 50 sliding
/// and 10 full ones six of 10; the last group of a kind is padded. Where the kind with most layers
/// has less than 1.5 times as many, each kind is one group of that size. Of a group's layers a GPU
/// holds those of its pipeline stage, at most 1/pp rounded up. With
/// `pages_as_states` linear layers are a kind, too, and a block of theirs is one state.
KvLayout kv_layout(const MoeModel&, const ParallelPlan&, const PrecisionPlan&,
                   const KvPaging& = {});
/// Bytes of the states of one sequence in recurrent layers, on a GPU of the stage with most.
Bytes state_bytes(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);

/// Bytes of KV cache one token adds on one GPU over the layers of its stage (the largest), windows
/// ignored; with DCP in the mean. MLA is replicated, not sliced by tp.
Bytes kv_bytes_per_token(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);
/// Bytes of one routed expert in one layer on one GPU (its moe_tp slice). Engines pad slices of
/// MXFP4, to whole blocks of 32 at least (gpt-oss on tp 8: 384 of 360; vLLM 0.11,
/// vllm/model_executor/models/gpt_oss.py).
Bytes expert_bytes(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);
/// How many MoE layers the pipeline stage with the most has.
int moe_layers_of_stage(const MoeModel&, const ParallelPlan&);
/// Bytes of weights that are no routed expert, on one GPU of the stage that has most. Attention,
/// dense and shared FFNs are sliced by tp, in the plan's `attention` precision. Embeddings and LM
/// head are sliced by tp, norms and gates replicated, in bf16, as deployments leave them
/// (DeepSeek-V3, arXiv:2412.19437 section 3.3).
Bytes non_expert_bytes(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);

}  // namespace moesim
