// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hardware/kernels/kernel.hpp"

namespace moesim {

extern const Kernel attention_decode_kernel, attention_prefill_kernel;
extern const Kernel mla_decode_kernel, mla_prefill_kernel;
extern const Kernel mla_decode_module_kernel, mla_prefill_module_kernel, mla_bmm_kernel;

/// Load of one call of an attention kernel, summed over its sequences.
struct AttentionLoad {
  double sequences = 0;
  double queries = 0;  ///< new tokens
  double context = 0;  ///< tokens in the KV caches, whatever a window hides, new ones included
  double pairs = 0;    ///< queries and the keys that they see
  Work work{};         ///< what the roofline charges for it
};

/// The attention kernel of one layer on one GPU with keys and values for each KV head (MHA, GQA,
/// MQA).
struct AttentionShape {
  bool decode = true;                 ///< a query or few of each sequence against a long context
  double q_heads = 0, kv_heads = 0;   ///< of this GPU's slice
  double key_dim = 0, value_dim = 0;  ///< of a head
  int window = 0;                     ///< keys that a query sees; 0: all
  Precision kv_cache = Precision::bf16;
};

/// From the tables where the GPU has them, else the roofline of the work. Sequences of different
/// lengths are priced as that many equal ones with as many query-key pairs and as much context.
Cost attention(const AttentionShape&, const AttentionLoad&, const GpuSpec&);

/// Multi-head latent attention of one layer on one GPU (DeepSeek-V2, arXiv:2405.04434, section
/// 2.1). Decode has the absorbed form, against one latent for all heads. Prefill has the expanded
/// form, with keys and values for every head.
struct LatentAttentionShape {
  bool decode = true;
  double heads = 0;  ///< of this GPU's slice
  double kv_lora = 0, qk_nope = 0, qk_rope = 0, v_dim = 0;
  Precision kv_cache = Precision::bf16;
};
Cost latent_attention(const LatentAttentionShape&, const AttentionLoad&, const GpuSpec&);

/// Prices products that absorb the latent's projections, batched over heads, in bf16. They go into
/// queries (`keys`, before the core) or into outputs (values, behind it).
Cost absorption(bool keys, double queries, const LatentAttentionShape&, const GpuSpec&);

/// Prices a whole block of latent attention of one layer on one GPU, projections and quantisation
/// included. Engines' tables may time it as one (vLLM, TensorRT-LLM); nothing otherwise.
/// `projections` is the precision of its weights.
std::optional<Cost> latent_attention_block(const LatentAttentionShape&, const AttentionLoad&,
                                           Precision projections, const GpuSpec&);

// --- as tables are asked -------------------------------------------------------------------------

/// A call of equal sequences.
struct AttentionCall {
  bool decode = true;
  double kv_bytes = 2;  ///< of a cached element
  double q_heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  /// Counts of each sequence: the new tokens, all tokens, and the queries' keys.
  double batch = 0, queries = 0, context = 0, pairs = 0;
};
/// Keys that `queries` queries at the end of `context` tokens see, a window of 0 being none.
double causal_pairs(double queries, double context, double window);
Question ask(const AttentionCall&, const GpuSpec&);

struct LatentAttentionCall {
  bool decode = true;
  std::string_view block;  ///< with the projections in the precision of that name; empty: the core
  double kv_bytes = 2;
  double heads = 0, kv_lora = 0, qk_nope = 0, qk_rope = 0, v_dim = 0;
  double batch = 0, queries = 0, context = 0, pairs = 0;
};
Question ask(const LatentAttentionCall&, const GpuSpec&);

/// The calls that rows of attention tables measured. Throw ConfigError if a column is missing.
AttentionCall attention_of(const TableRow&, bool decode);
LatentAttentionCall latent_attention_of(const TableRow&, bool decode);

struct AbsorptionCall {
  bool keys = true;
  double queries = 0, heads = 0, kv_lora = 0, head_dim = 0;  ///< qk_nope of keys, v_dim of values
};
Question ask(const AbsorptionCall&, const GpuSpec&);

}  // namespace moesim
