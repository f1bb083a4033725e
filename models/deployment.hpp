// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "hardware/config.hpp"
#include "hardware/gpu.hpp"
#include "hardware/keys.hpp"

namespace moesim {

struct MoeModel;

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

}  // namespace moesim
