// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/mixer.hpp"

namespace moesim {

/// A kind of mixer as a file of the zoo describes it.
struct MixerKind {
  std::string_view name;
  std::string_view meaning;
  bool (*is)(const ConfigNode&);  ///< whether an object is of this kind; the last row takes all
  std::span<const Key> (*keys)();
  MixerPtr (*read)(ConfigReader&);
};
/// Kinds of "attention" and "local_attention", and of "linear_attention".
std::span<const MixerKind> attention_kinds();
std::span<const MixerKind> recurrent_kinds();

/// The keys of all kinds, each once.
std::span<const Key> attention_keys();
std::span<const Key> linear_attention_keys();
/// Throw ConfigError.
MixerPtr read_attention(const ConfigNode&);
MixerPtr read_linear_attention(const ConfigNode&);

}  // namespace moesim
