// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "hardware/fabric.hpp"
#include "models/moe_model.hpp"
#include "models/operations.hpp"

namespace moesim {

/// Share of one GPU of a model as it is deployed: what its operations follow from. Refers to what
/// it was made of.
struct ModelShard {
  const MoeModel& model;
  const ParallelPlan& plan;
  const PrecisionPlan& precision;
  const GpuSpec& gpu;
  /// Shard that a mixer of its layers is asked with.
  MixerShard mixers() const { return {model.hidden, plan, precision, gpu}; }
};

/// The operations of what is not a mixer. They are appended to `out`; no tokens append nothing.
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
