// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/mixers.hpp"

#include <algorithm>
#include <vector>

#include "models/mixers/compressed.hpp"
#include "models/mixers/delta_net.hpp"
#include "models/mixers/grouped.hpp"
#include "models/mixers/latent.hpp"
#include "models/mixers/short_convolution.hpp"
#include "models/mixers/state_space.hpp"

namespace moesim {

namespace {

bool has(const ConfigNode& node, const char* key) {
  return node.json().is_object() && node.json().contains(key);
}
bool any(const ConfigNode&) { return true; }
bool has_latent_dim(const ConfigNode& node) { return has(node, "latent_dim"); }
bool has_latent(const ConfigNode& node) { return has(node, "kv_lora"); }
bool has_channels(const ConfigNode& node) { return has(node, "channels"); }
bool has_no_delta(const ConfigNode& node) {
  return has(node, "delta") && node.json().at("delta") == Json(false);
}

}  // namespace

// The first row that an object is of reads it.
std::span<const MixerKind> attention_kinds() {
  static constexpr MixerKind kinds[] = {
      {"latent", "MLA, whole or sparse", has_latent, latent_keys, read_latent},
      {"compressed", "one latent for all heads, entries of several tokens (DeepSeek-V4)",
       has_latent_dim, compressed_keys, read_compressed},
      {"grouped", "GQA, whole, windowed or sparse", any, grouped_keys, read_grouped}};
  return kinds;
}

std::span<const MixerKind> recurrent_kinds() {
  static constexpr MixerKind kinds[] = {
      {"short_convolution", "a gated convolution alone (LFM2)", has_channels,
       short_convolution_keys, read_short_convolution},
      {"state_space", "Mamba-2, Mamba, lightning attention", has_no_delta, state_space_keys,
       read_state_space},
      {"delta_net", "gated delta net, Kimi Delta Attention", any, delta_net_keys, read_delta_net}};
  return kinds;
}

namespace {

std::vector<Key> keys_of(std::span<const Key> shared, std::span<const MixerKind> kinds) {
  std::vector<Key> all(shared.begin(), shared.end());
  for (const MixerKind& kind : kinds) {
    for (const Key& key : kind.keys())
      if (std::ranges::find(all, key.name, &Key::name) == all.end()) all.push_back(key);
  }
  return all;
}

MixerPtr read(const ConfigNode& node, KeyTable keys, std::span<const MixerKind> kinds) {
  const auto kind = std::ranges::find_if(kinds, [&](const MixerKind& k) { return k.is(node); });
  return read_object(node, keys, kind->read);
}

}  // namespace

std::span<const Key> attention_keys() {
  static const std::vector<Key> keys = keys_of(indexer_keys(), attention_kinds());
  return keys;
}

std::span<const Key> linear_attention_keys() {
  static const std::vector<Key> keys = keys_of(recurrent_keys(), recurrent_kinds());
  return keys;
}

MixerPtr read_attention(const ConfigNode& node) {
  return read(node, attention_keys, attention_kinds());
}

MixerPtr read_linear_attention(const ConfigNode& node) {
  return read(node, linear_attention_keys, recurrent_kinds());
}

}  // namespace moesim
