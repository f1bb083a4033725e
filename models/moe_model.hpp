// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/gpu.hpp"

namespace moesim {

/// Attention of one kind of layers. GQA when kv_lora == 0, MLA otherwise.
struct AttentionSpec {
  int query_heads = 0;
  int kv_heads = 0;              ///< GQA
  int head_dim = 0;              ///< GQA
  int q_lora = 0;                ///< MLA: rank of the query's compression, 0 for none
  int kv_lora = 0;               ///< MLA: rank of the cached latent
  int qk_nope = 0, qk_rope = 0;  ///< MLA, per head
  int v_dim = 0;                 ///< MLA: of a head's value; GQA: the same where it is not head_dim
  bool output_gate = false;      ///< a gate of the output is projected too (Qwen3-Next, Kimi-K3)
  bool values_are_keys = false;  ///< GQA: cached like any, but not projected (Gemma 4)
  /// GQA: queries and keys are normed over all heads at once (MiniMax-M2), so that GPUs which share
  /// the heads sum their squares.
  bool joint_qk_norm = false;
  /// Sparse attention (DeepSeek-V3.2): an indexer scores every token before with heads of its own,
  /// over keys of its own that it caches; a query attends to the `index_top` best. 0 for none.
  int index_heads = 0, index_dim = 0, index_top = 0;
  /// The index keys are cached in bf16 (MiniMax-M3), else in fp8 with an fp32 scale for 128 numbers
  /// (DeepSeek-V3.2), whatever the precision of the KV cache.
  bool index_keys_bf16 = false;
  bool is_mla() const { return kv_lora > 0; }
  bool is_sparse() const { return index_top > 0; }
  bool has_indexer() const { return index_heads > 0; }
  int value_dim() const { return v_dim > 0 ? v_dim : head_dim; }
  bool operator==(const AttentionSpec&) const = default;
};

/// Gated delta net, the linear attention of Qwen3-Next (arXiv:2412.06464), or a state space layer:
/// a sequence keeps a state of value_heads x key_dim x value_dim numbers and the last inputs of a
/// short convolution, however long it is. In Mamba-2 (arXiv:2405.21060) keys and queries are B and
/// C, each group's a head, and values are the inputs; Mamba (arXiv:2312.00752) is the same with a
/// head for each channel, and with B, C and the step made from the channels.
struct LinearAttentionSpec {
  int key_heads = 0, key_dim = 0;
  int value_heads = 0, value_dim = 0;
  int convolution = 0;  ///< tokens that it spans
  bool delta = true;    ///< updates by the delta rule; false: a state space layer
  int step_rank = 0;    ///< Mamba: rank of the projection of the step; 0: not Mamba
  /// Delta nets with a decay for each channel (Kimi Delta Attention): rank of the decay's
  /// projection; 0: a decay for each head.
  int decay_rank = 0;
  int gate_rank = 0;  ///< rank of the projection of the output's gate; 0: a full one
  bool operator==(const LinearAttentionSpec&) const = default;
};

/// One transformer layer.
struct LayerSpec {
  int window = 0;        ///< tokens of context attention sees; 0 = all
  bool chunked = false;  ///< the window is an aligned chunk (Llama 4), not sliding
  bool moe = true;
  bool ffn = true;      ///< false: nothing follows attention (Nemotron-H)
  bool linear = false;  ///< linear attention in the place of attention
  int sparse_top = 0;   ///< tokens that a query of sparse attention sees; 0 = all
  /// Sparse attention: the layer has an indexer; else it takes the choice of the last layer that
  /// has one (GLM-5.2).
  bool indexer = false;
  bool has_dense_ffn() const { return ffn && !moe; }
  bool operator==(const LayerSpec&) const = default;
};

/// What the authors of a model count as active beside its layers.
enum class ActiveCounts { lm_head, embeddings_and_lm_head, layers_only };
inline constexpr std::array<std::string_view, 3> active_counts_names{
    "lm_head", "embeddings_and_lm_head", "layers_only"};

/// What a forward pass of a Mixture-of-Experts (or dense) transformer is made of.
struct MoeModel {
  std::string name;
  std::string source;
  int hidden = 0;  ///< d
  int vocabulary = 0;
  bool tied_embeddings = false;
  AttentionSpec attention;
  AttentionSpec local;         ///< of layers with a window, where it differs; else without heads
  LinearAttentionSpec linear;  ///< of the layers that are linear
  int experts = 0;             ///< N, routed, per MoE layer; 0 = dense model
  int experts_per_token = 0;   ///< k
  int expert_width = 0;        ///< m, intermediate width of one routed expert
  int expert_hidden = 0;       ///< width that routed experts see, where it is not d (latent MoE)
  int shared_width = 0;        ///< total intermediate width of the shared experts, 0 for none
  int dense_width =
      0;  ///< intermediate width of the dense FFN layers (and dense residual), 0 for none
  bool dense_residual =
      false;                 ///< every MoE layer also has the dense FFN beside the experts (Arctic)
  int expert_groups = 1;     ///< group-limited gating: groups of experts ...
  int groups_per_token = 1;  ///< ... and how many groups a token may use
  /// Whose statistics synthetic routing has (moesim list presets); empty: nothing of the model's
  /// family is public.
  std::string gating_preset;
  int max_positions = 0;  ///< tokens that a sequence may have; 0: unlimited
  std::vector<LayerSpec> layers;
  double published_total = 0;  ///< parameters, as the model's authors publish them; 0 when unknown
  double published_active = 0;
  ActiveCounts published_counts = ActiveCounts::lm_head;  ///< the rule behind published_active

