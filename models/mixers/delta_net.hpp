// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/recurrent.hpp"

namespace moesim {

/// Gated delta net, the linear attention of Qwen3-Next (arXiv:2412.06464), and Kimi Delta Attention
/// (Kimi Linear), whose decay is one for each channel.
struct DeltaNet {
  RecurrentHeads heads{};
  int decay_rank = 0;  ///< rank of the projection of a channel's decay; 0: a decay for each head
  int gate_rank = 0;   ///< rank of the projection of the output's gate; 0: a full one
  bool operator==(const DeltaNet&) const = default;
};
MixerPtr mixer(const DeltaNet&);

/// In a config.json of Qwen: linear_num_key_heads, linear_key_head_dim and so on.
DeltaNet hf_qwen_delta_net(ConfigReader&);
/// In the linear_attn_config of Kimi Linear.
DeltaNet hf_kimi_delta_net(ConfigReader&);
/// In a zoo file.
std::span<const Key> delta_net_keys();
MixerPtr read_delta_net(ConfigReader&);

}  // namespace moesim
