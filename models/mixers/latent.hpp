// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/indexer.hpp"

namespace moesim {

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): of every token before,
/// or of what an indexer leaves (DeepSeek-V3.2, GLM-5). Every GPU caches the whole latent.
struct LatentAttention {
  int query_heads = 0;
  int q_lora = 0;                           ///< rank of the query's compression, 0 for none
  int kv_lora = 0;                          ///< rank of the cached latent
  int qk_nope = 0, qk_rope = 0, v_dim = 0;  ///< per head
  bool output_gate = false;                 ///< a gate of the output is projected too (Kimi-K3)
  Indexer indexer{};
  bool operator==(const LatentAttention&) const = default;
};
MixerPtr mixer(const LatentAttention&);

/// In a config.json: q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim.
LatentAttention hf_latent(ConfigReader&);
/// The same with index_n_heads, index_head_dim, index_topk.
LatentAttention hf_sparse_latent(ConfigReader&);
/// In a zoo file.
std::span<const Key> latent_keys();
MixerPtr read_latent(ConfigReader&);

}  // namespace moesim
