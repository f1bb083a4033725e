// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/indexer.hpp"

namespace moesim {

/// Compressed attention (DeepSeek-V4): one latent is key and value of all heads. Queries attend to
/// a window of the last tokens, and to entries that stand for several tokens each: `in_layer` says
/// for how many (Sight::ratio). Where entries stand for `sparse_ratio` tokens, an indexer picks the
/// best, and the windows that are compressed overlap. Every GPU caches all entries.
struct CompressedAttention {
  int query_heads = 0;
  int q_lora = 0;                          ///< rank of the queries
  int latent_dim = 0, qk_rope = 0;         ///< of the latent, and its part with positions
  int output_groups = 0, output_lora = 0;  ///< of the output's projection, and the rank of each
  int window = 0;                          ///< tokens
  int sparse_ratio = 0;                    ///< tokens of an entry that an indexer may pick; 0: none
  int streams = 1;                         ///< of the hidden state, by hyper-connections
  Indexer indexer{};                       ///< `top` counts entries
  int ratio = 0;                           ///< tokens of an entry in this layer; 0: window alone
  bool operator==(const CompressedAttention&) const = default;
};
MixerPtr mixer(const CompressedAttention&);

/// In a config.json: q_lora_rank, head_dim, o_groups, o_lora_rank, hc_mult, index_*.
CompressedAttention hf_compressed(ConfigReader&);
/// In a zoo file.
std::span<const Key> compressed_keys();
MixerPtr read_compressed(ConfigReader&);

}  // namespace moesim
