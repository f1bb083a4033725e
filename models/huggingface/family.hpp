// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/model_draft.hpp"

namespace moesim {

/// Place of a number in a config.json.
struct HfNumber {
  enum class When {
    always,    ///< `usual`, whatever the file says
    needed,    ///< must be there, at least 1; `key` or `other`
    whole,     ///< must be there, at least 0
    nullable,  ///< must be there; null is 0
    usually    ///< `usual` where the file does not say
  };
  When when = When::always;
  std::string_view key{}, other{};
  int usual = 0;
};
/// Mark for a number that is the usual one: an expert's width.
inline constexpr int as_experts = -1;

constexpr HfNumber always(int number) { return {.usual = number}; }
constexpr HfNumber needed(std::string_view key, std::string_view other = {}) {
  return {.when = HfNumber::When::needed, .key = key, .other = other};
}
constexpr HfNumber whole_of(std::string_view key) {
  return {.when = HfNumber::When::whole, .key = key};
}
constexpr HfNumber or_null(std::string_view key) {
  return {.when = HfNumber::When::nullable, .key = key};
}
constexpr HfNumber usually(std::string_view key, int usual) {
  return {.when = HfNumber::When::usually, .key = key, .usual = usual};
}
int read(ConfigReader&, const HfNumber&);

/// Layers i >= first have experts where (i + ahead) is a multiple of step.
struct MoeLayers {
  HfNumber first = always(0), step = always(1);
  int ahead = 0;
};

using ReadMixer = MixerPtr(ConfigReader&, int hidden);
using LayerRule = void(ConfigReader&, ModelDraft&);

/// How the config.json of some families says a model: which mixer, and under which keys.
struct HfLayout {
  ReadMixer* attention = nullptr;                   ///< none: `exceptions` reads it
  HfNumber experts = always(0), width = always(0);  ///< 0 experts: dense
  HfNumber per_token = needed("num_experts_per_tok");
  HfNumber expert_hidden = always(0);
  HfNumber shared = always(0);                 ///< how many shared experts ...
  HfNumber shared_width = always(as_experts);  ///< ... and how wide each
  HfNumber dense_width = always(0);
  std::string_view groups{};  ///< key of the number of expert groups; beside "topk_group"
  MoeLayers moe{};
  LayerRule* windows = nullptr;     ///< of layers that "layer_types" does not name
  LayerRule* exceptions = nullptr;  ///< what keys alone do not say, last

  /// The same layout with another value of a member.
  constexpr HfLayout but(auto HfLayout::*member, auto value) const {
    HfLayout other = *this;
    other.*member = value;
    return other;
  }
};

struct HfFamily {
  std::string_view model_type;
  std::string_view architecture;
  const HfLayout* layout;
  std::string_view gating_preset = {};
};
/// A family that is known, and holds what is not modelled.
struct HfRefusal {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view why;
};
/// The model type whose rules read a config.json. Throws ConfigError if there is none.
std::string_view hf_model_type(const ConfigNode& file);
std::span<const HfFamily> hf_families();
std::span<const HfRefusal> hf_refusals();

}  // namespace moesim
