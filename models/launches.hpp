// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "models/moe_model.hpp"

namespace moesim {

/// Small operations that an engine computes inside larger ones.
struct Fusions {
  bool norm = false;      ///< in the all-reduce before it, where there is one
  bool rope = false;      ///< in attention
  bool quantise = false;  ///< by scales that are known beforehand, in what writes the input
};
/// The fusions whose names `fused` says yes to.
Fusions fusions_where(const std::function<bool(std::string_view)>& fused);
/// The fusions of the engine whose kernels price the GPU.
Fusions fusions_of(const GpuSpec&);

/// Kernels that the host of one GPU launches for a step with prompts that no CUDA graph holds, over
/// all layers. Counted from the model's parts as engines run them one by one (vLLM 0.11,
/// vllm/model_executor: layers/fused_moe/fused_moe.py, layers/mla.py, layers/fla/ops/chunk.py,
/// layers/mamba/ops/ssd_combined.py, models/deepseek_v2.py); embedding and head are left out.
double kernel_launches(const MoeModel&, const ParallelPlan&, const PrecisionPlan&, const Fusions&);

}  // namespace moesim
