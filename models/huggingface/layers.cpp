// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/layers.hpp"

#include <algorithm>
#include <charconv>

#include "hardware/at.hpp"
#include "hardware/choice.hpp"
#include "models/mixers/keys.hpp"

namespace moesim {

std::vector<ConfigNode> of_each_layer(ConfigReader& r, std::string_view key, std::size_t layers) {
  std::vector<ConfigNode> entries = r.child(key).list();
  const auto ahead = at(optional(r, "num_nextn_predict_layers", 0));
  if (entries.size() != layers && entries.size() != layers + ahead)
    r.child(key).fail("expected one entry per layer ({}), found {}", layers, entries.size());
  return entries;
}

std::vector<bool> flags_of_layers(ConfigReader& r, std::string_view key, std::size_t layers) {
  std::vector<bool> flags;
  for (const ConfigNode& flag : of_each_layer(r, key, layers))
    flags.push_back(flag.integer({0, 1}) == 1);
  return flags;
}

int same_in_layers(ConfigReader& r, std::string_view key) {
  const ConfigNode node = r.child(key);
  if (!node.json().is_array()) return static_cast<int>(node.integer(whole));
  const std::vector<ConfigNode> layers = node.list();
  if (layers.empty()) node.fail("names no layer");
  const auto first = layers.front().integer(whole);
  for (const ConfigNode& layer : layers) {
    if (layer.integer(whole) != first)
      layer.fail("layers that differ are not modelled; {} is expected", first);
  }
  return static_cast<int>(first);
}

std::vector<int> numbers_in(const ConfigNode& node) {
  std::vector<int> numbers;
  if (node.json().is_array()) {
    for (const ConfigNode& number : node.list())
      numbers.push_back(static_cast<int>(number.integer(whole)));
    return numbers;
  }
  const std::string text = node.text();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    int number = 0;
    const char* const end = text.data() + comma;
    if (std::from_chars(text.data() + at, end, number).ptr != end)
      node.fail("expected numbers separated by commas, found \"{}\"", text);
    numbers.push_back(number);
    at = comma + 1;
  }
  return numbers;
}

void read_layer_types(ConfigReader& r, ModelDraft& m) {
  if (!present(r, "layer_types")) return;
  // Compressed attention has read its own.
  if (std::ranges::any_of(m.layers, [](const LayerDraft& layer) { return layer.ratio > 0; }))
    return;
  static constexpr std::array<std::string_view, 12> known{"conv",
                                                          "full_attention",
                                                          "hybrid",
                                                          "hybrid_sliding",
                                                          "sliding_attention",
                                                          "chunked_attention",
                                                          "linear_attention",
                                                          "attention",
                                                          "mamba",
                                                          "deepseek_sparse_attention",
                                                          "indexed_attention",
                                                          "minimax_m3_sparse"};
  const std::vector<ConfigNode> types = of_each_layer(r, "layer_types", m.layers.size());
  // Windows of K-EXAONE 2.0.
  std::vector<ConfigNode> windows;
  if (present(r, "sliding_windows")) windows = of_each_layer(r, "sliding_windows", m.layers.size());
  const auto window_of = [&](int i) {
    return windows.empty()
               ? count(r, present(r, "sliding_window") ? "sliding_window" : "sliding_window_size")
               : static_cast<int>(windows[at(i)].integer(at_least_one));
  };
  for_layers(m, [&](int i, LayerDraft& layer) {
    const ConfigNode& type = types[at(i)];
    const std::string name = type.text();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      type.fail("attention of type \"{}\" is not modelled; one of: {}", name, join_names(known));
    }
    layer.linear = name == "linear_attention" || name == "mamba" || name == "conv";
    if (layer.linear && m.linear == nullptr)
      type.fail("linear attention of this architecture is not modelled");
    const bool sparse = name == "deepseek_sparse_attention" || name == "indexed_attention" ||
                        name == "minimax_m3_sparse";
    if (sparse && m.attention->sight().top == 0)
      type.fail("sparse attention of this architecture is not modelled");
    layer.chunked = name == "chunked_attention";
    layer.window = layer.chunked ? count(r, "attention_chunk_size")
                   : name == "sliding_attention" || name == "hybrid_sliding" ? window_of(i)
                                                                             : 0;
  });
}

