// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/mixer.hpp"

namespace moesim {

/// A gated convolution of a few tokens in the place of attention (LFM2, liquid.ai). Two gates and
/// the convolved value are projected, each as wide as the model. A sequence keeps the last inputs.
struct ShortConvolution {
  int hidden = 0;
  int tokens = 0;  ///< that the convolution spans
  bool operator==(const ShortConvolution&) const = default;
};
MixerPtr mixer(const ShortConvolution&);

/// In a config.json: conv_L_cache.
ShortConvolution hf_short_convolution(ConfigReader&, int hidden);
/// In a zoo file.
std::span<const Key> short_convolution_keys();
MixerPtr read_short_convolution(ConfigReader&);

}  // namespace moesim
