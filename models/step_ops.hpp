// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "hardware/fabric.hpp"
#include "hardware/roofline.hpp"
#include "models/moe_model.hpp"

namespace moesim {

/// The stored and multiplied precisions of one deployment.
struct PrecisionPlan {
  Precision experts = Precision::bf16;
  Precision attention = Precision::bf16;  ///< weights of attention; embeddings, LM head, norms and
                                          ///< gates stay bf16
  Precision kv_cache = Precision::bf16;
  Precision activations = Precision::bf16;  ///< that narrow weights are multiplied with
  Precision ffn = Precision::bf16;          ///< weights of dense FFNs and shared experts
  double state_bytes = 4;                   ///< of a number in the state of linear attention
};
/// What is not given is `stored`'s, the model's own precisions; where these are not known,
/// "experts" and "attention" must be given, "ffn" is as attention, and "kv_cache" and "activations"
/// are bf16. Throws ConfigError.
PrecisionPlan read_precision(const ConfigNode&, const PrecisionPlan* stored = nullptr);
std::span<const Key> precision_keys();

/// How a model is spread over a group of GPUs: layers over pp pipeline stages; within a stage
/// attention dp x tp and experts ep x moe_tp with ep * moe_tp = dp * tp.
struct ParallelPlan {
  int dp = 1, tp = 1, ep = 1, pp = 1;
  int gpus() const { return dp * tp * pp; }
  int stage_gpus() const { return dp * tp; }
  int moe_tp() const { return dp * tp / ep; }
  /// The stage that holds a layer: contiguous layers, as many to each as can be.
  int stage_of(int layer, int layers) const { return layer * pp / layers; }
};
/// A warning where not every kernel takes an expert's slice, else empty: one of fp8 in blocks that
/// is not whole blocks of 128. vLLM 0.11 refuses it
/// (vllm/model_executor/layers/quantization/fp8.py); measured runs of vLLM 0.18 cut MiniMax-M2.5's
/// experts into slices of 192.
std::string expert_slice_warning(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);

/// dp, tp and pp are 1 if not given; ep is dp * tp (1 for a dense model). Throws ConfigError unless
/// ep divides dp * tp and is at most the number of experts, moe_tp divides an expert's width, tp
/// divides the query heads, one of tp and the KV heads divides the other, and every stage has a
/// layer.
ParallelPlan read_parallel(const ConfigNode&, const MoeModel&);
std::span<const Key> parallel_keys();

/// One sequence in a step: how many tokens it computes and how many stand before them in the KV
/// cache.
struct SequenceWork {
  std::int32_t new_tokens;
  std::int32_t context_tokens;
  /// The new tokens are one that is sampled and drafts behind it: a decode kernel computes them all
  /// with one read of the keys.
  bool verifies = false;
};

/// What attention must do on one rank, for layers of one kind: sums over its sequences.
struct AttentionWork {
  int window = 0;                ///< keys that a query sees, where it slides; 0: all
  double decode_sequences = 0;   ///< queries of sequences that decode: one each, or those verified
  double decode_kv_tokens = 0;   ///< keys read by them, once per sequence (new ones included)
  double decode_pairs = 0;       ///< causal query-key pairs of theirs
  double decode_batch = 0;       ///< sequences that decode
  double decode_context = 0;     ///< tokens in their KV caches, whatever a window hides
  bool thinned = false;          ///< sparse attention hides some of the keys before
  double prefill_tokens = 0;     ///< queries of sequences with more than one new token
  double prefill_kv_tokens = 0;  ///< keys read by them, once per sequence
  double prefill_pairs = 0;      ///< causal query-key pairs
  double prefill_batch = 0;      ///< sequences with more than one new token
  double prefill_context = 0;    ///< tokens in their KV caches, new ones included
  double sequences = 0;
  double indexed_keys = 0;   ///< sparse attention: keys that the indexer reads ...
  double indexed_pairs = 0;  ///< ... and query-key pairs that it scores, seen by attention or not
};
/// What a step asks of attention in layers like `layer`, whose window limits what each query sees.
/// A sequence that verifies, or has one new token, counts as decode, also when it is a prompt's
/// last chunk.
AttentionWork attention_work(std::span<const SequenceWork>, const LayerSpec& layer);

/// The parts of a step, as the report's breakdown names them.
enum class Part {
  attention,
  all_reduce,
  gate,
  token_routing,
  permute,
  dispatch,
  experts,
  shared_experts,
  combine,
  dense_ffn,
  rebalancing,  ///< weights of experts on the move: of no operation
  pipeline,     ///< a stage of a pipeline waits for another, or for what travels between them
  other
};
inline constexpr std::array<std::string_view, 13> part_names{
    "attention",      "all_reduce", "gate",      "token_routing", "permute",  "dispatch", "experts",
    "shared_experts", "combine",    "dense_ffn", "rebalancing",   "pipeline", "other"};

/// One operation of one GPU in one layer (or once per step), as `explain` shows it.
struct Operation {
  std::string_view name;  ///< a literal: "qkv_proj", "attention_decode", ...
  Part part;
  Cost cost;
};

/// One GPU's share of a model as it is deployed: what its operations follow from. Refers to what it
/// was made of.
struct ModelShard {
  const MoeModel& model;
  const ParallelPlan& plan;
  const PrecisionPlan& precision;
  const GpuSpec& gpu;
};

/// The first of three parts of the attention block of one layer, for a rank with `tokens` new
/// tokens: what depends on the tokens alone, the input norm, RoPE, the KV cache's rows and the
/// projections (TP-sliced) to queries, keys and values. Appends to `out`; no tokens append nothing,
/// here and below.
void attention_input_operations(const ModelShard&, double tokens, std::vector<Operation>& out);
/// What MLA multiplies its queries and outputs with to decode in the absorbed form, for so many
/// queries of sequences that decode; nothing for other attention.
void attention_absorption_operations(const ModelShard&, double queries,
                                     std::vector<Operation>& out);
/// The second part: attention itself. MLA decodes in the absorbed form, after its absorption, and
/// prefills in the expanded one.
void attention_core_operations(const ModelShard&, const AttentionWork&,
                               std::vector<Operation>& out);
/// The third part, which depends on the tokens alone again: the output projection and the norm
/// behind it. The TP all-reduce between the two is the caller's (it needs the fabric).
void attention_output_operations(const ModelShard&, double tokens, std::vector<Operation>& out);
/// The first part of a layer with linear attention: norm, projections and convolution.
void linear_attention_input_operations(const ModelShard&, double tokens,
                                       std::vector<Operation>& out);
/// The second part of a layer with linear attention: the recurrent state, which every sequence of
/// the step reads and writes once, and the chunks of prompts.
void linear_attention_core_operations(const ModelShard&, const AttentionWork&,
                                      std::vector<Operation>& out);
/// The third part of a layer with linear attention: the gated norm, the output projection and the
/// norm behind it.
void linear_attention_output_operations(const ModelShard&, double tokens,
                                        std::vector<Operation>& out);

/// All three parts of the attention block.
void attention_operations(const ModelShard&, double tokens, const AttentionWork&,
                          std::vector<Operation>& out);

/// An FFN of `width` that all tokens pass, sliced by tp: of a dense layer, or shared experts.
void dense_ffn_operations(const ModelShard&, double tokens, double width, Part part,
                          std::vector<Operation>& out);

/// Gate GEMM and top-k for `tokens` tokens on one GPU.
void gate_operations(const ModelShard&, double tokens, std::vector<Operation>& out);

/// Packing `copies` token rows before dispatch, or unpacking and the weighted sum after combine.
void permute_operations(const ModelShard&, double copies, std::string_view name,
                        std::vector<Operation>& out);

/// Embedding, final norm, LM head and sampling, once per step: `tokens` embedded, `sampled` given
/// logits.
void head_operations(const ModelShard&, double tokens, double sampled, std::vector<Operation>& out);

}  // namespace moesim
