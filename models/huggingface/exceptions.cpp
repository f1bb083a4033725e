// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/exceptions.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "hardware/at.hpp"
#include "models/huggingface/layers.hpp"
#include "models/mixers/compressed.hpp"
#include "models/mixers/delta_net.hpp"
#include "models/mixers/grouped.hpp"
#include "models/mixers/keys.hpp"
#include "models/mixers/latent.hpp"
#include "models/mixers/short_convolution.hpp"
#include "models/mixers/state_space.hpp"

namespace moesim {

// ---- attention and windows ----

MixerPtr kimi_latent(ConfigReader& r, int) {
  LatentAttention a = hf_latent(r);
  a.output_gate = flagged(r, "mla_use_output_gate");
  return mixer(a);
}

namespace {

// Sparse attention over blocks of keys, where the file switches it on.
bool is_sparse(ConfigReader& r) {
  if (!present(r, "sparse_attention_config")) return false;
  ConfigReader sparse(r.child("sparse_attention_config"));
  return flagged(sparse, "use_sparse_attention");
}

GroupedAttention step_heads(ConfigReader& r, int hidden) {
  const int heads = count(r, "num_attention_heads");
  const bool groups = present(r, "num_attention_groups");
  return {.query_heads = heads,
          .kv_heads = count(r, groups ? "num_attention_groups" : "num_key_value_heads"),
          .head_dim = optional(r, "head_dim", hidden / heads)};
}

}  // namespace

MixerPtr minimax_sparse(ConfigReader& r, int hidden) {
  GroupedAttention a = hf_grouped(r, hidden);
  if (is_sparse(r)) {
    ConfigReader sparse(r.child("sparse_attention_config"));
    a.indexer = {.heads = count(sparse, "sparse_num_index_heads"),
                 .dim = count(sparse, "sparse_index_dim"),
                 .top = count(sparse, "sparse_topk_blocks") * count(sparse, "sparse_block_size"),
                 .keys_bf16 = true};
  } else if (present(r, "index_topk_blocks")) {  // as transformers 5 saves it
    a.indexer = {.heads = count(r, "index_n_heads"),
                 .dim = count(r, "index_head_dim"),
                 .top = count(r, "index_topk_blocks") * count(r, "index_block_size"),
                 .keys_bf16 = true};
  }
  return mixer(a);
}

// Queries of all heads by way of one rank (arXiv:2507.19427).
MixerPtr step3_attention(ConfigReader& r, int hidden) {
  GroupedAttention a = step_heads(r, hidden);
  a.q_lora = count(r, "share_q_dim");
  return mixer(a);
}

MixerPtr step_attention(ConfigReader& r, int hidden) { return mixer(step_heads(r, hidden)); }

// Trinity and EXAONE.
void afmoe_windows(ConfigReader& r, ModelDraft& m) {
  window_but_each(r, m, optional(r, "global_attn_every_n_layers", 4));
}

// Dense layers come first, and have a pattern of their own.
void cohere_windows(ConfigReader& r, ModelDraft& m) {
  if (present(r, "layer_types")) return;
  const int dense = optional(r, "first_k_dense_replace", 0);
  const int pattern = std::max(1, optional(r, "sliding_window_pattern", 4));
  const int of_dense = std::max(1, optional(r, "prefix_dense_sliding_window_pattern", 1));
  const int window = count(r, "sliding_window");
  for_layers(m, [&](int i, LayerDraft& layer) {
    const bool all = i < dense ? (i + 1) % of_dense == 0 : (i - dense + 1) % pattern == 0;
    layer.window = all ? 0 : window;
  });
}

void exaone_windows(ConfigReader& r, ModelDraft& m) {
  if (!present(r, "layer_types")) window_but_each(r, m, optional(r, "sliding_window_pattern", 4));
}

// Its window is as long as its longest context: none.
void phimoe_window(ConfigReader& r, ModelDraft& m) {
  window_everywhere(r, m);
  const int longest = optional(r, "max_position_embeddings", 0);
  for_layers(m, [&](int, LayerDraft& layer) {
    if (layer.window >= longest) layer.window = 0;
  });
}

void smallthinker_windows(ConfigReader& r, ModelDraft& m) {
  if (!present(r, "sliding_window_layout")) return;
  const int window = count(r, "sliding_window_size");
  const std::vector<bool> slides = flags_of_layers(r, "sliding_window_layout", m.layers.size());
  for_layers(m, [&](int i, LayerDraft& layer) { layer.window = slides[at(i)] ? window : 0; });
}

// ---- all else, family by family ----

// Arctic's residual FFN is as wide as the model, beside the experts of every layer.
void arctic_residual(ConfigReader& r, ModelDraft& m) {
  if (const ConfigNode step = r.child("moe_layer_frequency"); step.integer(at_least_one) != 1)
    step.fail("Arctic with dense layers is not modelled; 1 (experts in every layer) is expected");
  m.model.dense_residual = r.flag("use_residual");
  m.model.dense_width = m.model.hidden;
}

namespace {

// Ling 3: Kimi Delta Attention. Without ranks ("no_kda_lora") its gate and decay are projected at
// full width; a rank that costs as much stands for the decay's.
DeltaNet ling_delta_net(ConfigReader& r, int hidden) {
  const int heads = count(r, "num_attention_heads"), dim = count(r, "head_dim");
  const double keys = double(heads) * dim;
  const bool full = flagged(r, "no_kda_lora");
  return {.heads = {.key_heads = heads,
                    .key_dim = dim,
                    .value_heads = heads,
                    .value_dim = dim,
                    .convolution = count(r, "short_conv_kernel_size")},
          .decay_rank = full ? static_cast<int>(std::lround(hidden * keys / (hidden + keys))) : dim,
          .gate_rank = full ? 0 : dim};
}

}  // namespace

// Layers are linear, but every layer_group_size-th has attention, and those behind the last group.
void bailing_lightning(ConfigReader& r, ModelDraft& m) {
  if (!present(r, "layer_group_size")) return;
  const int group = count(r, "layer_group_size");
  const bool delta = present(r, "no_kda_lora") || present(r, "kda_safe_gate");
  m.linear =
      delta ? mixer(ling_delta_net(r, m.model.hidden)) : mixer(hf_lightning(r, m.model.hidden));
  const int grouped = static_cast<int>(m.layers.size()) / group * group;
  for_layers(m,
             [&](int i, LayerDraft& layer) { layer.linear = i < grouped && (i + 1) % group != 0; });
}

void dbrx_parts(ConfigReader& r, ModelDraft& m) {
  const int heads = count(r, "n_heads");
  ConfigReader attention(r.child("attn_config")), experts(r.child("ffn_config"));
  m.attention = mixer(GroupedAttention{.query_heads = heads,
                                       .kv_heads = count(attention, "kv_n_heads"),
                                       .head_dim = m.model.hidden / heads});
  m.model.experts = count(experts, "moe_num_experts");
  m.model.experts_per_token = count(experts, "moe_top_k");
  m.model.expert_width = count(experts, "ffn_hidden_size");
}

namespace {

// Tokens of an entry in each layer, as files of before transformers 5 list them, and later ones by
// the name of the layer's kind.
std::vector<int> ratios_of_layers(ConfigReader& r, std::size_t layers) {
  std::vector<int> ratios;
  if (present(r, "compress_ratios")) {
    for (const ConfigNode& ratio : of_each_layer(r, "compress_ratios", layers))
      ratios.push_back(static_cast<int>(ratio.integer(whole)));
    ratios.resize(layers);  // without the layer that drafts
    return ratios;
  }
  ConfigReader rates(r.child("compress_rates"));
  for (const ConfigNode& type : of_each_layer(r, "layer_types", layers)) {
    const std::string name = type.text();
    ratios.push_back(name == "sliding_attention" ? 0 : count(rates, name));
  }
  ratios.resize(layers);
  return ratios;
}

}  // namespace

// An indexer picks among the entries of fewest tokens, and there alone.
void deepseek_v4_layers(ConfigReader& r, ModelDraft& m) {
  constexpr int sparse = 4;
  CompressedAttention attention = hf_compressed(r);
  const std::vector<int> ratios = ratios_of_layers(r, m.layers.size());
  attention.sparse_ratio = sparse;
  if (present(r, "compress_rates")) {
    ConfigReader rates(r.child("compress_rates"));
    attention.sparse_ratio = count(rates, "compressed_sparse_attention");
  }
  if (std::ranges::find(ratios, 1) != ratios.end())
    r.node().fail("entries of one token are not modelled in compressed attention");
  if (std::ranges::find(ratios, attention.sparse_ratio) == ratios.end()) {
    attention.sparse_ratio = 0;
    attention.indexer = {};
  }
  m.attention = mixer(attention);
  for_layers(m, [&](int i, LayerDraft& layer) { layer.ratio = ratios[at(i)]; });
}

void ernie_layers(ConfigReader& r, ModelDraft& m) {
  const int first = nullable(r, "moe_layer_start_index");
  const auto last = r.integer("moe_layer_end_index", {-1, 1e9});  // -1: the model's last
  const int step = std::max(1, optional(r, "moe_layer_interval", 1));
  for_layers(m, [&](int i, LayerDraft& layer) {
    layer.moe = i >= first && (last < 0 || i <= last) && (i + 1) % step == 0;
  });
}

namespace {

// Heads of layers that see everything, by the layers' numbers, as later files of Gemma 4 say them.
GroupedAttention heads_by_layer(const ConfigNode& layers, const GroupedAttention& local) {
  std::optional<GroupedAttention> same;
  for (const auto& entry : layers.json().items()) {
    ConfigReader layer(ConfigNode(entry.value(), layers.file()));  // "05" is no place in a list
    GroupedAttention here = local;
    here.kv_heads = optional(layer, "num_key_value_heads", local.kv_heads);
    here.head_dim = optional(layer, "head_dim", local.head_dim);
    if (!layer.unread().empty() || (same && *same != here))
      layers.fail(
          "layers of more than two kinds are not modelled; head_dim and num_key_value_heads, equal "
          "in all entries, are expected");
    same = here;
  }
  return same.value_or(local);
}

}  // namespace

// A dense FFN is next to the experts of every layer, as a shared expert would be, or alone in a
// dense model. Layers that see everything have heads of their own.
void gemma4_parts(ConfigReader& r, ModelDraft& m) {
  const GroupedAttention local = hf_grouped(r, m.model.hidden);
  GroupedAttention global =
      present(r, "per_layer_config") ? heads_by_layer(r.child("per_layer_config"), local) : local;
  global.kv_heads = optional(r, "num_global_key_value_heads", global.kv_heads);
  global.head_dim = optional(r, "global_head_dim", global.head_dim);
  global.values_are_keys = flagged(r, "attention_k_eq_v");
  m.local = mixer(local);
  m.attention = mixer(global);
  if (!flagged(r, "enable_moe_block")) {
    m.model.dense_width = count(r, "intermediate_size");
    return;
  }
  m.model.experts = count(r, "num_experts");
  m.model.experts_per_token = count(r, "top_k_experts");
  m.model.expert_width = count(r, "moe_intermediate_size");
  m.model.shared_width = count(r, "intermediate_size");
}

void granite_mamba(ConfigReader& r, ModelDraft& m) {
  m.linear = mixer(hf_granite_mamba(r, m.model.hidden));
  if (m.model.experts == 0) m.model.dense_width = count(r, "shared_intermediate_size");
}

void grok_residual(ConfigReader& r, ModelDraft& m) {
  m.model.dense_residual = flagged(r, "residual_moe");
}

void hunyuan_parts(ConfigReader& r, ModelDraft& m) {
  GroupedAttention attention = hf_grouped(r, m.model.hidden);
  attention.head_dim = optional(r, "attention_head_dim", attention.head_dim);
  m.attention = mixer(attention);
  m.model.experts = same_in_layers(r, "num_experts");
  m.model.experts_per_token = same_in_layers(r, "moe_topk");
  m.model.expert_width = same_in_layers(r, "moe_intermediate_size");
  m.model.dense_width = count(r, "intermediate_size");
  m.model.shared_width = same_in_layers(r, "num_shared_expert") * m.model.dense_width;
  dense_before(m, optional(r, "moe_layer_num_skipped", 0));
}

// A window, and heads of their own, in the layers that the file names. Files of before transformers
// 5 have the experts' width under the name that is later the dense layers'.
void inkling_layers(ConfigReader& r, ModelDraft& m) {
  m.model.draft_layers = 1;  // vLLM's InklingMTP; "mtp_config" is beside the text's part
  m.attention = mixer(hf_grouped(r, m.model.hidden));
  m.local = mixer(GroupedAttention{.query_heads = count(r, "swa_num_attention_heads"),
                                   .kv_heads = count(r, "swa_num_key_value_heads"),
                                   .head_dim = count(r, "swa_head_dim")});
  m.model.dense_width = optional(r, "dense_intermediate_size", optional(r, "intermediate_size", 0));
  if (present(r, "layer_types")) return;
  const ConfigNode local = r.child("local_layer_ids");
  const int window = count(r, "sliding_window_size");
  for (const int layer : numbers_in(local)) {
    if (layer >= static_cast<int>(m.layers.size()))
      local.fail("there is no layer {} of {}", layer, m.layers.size());
    m.layers[at(layer)].window = window;
  }
}

// Mamba layers but for one of each period, and experts in one of each period of their own.
void jamba_layers(ConfigReader& r, ModelDraft& m) {
  m.linear = mixer(hf_jamba_mamba(r, m.model.hidden));
  const int attends = std::max(1, optional(r, "attn_layer_period", 8));
  const int attends_at = optional(r, "attn_layer_offset", 4);
  const int experts = std::max(1, optional(r, "expert_layer_period", 2));
  const int experts_at = optional(r, "expert_layer_offset", 1);
  for_layers(m, [&](int i, LayerDraft& layer) {
    layer.linear = i % attends != attends_at % attends;
    layer.moe = i % experts == experts_at % experts;
  });
}

// Kimi Delta Attention but for the layers of MLA; from 1 on.
void kimi_delta_nets(ConfigReader& r, ModelDraft& m) {
  ConfigReader linear(r.child("linear_attn_config"));
  m.linear = mixer(hf_kimi_delta_net(linear));
  const double last = static_cast<double>(m.layers.size());
  for (const ConfigNode& layer : linear.child("kda_layers").list())
    m.layers[at(layer.integer({1, last}) - 1)].linear = true;
}

// Its heads stand there layer by layer: those of layers with a window may be more.
void laguna_heads(ConfigReader& r, ModelDraft& m) {
  GroupedAttention attention = hf_grouped(r, m.model.hidden);
  if (present(r, "gating")) attention.output_gate = r.child("gating").json() == Json("per-element");
  m.attention = mixer(attention);
  if (!present(r, "num_attention_heads_per_layer")) return;
  read_layer_types(r, m);
  const std::vector<ConfigNode> heads =
      of_each_layer(r, "num_attention_heads_per_layer", m.layers.size());
  int whole_heads = 0, local_heads = 0;
  for_layers(m, [&](int i, const LayerDraft& layer) {
    const ConfigNode& node = heads[at(i)];
    const int here = static_cast<int>(node.integer(at_least_one));
    int& kind = layer.window > 0 ? local_heads : whole_heads;
    if (kind != 0 && kind != here)
      node.fail(
          "layers that differ in more than their window are not modelled; {} is "
          "expected",
          kind);
    kind = here;
  });
  GroupedAttention local = attention;
  if (local_heads > 0) local.query_heads = local_heads;
  if (whole_heads > 0) attention.query_heads = whole_heads;
  m.local = mixer(local);
  m.attention = mixer(attention);
}

// Its layers are "conv" or "full_attention"; the first have a dense FFN.
void lfm_layers(ConfigReader& r, ModelDraft& m) {
  m.linear = mixer(hf_short_convolution(r, m.model.hidden));
  if (!present(r, "tie_word_embeddings"))
    m.model.tied_embeddings = !present(r, "tie_embedding") || r.flag("tie_embedding");
}

// Two sublayers of attention and a dense FFN each, and experts beside the first FFN (arXiv:
// 2509.01322). Of the experts that a token chooses some compute nothing: their share of all is
// taken off in the mean.
void longcat_layers(ConfigReader& r, ModelDraft& m) {
  MoeModel& model = m.model;
  const int chosen = count(r, "moe_topk"), nothing = optional(r, "zero_expert_num", 0);
  model.experts = count(r, "n_routed_experts");
  model.experts_per_token =
      static_cast<int>(std::lround(double(chosen) * model.experts / (model.experts + nothing)));
  model.expert_width = count(r, "expert_ffn_hidden_size");
  model.dense_width = count(r, "ffn_hidden_size");
  model.dense_residual = true;
  const int layers = optional(r, "num_layers", static_cast<int>(m.layers.size()));
  m.layers.clear();
  for (int layer = 0; layer < layers; ++layer) {
    m.layers.push_back({.moe = true, .number = layer});
    m.layers.push_back({.moe = false, .number = layer});
  }
  m.numbered_layers = layers;
}

void mimo_layers(ConfigReader& r, ModelDraft& m) {
  m.model.draft_layers = 1;  // vllm/model_executor/models/mimo_v2_mtp.py; no key says so
  GroupedAttention attention = hf_grouped(r, m.model.hidden);
  attention.v_dim = optional(r, "v_head_dim", attention.head_dim);
  m.attention = mixer(attention);
  m.local = mixer(GroupedAttention{.query_heads = count(r, "swa_num_attention_heads"),
                                   .kv_heads = count(r, "swa_num_key_value_heads"),
                                   .head_dim = count(r, "swa_head_dim"),
                                   .v_dim = count(r, "swa_v_head_dim")});
  const int window = count(r, "sliding_window");
  const std::vector<bool> slides = flags_of_layers(r, "hybrid_layer_pattern", m.layers.size());
  const std::vector<bool> moe = flags_of_layers(r, "moe_layer_freq", m.layers.size());
  for_layers(m, [&](int i, LayerDraft& layer) {
    layer.moe = moe[at(i)];
    layer.window = slides[at(i)] ? window : 0;
  });
}

// A 0 in attn_type_list is lightning attention, a 1 attention.
void minimax_lightning_layers(ConfigReader& r, ModelDraft& m) {
  m.linear = mixer(hf_lightning(r, m.model.hidden));
  if (present(r, "layer_types")) return;
  const std::vector<bool> attends = flags_of_layers(r, "attn_type_list", m.layers.size());
  for_layers(m, [&](int i, LayerDraft& layer) { layer.linear = !attends[at(i)]; });
}

// An indexer stands in the layers that the file says.
void minimax_m3_layers(ConfigReader& r, ModelDraft& m) {
  if (present(r, "moe_layer_freq") || !present(r, "mlp_layer_types")) {
    const std::vector<bool> moe = flags_of_layers(r, "moe_layer_freq", m.layers.size());
    for_layers(m, [&](int i, LayerDraft& layer) { layer.moe = moe[at(i)]; });
  }
  if (present(r, "index_topk_blocks")) {
    const std::vector<ConfigNode> types = of_each_layer(r, "layer_types", m.layers.size());
    for_layers(m, [&](int i, LayerDraft& layer) {
      layer.sparse = types[at(i)].text() == "minimax_m3_sparse";
    });
  }
  if (!is_sparse(r)) return;
  ConfigReader sparse(r.child("sparse_attention_config"));
  const std::vector<bool> thinned =
      flags_of_layers(sparse, "sparse_attention_freq", m.layers.size());
  for_layers(m, [&](int i, LayerDraft& layer) { layer.sparse = thinned[at(i)]; });
}

namespace {

// Without a gate an FFN has two matrices where others have three: it counts as a gated one of two
// thirds its width, which GPUs divide evenly.
int width_without_gate(int width) { return (2 * width / 3 + 7) / 8 * 8; }

// Its layers are a mixer or an FFN each: M for Mamba-2, * for attention, E for experts, - for a
// dense FFN. Here a mixer and the FFN after it, if one comes, are one layer.
void append_nemotron_layer(char letter, const ConfigNode& node, ModelDraft& m) {
  const int number = m.numbered_layers++;
  if (letter == 'M' || letter == '*') {
    m.layers.push_back({.linear = letter == 'M', .moe = false, .ffn = false, .number = number});
  } else if ((letter == 'E' || letter == '-') && !m.layers.empty() && !m.layers.back().ffn) {
    m.layers.back().ffn = true;
    m.layers.back().moe = letter == 'E';
    m.layers.back().number = number;
  } else {
    node.fail("\"{}\" is not modelled here; M, * and, after one of these, E or - are expected",
              letter);
  }
}

// Files of before transformers 5 say it in letters, later ones in words.
void nemotron_layers(ConfigReader& r, ModelDraft& m) {
  struct Word {
    std::string_view name;
    char letter;
  };
  static constexpr std::array<Word, 6> words{{{"mamba", 'M'},
                                              {"linear_attention", 'M'},
                                              {"attention", '*'},
                                              {"full_attention", '*'},
                                              {"moe", 'E'},
                                              {"mlp", '-'}}};
  m.layers.clear();
  if (!present(r, "layers_block_type")) {
    const ConfigNode pattern = r.child("hybrid_override_pattern");
    for (const char letter : pattern.text()) append_nemotron_layer(letter, pattern, m);
    return;
  }
  for (const ConfigNode& block : r.child("layers_block_type").list()) {
    const std::string name = block.text();
    const auto* const word = std::ranges::find(words, name, &Word::name);
    if (word == words.end())
      block.fail("a layer of type \"{}\" is not modelled; mamba, attention, moe and mlp are", name);
    append_nemotron_layer(word->letter, block, m);
  }
}

}  // namespace

void nemotron_parts(ConfigReader& r, ModelDraft& m) {
  m.linear = mixer(hf_nemotron_mamba(r));
  nemotron_layers(r, m);
  MoeModel& model = m.model;
  model.dense_width = width_without_gate(optional(r, "intermediate_size", 0));
  if (m.moe_layers() == 0) return;
  model.experts = count(r, "n_routed_experts");
  model.experts_per_token = count(r, "num_experts_per_tok");
  model.expert_width = width_without_gate(count(r, "moe_intermediate_size"));
  model.expert_hidden = optional(r, "moe_latent_size", 0);
  model.shared_width = nullable(r, "n_shared_experts") *
                       width_without_gate(optional(r, "moe_shared_expert_intermediate_size", 0));
  model.expert_groups = std::max(1, optional(r, "n_group", 1));
  model.groups_per_token = std::max(1, optional(r, "topk_group", 1));
}

void qwen_dense_layers(ConfigReader& r, ModelDraft& m) {
  if (!present(r, "mlp_only_layers")) return;
  const double last = static_cast<double>(m.layers.size()) - 1;
  for (const ConfigNode& layer : r.child("mlp_only_layers").list())
    m.layers[at(layer.integer({0, last}))].moe = false;
}

// Three of four layers are linear unless layer_types says which.
void qwen_delta_nets(ConfigReader& r, ModelDraft& m) {
  qwen_dense_layers(r, m);
  m.model.draft_layers = 1;  // vLLM's recipe of Qwen3-Next drafts by MTP; no key says so
  m.linear = mixer(hf_qwen_delta_net(r));
  const int interval = std::max(1, optional(r, "full_attention_interval", 4));
  for_layers(m, [&](int i, LayerDraft& layer) { layer.linear = (i + 1) % interval != 0; });
}

// Its windows stand in "layer_types"; layers with one may have more heads.
void step_layers(ConfigReader& r, ModelDraft& m) {
  if (present(r, "attention_other_setting")) {
    ConfigReader other(r.child("attention_other_setting"));
    GroupedAttention local = step_heads(r, m.model.hidden);
    local.query_heads = count(other, "num_attention_heads");
    local.kv_heads = optional(other, "num_attention_groups", local.kv_heads);
    local.head_dim = optional(other, "head_dim", local.head_dim);
    m.local = mixer(local);
  }
  if (!present(r, "moe_layers_enum")) {
    dense_before(m, nullable(r, "first_k_dense_replace"));
    return;
  }
  const ConfigNode listed = r.child("moe_layers_enum");
  dense_before(m, static_cast<int>(m.layers.size()));
  for (const int layer : numbers_in(listed)) {
    if (layer < 0 || layer >= static_cast<int>(m.layers.size()))
      listed.fail("there is no layer {} of {}", layer, m.layers.size());
    m.layers[at(layer)].moe = true;
  }
}

}  // namespace moesim
