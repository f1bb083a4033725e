// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hardware/kernels/kernel.hpp"

namespace moesim {

extern const Kernel gdn_kernel, kda_kernel;

/// A kernel of a layer of linear attention by the delta rule, on one GPU: the short convolution
/// over queries, keys and values, or the rule itself.
struct LinearAttentionCall {
  bool by_channel = false;  ///< a decay for each channel (Kimi Delta Attention), else for each head
  bool decode = true;       ///< one token of each sequence
  bool convolution = false;
  double sequences = 0, tokens = 0;
  double key_heads = 0, value_heads = 0;  ///< of this GPU's slice
  double key_dim = 0, value_dim = 0;
};
/// Prices it by the engine's tables; nothing where no table has it.
std::optional<Cost> linear_attention(const LinearAttentionCall&, const GpuSpec&);

}  // namespace moesim
