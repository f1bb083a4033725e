// SPDX-License-Identifier: Apache-2.0
#include "models/model_draft.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace moesim {

namespace {

void require(const ConfigNode& node, bool holds, std::string_view message) {
  if (!holds) node.fail(message);
}

void require_sound(const ConfigNode& node, const MixerPtr& mixer) {
  if (mixer == nullptr) return;
  if (const std::string fault = mixer->fault(); !fault.empty()) node.fail(fault);
}

void require_sound_mixers(const ConfigNode& node, const ModelDraft& draft) {
  require_sound(node, draft.attention);
  require_sound(node, draft.local);
  const auto linear = std::ranges::count_if(draft.layers, &LayerDraft::linear);
  require(node, linear == 0 || draft.linear != nullptr,
          "a layer is linear but \"linear_attention\" is missing");
  require(node, linear < std::ssize(draft.layers),
          "every layer is linear; at least one with attention is expected");
}

void require_sound_ffns(const ConfigNode& node, const MoeModel& m) {
  const int moe_layers = m.moe_layers();
  require(node, moe_layers == 0 || m.experts > 0, "a layer is \"moe\" but \"experts\" is missing");
  require(node, moe_layers > 0 || m.experts == 0, "there are experts but no layer is \"moe\"");
  const bool dense_ffn =
      m.dense_residual || std::ranges::any_of(m.layers, &LayerSpec::has_dense_ffn);
  require(node, !dense_ffn || m.dense_width > 0,
          "a layer has a dense FFN but no width is given for it");
  require(node, m.experts_per_token <= m.experts,
          fmt::format("a token cannot choose {} of {} experts", m.experts_per_token, m.experts));
  require(
      node, m.experts % m.expert_groups == 0 && m.groups_per_token <= m.expert_groups,
      fmt::format(
          "{} experts in {} groups, {} groups per token: groups must be equal and at least as many",
          m.experts, m.expert_groups, m.groups_per_token));
}

// The one place that says which of a model's mixers a layer has.
MixerPtr mixer_of(const ModelDraft& draft, const LayerDraft& layer) {
  if (layer.mixer != nullptr) return layer.mixer;
  if (layer.linear) return draft.linear;
  const bool local = layer.window > 0 && draft.local != nullptr;
  const Mixer& kind = local ? *draft.local : *draft.attention;
  const int top = layer.sparse ? kind.sight().top : 0;
  return kind.in_layer({layer.window, layer.chunked, top, layer.indexer && top > 0, layer.ratio});
}

}  // namespace

int ModelDraft::moe_layers() const {
  return static_cast<int>(std::ranges::count_if(layers, &LayerDraft::moe));
}

MoeModel ModelDraft::finished(const ConfigNode& node) const {
  require(node, !layers.empty(), "the model has no layers; at least one is expected");
  require_sound_mixers(node, *this);
  MoeModel whole = model;
  for (const LayerDraft& layer : layers) {
    const int number = layer.number < 0 ? static_cast<int>(whole.layers.size()) : layer.number;
    whole.layers.push_back({mixer_of(*this, layer), layer.moe, layer.ffn, number});
  }
  whole.numbered_layers = numbered_layers > 0 ? numbered_layers : static_cast<int>(layers.size());
  const auto sparse = std::ranges::find_if(
      whole.layers, [](const LayerSpec& layer) { return layer.mixer->sight().top > 0; });
  require(node, sparse == whole.layers.end() || sparse->mixer->sight().indexed,
          "the first layer with sparse attention has no indexer; one is expected");
  require(node,
          std::ranges::any_of(whole.layers,
                              [](const LayerSpec& layer) {
                                const Kept kept = layer.mixer->kept({}, {});
                                return kept.elements > 0;
                              }),
          "no layer keeps tokens in a KV cache; at least one is expected");
  require_sound_ffns(node, whole);
  return whole;
}

MoeModel read_model(const ConfigNode& node) {
  const ModelDraft draft =
      is_hf_model(node) ? read_hf_config(node) : read_object(node, model_keys, read_zoo_file);
  return draft.finished(node);
}

}  // namespace moesim
