// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/attention_block.hpp"

namespace moesim {

extern const Kernel dsa_decode_kernel, dsa_prefill_kernel;
extern const Kernel msa_decode_kernel, msa_prefill_kernel;

/// Share of one GPU of a layer's latent attention over the `top` best tokens (DeepSeek-V3.2,
/// section 2). An indexer scores the tokens in this layer if it has one.
struct SparseLatentShape {
  double hidden = 0, heads = 0, q_lora = 0, kv_lora = 0, qk_nope = 0, qk_rope = 0, v_dim = 0;
  double index_heads = 0, index_dim = 0;   ///< 0: another layer chooses
  double latent_bytes = 0, key_bytes = 0;  ///< of a token's latent and of its index key
  bool scores() const { return index_heads > 0; }
};
/// Attention over some sequences, summed.
struct SparseLoad {
  bool decode = true;
  double sequences = 0, queries = 0, context = 0;
  double pairs = 0;   ///< queries and the tokens that they attend to
  double scored = 0;  ///< queries and all tokens before them
};

/// The same with keys and values for each KV head (MiniMax-M3): the best blocks of tokens.
struct SparseGroupedShape {
  double hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double index_heads = 0, index_dim = 0;
  double kv_bytes = 0, key_bytes = 0;  ///< of a token's keys and values, and of its index key
};

/// The whole block of one layer by the engine's tables; nothing where no table has it.
std::optional<Cost> sparse_latent_block(const SparseLatentShape&, const SparseLoad&,
                                        Precision kv_cache, Precision weights,
                                        Precision activations, const GpuSpec&);
std::optional<Cost> sparse_grouped_block(const SparseGroupedShape&, const SparseLoad&,
                                         Precision kv_cache, Precision weights,
                                         Precision activations, const GpuSpec&);

}  // namespace moesim
