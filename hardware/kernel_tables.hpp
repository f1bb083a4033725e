// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "hardware/gpu.hpp"
#include "hardware/roofline.hpp"

namespace moesim {

/// Which of several kernels that were measured side by side an engine runs, by table ("experts",
/// "gemm", "attention_decode", ...): part of the kernel's name there, e.g. {"experts",
/// "min_latency"}. Without one the fastest for the work at hand.
using KernelChoice = std::map<std::string, std::string, std::less<>>;

/// The GPU with its kernels priced by measured tables instead of by rooflines alone. Each family is
/// looked for in turn in the nearest version of the engine on this GPU, in another engine's on this
/// GPU, in the same two of the GPU's sibling, scaled by the data sheets; what none of them has
/// keeps its roofline. An empty version is the newest. A GPU without profiles and sibling comes
/// back as it was. Tables are read when a family is first asked for. Throws ConfigError if a
/// profile's folder or file is missing or malformed.
GpuSpec with_engine(GpuSpec gpu, const EngineVersion& engine, const KernelChoice& = {});

/// The profiles of a GPU, the nearest first: the engine's by distance of versions, then other
/// engines' in the order of the file.
std::vector<Profile> by_nearness(std::vector<Profile> profiles, const EngineVersion& engine);

/// The attention kernel of one layer on one GPU. MLA has one latent for all heads: kv_heads and
/// head_dim are not looked at.
struct AttentionShape {
  bool decode = true;  ///< a query or few of each sequence against a long context
  bool mla = false;    ///< decode in the absorbed form, prefill in the expanded one
  double q_heads = 0, kv_heads = 0, head_dim = 0;  ///< of this GPU's slice
  int window = 0;                                  ///< keys that a query sees; 0: all
  Precision kv_cache = Precision::bf16;
};

/// What one call of an attention kernel works on, summed over its sequences.
struct AttentionLoad {
  double sequences = 0;
  double queries = 0;  ///< new tokens
  double context = 0;  ///< tokens in the KV caches, whatever a window hides, new ones included
  Work work{};         ///< what the roofline charges for it
};

/// From the tables where the GPU has them, else the roofline of the work. A batch of sequences of
/// different lengths is taken for one of equally long ones.
Cost attention(const AttentionShape&, const AttentionLoad&, const GpuSpec&);

/// A whole MLA block of one layer on one GPU, projections and quantisation included, where the
/// engine's table times it as one (vLLM, TensorRT-LLM); nothing otherwise. `projections` is the
/// precision of its weights.
std::optional<Cost> mla_block(const AttentionShape&, const AttentionLoad&, Precision projections,
                              const GpuSpec&);

/// Computing the scales of [m, k] activations and writing them in fp8 or narrower.
Cost quantise(double m, double k, Precision, const GpuSpec&);

}  // namespace moesim
