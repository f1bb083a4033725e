// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/recurrent.hpp"

namespace moesim {

/// A state space layer. In Mamba-2 (arXiv:2405.21060) keys and queries are B and C, each group's a
/// head, and values are the inputs. Mamba (arXiv:2312.00752) is the same with a head for each
/// channel, and with B, C and the step made from the channels. Lightning attention
/// (arXiv:2405.17381) keeps a matrix for each head that decays by a constant, as Mamba-2's does by
/// a number of its own: the same without the convolution.
struct StateSpace {
  RecurrentHeads heads{};
  int step_rank = 0;  ///< Mamba: rank of the projection of the step; 0: Mamba-2
  bool operator==(const StateSpace&) const = default;
};
MixerPtr mixer(const StateSpace&);

/// Lightning attention in a config.json, whose heads are those of attention.
StateSpace hf_lightning(ConfigReader&, int hidden);
/// Mamba-2 as Granite 4 and Nemotron-H write it, and Mamba as Jamba does.
StateSpace hf_granite_mamba(ConfigReader&, int hidden);
StateSpace hf_nemotron_mamba(ConfigReader&);
StateSpace hf_jamba_mamba(ConfigReader&, int hidden);
/// In a zoo file.
std::span<const Key> state_space_keys();
MixerPtr read_state_space(ConfigReader&);

}  // namespace moesim
