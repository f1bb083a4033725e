// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/mixer.hpp"

namespace moesim {

/// Heads of every recurrence. A sequence keeps a state of value_heads x key_dim x value_dim numbers
/// and the last inputs of a short convolution, however long it is.
struct RecurrentHeads {
  int key_heads = 0, key_dim = 0;
  int value_heads = 0, value_dim = 0;
  int convolution = 0;  ///< tokens that it spans
  bool operator==(const RecurrentHeads&) const = default;
};

/// Numbers of one GPU's slice of the heads; of its keys and values for one token.
struct RecurrentSlice {
  double heads, keys, values;
};
RecurrentSlice slice_of(const RecurrentHeads&, int tp);
std::string recurrent_cut_fault(const RecurrentHeads&, int tp);

/// Bytes of a sequence's state and of the inputs that the convolution over so many channels keeps.
double recurrent_state_bytes(const RecurrentHeads&, double convolved, const ParallelPlan&,
                             const PrecisionPlan&);

/// Adds reading and writing of `state_bytes` for every sequence, and of a token's queries, keys,
/// values and outputs where it decodes. A prompt's tokens are computed in chunks, `flops` for each
/// head and token.
void recurrent_core(const MixerShard&, const RecurrentHeads&, double state_bytes, double flops,
                    const RankSequences&, std::vector<Operation>& out);
/// Tokens of a chunk.
inline constexpr double recurrent_chunk = 64;
/// The gated norm, the output projection and the norm behind it.
void recurrent_output(const MixerShard&, const RecurrentHeads&, double tokens,
                      std::vector<Operation>& out);

/// In a zoo file.
std::span<const Key> recurrent_keys();
RecurrentHeads read_recurrent_heads(ConfigReader&);

}  // namespace moesim
