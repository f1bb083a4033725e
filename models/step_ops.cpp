// SPDX-License-Identifier: Apache-2.0
#include "models/step_ops.hpp"

namespace moesim {

void dense_ffn_operations(const ModelShard& shard, double tokens, double width, Part part,
                          std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  if (width == 0) return;
  OperationList ops(part, precision, gpu, out);
  const double slice = width / plan.tp;
  ops.gemm("gate_up_proj", tokens, 2 * slice, model.hidden);
  ops.memory("swiglu", tokens * 3 * slice * bf16_bytes);
  ops.gemm("down_proj", tokens, model.hidden, slice);
}

void gate_operations(const ModelShard& shard, double tokens, std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::gate, precision, gpu, out);
  ops.bf16_gemm("gate", tokens, model.experts, model.hidden);
  if (model.expert_hidden > 0) {  // into the width of the experts, and what they answer back
    ops.bf16_gemm("latent_down_proj", tokens, model.expert_hidden, model.hidden);
    ops.bf16_gemm("latent_up_proj", tokens, model.hidden, model.expert_hidden);
  }
  if (gpu.tables) return;  // which time expert layers with their top-k
  // fp32 scores in; an id and a weight per choice out.
  ops.memory("top_k",
             tokens * (model.experts * fp32_bytes + model.experts_per_token * 2 * fp32_bytes));
}

void permute_operations(const ModelShard& shard, double copies, std::string_view name,
                        std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::permute, precision, gpu, out);
  ops.memory(name, copies * 2 * model.expert_input() * bytes_per_element(precision.activations));
}

void head_operations(const ModelShard& shard, double tokens, double sampled,
                     std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::other, precision, gpu, out);
  const double vocabulary = static_cast<double>(model.vocabulary) / plan.tp;
  ops.memory("embedding", tokens * 2 * model.hidden * bf16_bytes);
  ops.memory("final_norm", tokens * 2 * model.hidden * bf16_bytes);
  ops.bf16_gemm("lm_head", sampled, vocabulary, model.hidden);
  // Softmax and the draw pass over the fp32 logits of the whole vocabulary twice.
  ops.memory("sampling", sampled * 2 * model.vocabulary * fp32_bytes);
}

}  // namespace moesim
