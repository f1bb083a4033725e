// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/model_draft.hpp"

// What a config.json says layer by layer.

namespace moesim {

/// Calls rule(number, draft) for every layer.
template <class Rule>
void for_layers(ModelDraft& m, Rule&& rule) {
  for (std::size_t i = 0; i < m.layers.size(); ++i) rule(static_cast<int>(i), m.layers[i]);
}

/// Entries, one a layer. Some files continue with the layers that predict tokens further ahead.
std::vector<ConfigNode> of_each_layer(ConfigReader&, std::string_view key, std::size_t layers);
/// Flags, one for each layer.
std::vector<bool> flags_of_layers(ConfigReader&, std::string_view key, std::size_t layers);
/// A number, or a list with the same number for each layer.
int same_in_layers(ConfigReader&, std::string_view key);
/// Layers by their numbers: a list, or a text with commas.
std::vector<int> numbers_in(const ConfigNode&);

/// "layer_types": what each layer attends to. "mlp_layer_types": which layers have experts. Both
/// change nothing where the file does not say.
void read_layer_types(ConfigReader&, ModelDraft&);
void read_mlp_types(ConfigReader&, ModelDraft&);
/// Layers from `first` on have experts.
void dense_before(ModelDraft&, int first);

// Rules for windows.

/// Mistral: one window for every layer, or none.
void window_everywhere(ConfigReader&, ModelDraft&);
/// Qwen: a window only where it is switched on, and only from max_window_layers upwards.
void window_if_used(ConfigReader&, ModelDraft&);
/// gpt-oss: in every second layer.
void window_in_turn(ConfigReader&, ModelDraft&);
/// A window in all layers but each `few`-th; 0: in none.
void window_but_each(ConfigReader&, ModelDraft&, int few);
/// Llama 4: layers with positions (RoPE) see only their own aligned chunk, layers without see
/// everything.
void chunk_with_positions(ConfigReader&, ModelDraft&);

/// Layers with an indexer of their own, as GLM-5.2 says it (IndexShare, arXiv:2603.12201): by name,
/// by letter, or every index_topk_freq-th one behind the first few. Every layer where nothing is
/// said.
void read_shared_indexers(ConfigReader&, ModelDraft&);

}  // namespace moesim
