// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/indexer.hpp"

namespace moesim {

/// Attention with keys and values for each KV head (MHA, GQA, MQA): of every token before, of a
/// window, or of what an indexer leaves (MiniMax-M3).
struct GroupedAttention {
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int q_lora = 0;                ///< rank of the queries' projection, 0 for none (Step-3)
  int v_dim = 0;                 ///< of a head's value; 0: head_dim
  bool output_gate = false;      ///< a gate of the output is projected too (Qwen3-Next)
  bool values_are_keys = false;  ///< cached like any, but not projected (Gemma 4)
  /// Queries and keys are normed over all heads at once (MiniMax-M2), so that GPUs which share the
  /// heads sum their squares.
  bool joint_qk_norm = false;
  Indexer indexer{};
  int window = 0;  ///< tokens that a query sees; 0: all
  bool chunked = false;
  int value_dim() const { return v_dim > 0 ? v_dim : head_dim; }
  bool operator==(const GroupedAttention&) const = default;
};
MixerPtr mixer(const GroupedAttention&);

/// In a config.json: num_attention_heads, num_key_value_heads, head_dim (hidden / heads if unset).
GroupedAttention hf_grouped(ConfigReader&, int hidden);
/// In a zoo file.
std::span<const Key> grouped_keys();
MixerPtr read_grouped(ConfigReader&);

}  // namespace moesim