  int moe_layers() const;
  int linear_layers() const;
  /// The attention of a layer: the local one under a window, and an indexer only where the layer
  /// has one.
  AttentionSpec attention_of(const LayerSpec&) const;
  /// Width of what a token sends to its experts.
  int expert_input() const { return expert_hidden > 0 ? expert_hidden : hidden; }
  bool operator==(const MoeModel&) const = default;
};

/// Reads a zoo file (models/README.md) or an unmodified HuggingFace config.json ("model_type" or
/// "architectures" present; the keys it does not need are ignored). Throws ConfigError if a fact is
/// missing, contradicts another, or the architecture is not known.
MoeModel read_model(const ConfigNode&);
/// The keys of a zoo file.
std::span<const Key> model_keys();
/// One of these keys tells a HuggingFace config.json.
inline constexpr std::array<std::string_view, 2> hf_model_marks{"model_type", "architectures"};
bool is_hf_model(const ConfigNode&);

/// Numbers that one token caches in one layer on one of `tp` GPUs: keys and values of a slice of
/// the KV heads, at least one (replicated beyond); MLA's whole latent on every GPU.
double kv_elements(const AttentionSpec&, int tp);
/// Bytes of these numbers in a KV cache of that precision. The latent of sparse MLA in fp8 keeps
/// its rotary part in bf16 and an fp32 scale for 128 numbers (656 bytes, vLLM's fp8_ds_mla).
double kv_bytes(const AttentionSpec&, Precision kv_cache, int tp);
/// Bytes that an indexer caches for one token in one layer, on every GPU; 0 without an indexer.
double index_key_bytes(const AttentionSpec&);
/// Parameters of one layer's attention on one of `tp` GPUs; MLA's down projections and an indexer
/// are replicated.
double attention_parameters(const AttentionSpec&, int hidden, int tp = 1);
/// Parameters of one layer's linear attention: projections, convolution, gates, sliced by heads.
double linear_attention_parameters(const LinearAttentionSpec&, int hidden, int tp = 1);
/// Parameters of whichever attention a layer has.
double mixer_parameters(const MoeModel&, const LayerSpec&, int tp = 1);
/// Numbers in the recurrent state of one sequence and linear layer on one of `tp` GPUs, and in what
/// its convolution keeps.
struct LinearState {
  double recurrent = 0, convolution = 0;
};
LinearState linear_state(const LinearAttentionSpec&, int tp);
/// Parameters of a gated FFN: gate, up and down projections.
double ffn_parameters(int hidden, double width);
/// Parameters of one routed expert.
double expert_parameters(const MoeModel&);
/// Parameters of an MoE layer's gate and, with latent experts, of the projections around them.
double gate_parameters(const MoeModel&);
/// Parameters of the two norms of a layer.
double norm_parameters(int hidden);

/// Parameters; the counting rule: embeddings, LM head, norms, attention, gates, experts; no MTP
/// modules, no vision encoder, no biases, sinks or per-head norms (0.05 % of gpt-oss, less
/// elsewhere).
struct ParameterCount {
  double total = 0;
  double active =
      0;  ///< used for one token: k experts per MoE layer; embeddings are looked up, not counted
};
ParameterCount count_parameters(const MoeModel&);
/// The active parameters by the rule of the model's authors, to compare with published_active.
double active_as_published(const MoeModel&);

}  // namespace moesim
