// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/moe_model.hpp"

namespace moesim {

/// Facts of a file on a layer, before the layer has its mixer.
struct LayerDraft {
  bool linear = false;   ///< the draft's `linear` in the place of attention
  int window = 0;        ///< tokens that attention sees; 0: all
  bool chunked = false;  ///< the window is an aligned chunk (Llama 4), not sliding
  bool sparse = true;    ///< sees what an indexer leaves, where attention has one ...
  bool indexer = true;   ///< ... that scores in this layer; else the layer before chose (GLM-5.2)
  int ratio = 0;         ///< tokens of an entry, where attention is compressed
  MixerPtr mixer{};      ///< none of the draft's, but this one
  bool moe = true;
  bool ffn = true;
  int number = -1;  ///< of its FFN in files and engines; -1: its place
  bool operator==(const LayerDraft&) const = default;
};

/// A model as files describe it: its mixers apart from its layers.
struct ModelDraft {
  MoeModel model;      ///< all but the layers
  MixerPtr attention;  ///< of layers that say no other
  MixerPtr local;      ///< of layers with a window, where it differs
  MixerPtr linear;     ///< of layers that are linear
  std::vector<LayerDraft> layers;
  int numbered_layers = 0;  ///< where they are not `layers`

  int moe_layers() const;
  /// The model, each layer with its mixer. Throws ConfigError at `node` if a fact contradicts
  /// another.
  MoeModel finished(const ConfigNode& node) const;
};

/// From a zoo file, an object of model_keys().
ModelDraft read_zoo_file(ConfigReader&);
/// From a HuggingFace config.json.
ModelDraft read_hf_config(const ConfigNode&);

}  // namespace moesim