void read_mlp_types(ConfigReader& r, ModelDraft& m) {
  if (!present(r, "mlp_layer_types")) return;
  const std::vector<ConfigNode> types = of_each_layer(r, "mlp_layer_types", m.layers.size());
  for_layers(m, [&](int i, LayerDraft& layer) {
    const ConfigNode& type = types[at(i)];
    const std::string name = type.text();
    if (name != "dense" && name != "sparse")
      type.fail("FFNs of type \"{}\" are not modelled; one of: dense, sparse", name);
    layer.moe = name == "sparse";
  });
}

void dense_before(ModelDraft& m, int first) {
  for_layers(m, [&](int i, LayerDraft& layer) { layer.moe = i >= first; });
}

void window_everywhere(ConfigReader& r, ModelDraft& m) {
  const int window = optional(r, "sliding_window", 0);
  for_layers(m, [&](int, LayerDraft& layer) { layer.window = window; });
}

void window_if_used(ConfigReader& r, ModelDraft& m) {
  if (!present(r, "use_sliding_window") || !r.flag("use_sliding_window")) return;
  const int window = nullable(r, "sliding_window");
  const int first = nullable(r, "max_window_layers");
  for_layers(m, [&](int i, LayerDraft& layer) { layer.window = i >= first ? window : 0; });
}

void window_in_turn(ConfigReader& r, ModelDraft& m) {
  const int window = count(r, "sliding_window");
  for_layers(m, [&](int i, LayerDraft& layer) { layer.window = i % 2 == 0 ? window : 0; });
}

void window_but_each(ConfigReader& r, ModelDraft& m, int few) {
  const int window = optional(r, "sliding_window", 0);
  for_layers(m, [&](int i, LayerDraft& layer) {
    layer.window = few > 0 && (i + 1) % few != 0 ? window : 0;
  });
}

void chunk_with_positions(ConfigReader& r, ModelDraft& m) {
  const int chunk = nullable(r, "attention_chunk_size");
  if (chunk == 0) return;
  const int interval = std::max(1, optional(r, "no_rope_layer_interval", 4));
  std::vector<ConfigNode> rope;
  if (present(r, "no_rope_layers")) rope = r.child("no_rope_layers").list();
  if (!rope.empty() && rope.size() != m.layers.size())
    r.child("no_rope_layers")
        .fail("expected one entry per layer ({}), found {}", m.layers.size(), rope.size());
  for_layers(m, [&](int i, LayerDraft& layer) {
    const bool local = rope.empty() ? (i + 1) % interval != 0 : rope[at(i)].integer({0, 1}) == 1;
    if (!local) return;
    layer.window = chunk;
    layer.chunked = true;
  });
}

void read_shared_indexers(ConfigReader& r, ModelDraft& m) {
  const auto check_word = [](const ConfigNode& node, bool full, bool shared) {
    if (!full && !shared) node.fail("unknown indexer; expected a full or a shared one");
    return full;
  };
  if (present(r, "indexer_types")) {
    const std::vector<ConfigNode> types = of_each_layer(r, "indexer_types", m.layers.size());
    for_layers(m, [&](int i, LayerDraft& layer) {
      const std::string type = types[at(i)].text();
      layer.indexer = check_word(types[at(i)], type == "full", type == "shared");
    });
  } else if (present(r, "index_topk_pattern")) {
    const ConfigNode node = r.child("index_topk_pattern");
    const std::string letters = node.text();
    if (letters.size() < m.layers.size())
      node.fail("expected a letter for each of {} layers, found {}", m.layers.size(),
                letters.size());
    for_layers(m, [&](int i, LayerDraft& layer) {
      layer.indexer = check_word(node, letters[at(i)] == 'F', letters[at(i)] == 'S');
    });
  } else {
    const int every = std::max(1, optional(r, "index_topk_freq", 1));
    const int offset = optional(r, "index_skip_topk_offset", 2);
    for_layers(m, [&](int i, LayerDraft& layer) {
      layer.indexer = std::max(i - offset + 1, 0) % every == 0;
    });
  }
}

}  // namespace moesim
