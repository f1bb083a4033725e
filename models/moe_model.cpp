// SPDX-License-Identifier: Apache-2.0
#include "models/moe_model.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/choice.hpp"
#include "models/checkpoints.hpp"
#include "models/language_part.hpp"
#include "models/step_ops.hpp"

namespace moesim {

namespace {

constexpr Range whole{0, 1e9};
constexpr Range at_least_one{1, 1e9};

int count(ConfigReader& r, std::string_view key) {
  return static_cast<int>(r.integer(key, at_least_one));
}

// ---- the zoo's format ----

constexpr Form size = form::integer(at_least_one);
constexpr Form size_or_none = form::integer(whole);

std::span<const Key> attention_keys() {
  static constexpr KeyDefault gqa = unset("MLA, with kv_lora");
  static constexpr KeyDefault as_keys = unset("GQA's head_dim; MLA needs it");
  static constexpr KeyDefault mla = unset("GQA, without kv_lora");
  static constexpr Key keys[] = {
      {"query_heads", size, required, "query heads"},
      {"kv_heads", size, gqa, "GQA: key and value heads"},
      {"head_dim", size, gqa, "GQA: dimension of a head"},
      {"q_lora", size_or_none, mla, "MLA: rank of the queries' projection, 0 for none"},
      {"kv_lora", size, mla, "MLA: rank of the latent that is cached"},
      {"qk_nope", size, mla, "MLA: a head's dimensions without positions"},
      {"qk_rope", size, mla, "MLA: a head's dimensions with positions"},
      {"v_dim", size, as_keys, "a head's value dimension"},
      {"output_gate", form::flag, "false", "a gate of the output is projected too"},
      {"joint_qk_norm", form::flag, "false", "GQA: queries and keys are normed over all heads"},
      {"values_are_keys", form::flag, "false", "GQA: values are not projected (Gemma 4)"},
      {"index_heads", size_or_none, "0", "heads of a sparse attention's indexer, 0 for none"},
      {"index_dim", size_or_none, "0", "dimension of its heads"},
      {"index_top", size_or_none, "0", "tokens that it leaves for attention to see"},
      {"index_keys_bf16", form::flag, "false", "the indexer's keys are cached in bf16, not fp8"}};
  return keys;
}

AttentionSpec read_attention(ConfigReader& r) {
  AttentionSpec a;
  a.query_heads = count(r, "query_heads");
  if (r.has("kv_lora")) {
    a.q_lora = static_cast<int>(r.integer("q_lora"));
    a.kv_lora = count(r, "kv_lora");
    a.qk_nope = count(r, "qk_nope");
    a.qk_rope = count(r, "qk_rope");
    a.v_dim = count(r, "v_dim");
  } else {
    a.kv_heads = count(r, "kv_heads");
    a.head_dim = count(r, "head_dim");
    if (r.has("v_dim")) a.v_dim = count(r, "v_dim");
    a.joint_qk_norm = r.flag("joint_qk_norm");
    a.values_are_keys = r.flag("values_are_keys");
  }
  a.output_gate = r.flag("output_gate");
  a.index_heads = static_cast<int>(r.integer("index_heads"));
  a.index_dim = static_cast<int>(r.integer("index_dim"));
  a.index_top = static_cast<int>(r.integer("index_top"));
  a.index_keys_bf16 = r.flag("index_keys_bf16");
  return a;
}

std::span<const Key> linear_attention_keys() {
  static constexpr Key keys[] = {
      {"key_heads", size, required, "query and key heads"},
      {"key_dim", size, required, "dimension of a query or key"},
      {"value_heads", size, required, "value heads, each with a state"},
      {"value_dim", size, required, "dimension of a value"},
      {"convolution", size, required, "tokens that the short convolution spans"},
      {"delta", form::flag, "true", "updates by the delta rule; false: a state space layer"},
      {"step_rank", size_or_none, "0", "Mamba: rank of the step's projection; 0: not Mamba"},
      {"decay_rank", size_or_none, "0", "rank of the decay's projection; 0: a decay for each head"},
      {"gate_rank", size_or_none, "0", "rank of the output gate's projection; 0: full"}};
  return keys;
}

LinearAttentionSpec read_linear_attention(ConfigReader& r) {
  return {.key_heads = count(r, "key_heads"),
          .key_dim = count(r, "key_dim"),
          .value_heads = count(r, "value_heads"),
          .value_dim = count(r, "value_dim"),
          .convolution = count(r, "convolution"),
          .delta = r.flag("delta"),
          .step_rank = static_cast<int>(r.integer("step_rank")),
          .decay_rank = static_cast<int>(r.integer("decay_rank")),
          .gate_rank = static_cast<int>(r.integer("gate_rank"))};
}

std::span<const Key> expert_keys() {
  static constexpr Key keys[] = {
      {"count", size, required, "routed experts of a layer"},
      {"per_token", size, required, "experts that a token chooses"},
      {"width", size, required, "width of an expert's FFN"},
      {"hidden", size_or_none, "0", "size of the input of experts; 0: the model's hidden size"},
      {"shared_width", size_or_none, "0", "width of all shared experts together"},
      {"groups", size, "1", "groups that experts are chosen by"},
      {"groups_per_token", size, "1", "groups that a token chooses from"}};
  return keys;
}

void read_experts(ConfigReader& r, MoeModel& m) {
  m.experts = count(r, "count");
  m.experts_per_token = count(r, "per_token");
  m.expert_width = count(r, "width");
  m.expert_hidden = static_cast<int>(r.integer("hidden"));
  m.shared_width = static_cast<int>(r.integer("shared_width"));
  m.expert_groups = count(r, "groups");
  m.groups_per_token = count(r, "groups_per_token");
}

enum class Ffn { dense, moe, none };
constexpr std::array<std::string_view, 3> ffn_names{"dense", "moe", "none"};

std::span<const Key> layer_keys() {
  static constexpr KeyDefault all = unset("every token before");
  static constexpr Key keys[] = {
      {"ffn", form::choice(ffn_names), required, "what follows attention"},
      {"linear", form::flag, "false", "linear attention in the place of attention"},
      {"window", size, all, "tokens that it attends to, sliding"},
      {"chunk", size, all, "tokens of the aligned chunk that it attends to (Llama 4)"},
      {"indexer", form::flag, "true",
       "sparse attention: own indexer, else the previous layer's choice"}};
  return keys;
}

LayerSpec read_layer(ConfigReader& r) {
  LayerSpec layer;
  const auto ffn = choice<Ffn>(r, "ffn", ffn_names);
  layer.moe = ffn == Ffn::moe;
  layer.ffn = ffn != Ffn::none;
  layer.linear = r.flag("linear");
  layer.indexer = r.flag("indexer");
  if (r.has("chunk")) {
    layer.chunked = true;
    layer.window = count(r, "chunk");
  } else if (r.has("window")) {
    layer.window = count(r, "window");
  }
  return layer;
}

// A block is a pattern of layers that repeats: {"repeat": 12, "pattern": [{...}, {...}]}.
std::span<const Key> block_keys() {
  static constexpr Form layer = form::object(layer_keys);
  static constexpr Key keys[] = {
      {"repeat", form::integer(1, 10'000), required, "how often the pattern is repeated"},
      {"pattern", form::list(layer), required, "layers"}};
  return keys;
}

void append_block(ConfigReader& r, std::vector<LayerSpec>& layers) {
  const auto repeat = r.integer("repeat");
  std::vector<LayerSpec> pattern;
  for (const ConfigNode& layer : r.child("pattern").list())
    pattern.push_back(read_object(layer, layer_keys, read_layer));
  for (std::int64_t i = 0; i < repeat; ++i)
    layers.insert(layers.end(), pattern.begin(), pattern.end());
}

std::span<const Key> published_keys() {
  static constexpr Key keys[] = {
      {"total", form::number(positive_count), required, "parameters"},
      {"active", form::number(positive_count), required, "parameters that a token uses"},
      {"active_counts", form::choice(active_counts_names), required,
       "what the authors count besides layers"}};
  return keys;
}

void read_published(ConfigReader& r, MoeModel& m) {
  m.published_total = r.number("total");
  m.published_active = r.number("active");
  m.published_counts = choice<ActiveCounts>(r, "active_counts", active_counts_names);
}

// Sparse attention is that of every layer with attention; an indexer stands in those that say so.
void limit_to_best(MoeModel& m) {
  for (LayerSpec& layer : m.layers) {
    layer.sparse_top = layer.linear ? 0 : m.attention.index_top;
    layer.indexer = layer.indexer && layer.sparse_top > 0;
  }
}

MoeModel read_zoo_model(ConfigReader& r) {
  MoeModel m;
  m.name = r.text("name");
  m.source = r.text("source");
  m.hidden = count(r, "hidden");
  m.vocabulary = count(r, "vocabulary");
  m.tied_embeddings = r.flag("tied_embeddings");
  m.attention = read_object(r.child("attention"), attention_keys, read_attention);
  if (r.has("local_attention"))
    m.local = read_object(r.child("local_attention"), attention_keys, read_attention);
  if (r.has("linear_attention"))
    m.linear =
        read_object(r.child("linear_attention"), linear_attention_keys, read_linear_attention);
  if (r.has("experts"))
    read_object(r.child("experts"), expert_keys, [&](ConfigReader& e) { read_experts(e, m); });
  m.max_positions = static_cast<int>(r.integer("max_positions"));
  if (r.has("gating_preset")) m.gating_preset = r.text("gating_preset");
  m.dense_width = static_cast<int>(r.integer("dense_width"));
  m.dense_residual = r.flag("dense_residual");
  for (const ConfigNode& block : r.child("layers").list())
    read_object(block, block_keys, [&](ConfigReader& b) { append_block(b, m.layers); });
  limit_to_best(m);
  if (r.has("published"))
    read_object(r.child("published"), published_keys,
                [&](ConfigReader& p) { read_published(p, m); });
  r.optional("precision");    // read_stored_precision()'s
  r.optional("huggingface");  // shipped_file()'s
  r.optional("checkpoints");  // read_checkpoints()'s
  return m;
}

// ---- HuggingFace's config.json, as the classes in transformers read it ----

bool present(const ConfigReader& r, std::string_view key) {
  return r.has(key) && !r.node().json().at(std::string(key)).is_null();
}
// A key that must be there but may be null, which means none.
int nullable(ConfigReader& r, std::string_view key) {
  const ConfigNode value = r.child(key);
  return value.json().is_null() ? 0 : static_cast<int>(value.integer(whole));
}
// A key that transformers gives a default.
int optional(ConfigReader& r, std::string_view key, int fallback) {
  return present(r, key) ? static_cast<int>(r.integer(key, whole)) : fallback;
}

// A key that files of one family spell in two ways.
int either(ConfigReader& r, std::string_view key, std::string_view other) {
  return count(r, present(r, key) ? key : other);
}

AttentionSpec hf_gqa(ConfigReader& r, int hidden) {
  AttentionSpec a;
  a.query_heads = count(r, "num_attention_heads");
  a.kv_heads = count(r, "num_key_value_heads");
  a.head_dim = optional(r, "head_dim", hidden / a.query_heads);
  return a;
}

// One entry for each layer. Some files go on with the layers that predict tokens further ahead.
std::vector<ConfigNode> of_each_layer(ConfigReader& r, std::string_view key, std::size_t layers) {
  std::vector<ConfigNode> entries = r.child(key).list();
  const auto ahead = static_cast<std::size_t>(optional(r, "num_nextn_predict_layers", 0));
  if (entries.size() != layers && entries.size() != layers + ahead)
    r.child(key).fail(
        fmt::format("expected one entry per layer ({}), found {}", layers, entries.size()));
  return entries;
}

// One 0 or 1 for each layer.
std::vector<bool> hf_flags(ConfigReader& r, std::string_view key, std::size_t layers) {
  std::vector<bool> flags;
  for (const ConfigNode& flag : of_each_layer(r, key, layers))
    flags.push_back(flag.integer({0, 1}) == 1);
  return flags;
}

AttentionSpec hf_mla(ConfigReader& r) {
  AttentionSpec a;
  a.query_heads = count(r, "num_attention_heads");
  a.q_lora = nullable(r, "q_lora_rank");
  a.kv_lora = count(r, "kv_lora_rank");
  a.qk_nope = count(r, "qk_nope_head_dim");
  a.qk_rope = count(r, "qk_rope_head_dim");
  a.v_dim = count(r, "v_head_dim");
  return a;
}

void hf_experts(ConfigReader& r, MoeModel& m, std::string_view experts, std::string_view width,
                std::string_view per_token = "num_experts_per_tok") {
  m.experts = count(r, experts);
  m.experts_per_token = count(r, per_token);
  m.expert_width = count(r, width);
}

template <class Rule>
void for_layers(MoeModel& m, Rule&& rule) {
  for (std::size_t i = 0; i < m.layers.size(); ++i) rule(static_cast<int>(i), m.layers[i]);
}

// Mistral: one window for every layer, or none.
void uniform_window(ConfigReader& r, MoeModel& m) {
  const int window = optional(r, "sliding_window", 0);
  for_layers(m, [&](int, LayerSpec& layer) { layer.window = window; });
}

// Qwen: a window only where it is switched on, and only from max_window_layers upwards.
void qwen_window(ConfigReader& r, MoeModel& m) {
  if (!present(r, "use_sliding_window") || !r.flag("use_sliding_window")) return;
  const int window = nullable(r, "sliding_window");
  const int first = nullable(r, "max_window_layers");
  for_layers(m, [&](int i, LayerSpec& layer) { layer.window = i >= first ? window : 0; });
}

// What each layer attends to, where the file says it layer by layer.
void hf_layer_types(ConfigReader& r, MoeModel& m) {
  if (!present(r, "layer_types")) return;
  static constexpr std::array<std::string_view, 7> known{
      "full_attention",           "sliding_attention", "chunked_attention",
      "linear_attention",         "attention",         "mamba",
      "deepseek_sparse_attention"};
  const std::vector<ConfigNode> types = of_each_layer(r, "layer_types", m.layers.size());
  for_layers(m, [&](int i, LayerSpec& layer) {
    const ConfigNode& type = types[at(i)];
    const std::string name = type.text();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      type.fail(fmt::format("attention of type \"{}\" is not modelled; one of: {}", name,
                            join_names(known)));
    }
    layer.linear = name == "linear_attention" || name == "mamba";
    if (layer.linear && m.linear.value_heads == 0)
      type.fail("linear attention of this architecture is not modelled");
    if (name == "deepseek_sparse_attention" && layer.sparse_top == 0)
      type.fail("sparse attention of this architecture is not modelled");
    layer.chunked = name == "chunked_attention";
    layer.window = layer.chunked                 ? count(r, "attention_chunk_size")
                   : name == "sliding_attention" ? count(r, "sliding_window")
                                                 : 0;
  });
}

// Which layers have experts, where the file says it layer by layer.
void hf_mlp_types(ConfigReader& r, MoeModel& m) {
  if (!present(r, "mlp_layer_types")) return;
  const std::vector<ConfigNode> types = of_each_layer(r, "mlp_layer_types", m.layers.size());
  for_layers(m, [&](int i, LayerSpec& layer) {
    const ConfigNode& type = types[at(i)];
    const std::string name = type.text();
    if (name != "dense" && name != "sparse")
      type.fail(fmt::format("FFNs of type \"{}\" are not modelled; one of: dense, sparse", name));
    layer.moe = name == "sparse";
  });
}

void read_dense(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  m.dense_width = count(r, "intermediate_size");
  for_layers(m, [](int, LayerSpec& layer) { layer.moe = false; });
}
void read_llama(ConfigReader& r, MoeModel& m) { read_dense(r, m); }
void read_mistral(ConfigReader& r, MoeModel& m) {
  read_dense(r, m);
  uniform_window(r, m);
}
void read_qwen_dense(ConfigReader& r, MoeModel& m) {
  read_dense(r, m);
  qwen_window(r, m);
}

void read_qwen_moe(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_experts", "moe_intermediate_size");
  m.shared_width = optional(r, "shared_expert_intermediate_size", 0);
  m.dense_width = optional(r, "intermediate_size", 0);
  const int step = std::max(1, optional(r, "decoder_sparse_step", 1));
  for_layers(m, [&](int i, LayerSpec& layer) { layer.moe = (i + 1) % step == 0; });
  if (present(r, "mlp_only_layers")) {
    const double last = static_cast<double>(m.layers.size()) - 1;
    for (const ConfigNode& layer : r.child("mlp_only_layers").list())
      m.layers[at(layer.integer({0, last}))].moe = false;
  }
  qwen_window(r, m);
}

// Three of four layers are linear unless layer_types says which.
void read_qwen_next(ConfigReader& r, MoeModel& m) {
  read_qwen_moe(r, m);
  m.attention.output_gate = true;
  m.linear = {.key_heads = count(r, "linear_num_key_heads"),
              .key_dim = count(r, "linear_key_head_dim"),
              .value_heads = count(r, "linear_num_value_heads"),
              .value_dim = count(r, "linear_value_head_dim"),
              .convolution = count(r, "linear_conv_kernel_dim")};
  const int interval = std::max(1, optional(r, "full_attention_interval", 4));
  for_layers(m, [&](int i, LayerSpec& layer) { layer.linear = (i + 1) % interval != 0; });
}

// Layers from `first` on have experts.
void dense_before(MoeModel& m, int first) {
  for_layers(m, [&](int i, LayerSpec& layer) { layer.moe = i >= first; });
}
void optional_groups(ConfigReader& r, MoeModel& m) {
  m.expert_groups = std::max(1, optional(r, "n_group", 1));
  m.groups_per_token = std::max(1, optional(r, "topk_group", 1));
}

// DeepSeek's way to write experts, shared by Kimi and GLM.
void deepseek_experts(ConfigReader& r, MoeModel& m) {
  hf_experts(r, m, "n_routed_experts", "moe_intermediate_size");
  m.shared_width = nullable(r, "n_shared_experts") * m.expert_width;
  m.dense_width = count(r, "intermediate_size");
  optional_groups(r, m);
  const int dense = static_cast<int>(r.integer("first_k_dense_replace", whole));
  const int step = std::max(1, optional(r, "moe_layer_freq", 1));
  for_layers(m, [&](int i, LayerSpec& layer) { layer.moe = i >= dense && i % step == 0; });
}
void read_deepseek(ConfigReader& r, MoeModel& m) {
  const bool gqa = present(r, "use_mla") && !r.flag("use_mla");  // the smallest DeepSeek-VL2
  m.attention = gqa ? hf_gqa(r, m.hidden) : hf_mla(r);
  deepseek_experts(r, m);
}

// Layers with an indexer of their own, as GLM-5.2 says it (IndexShare, arXiv:2603.12201): by name,
// by letter, or every index_topk_freq-th one behind the first few. Every layer where nothing is
// said.
void index_shared(ConfigReader& r, MoeModel& m) {
  const auto check_word = [](const ConfigNode& node, bool full, bool shared) {
    if (!full && !shared) node.fail("neither a full nor a shared indexer");
    return full;
  };
  if (present(r, "indexer_types")) {
    const std::vector<ConfigNode> types = of_each_layer(r, "indexer_types", m.layers.size());
    for_layers(m, [&](int i, LayerSpec& layer) {
      const std::string type = types[at(i)].text();
      layer.indexer = check_word(types[at(i)], type == "full", type == "shared");
    });
  } else if (present(r, "index_topk_pattern")) {
    const ConfigNode node = r.child("index_topk_pattern");
    const std::string letters = node.text();
    if (letters.size() < m.layers.size())
      node.fail(fmt::format("expected a letter for each of {} layers, found {}", m.layers.size(),
                            letters.size()));
    for_layers(m, [&](int i, LayerSpec& layer) {
      layer.indexer = check_word(node, letters[at(i)] == 'F', letters[at(i)] == 'S');
    });
  } else {
    const int every = std::max(1, optional(r, "index_topk_freq", 1));
    const int offset = optional(r, "index_skip_topk_offset", 2);
    for_layers(m, [&](int i, LayerSpec& layer) {
      layer.indexer = std::max(i - offset + 1, 0) % every == 0;
    });
  }
}

void read_deepseek_sparse(ConfigReader& r, MoeModel& m) {
  read_deepseek(r, m);
  m.attention.index_heads = count(r, "index_n_heads");
  m.attention.index_dim = count(r, "index_head_dim");
  m.attention.index_top = count(r, "index_topk");
  index_shared(r, m);
  limit_to_best(m);
}
void read_glm(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  deepseek_experts(r, m);
}

// Experts in every layer.
void read_solar(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "n_routed_experts", "moe_intermediate_size");
  m.shared_width = nullable(r, "n_shared_experts") * m.expert_width;
  optional_groups(r, m);
}

void read_mixtral(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_local_experts", "intermediate_size");
  uniform_window(r, m);
}

void read_gpt_oss(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_local_experts", "intermediate_size");
  const int window = count(r, "sliding_window");
  for_layers(m, [&](int i, LayerSpec& layer) { layer.window = i % 2 == 0 ? window : 0; });
}

void read_minimax(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  m.attention.joint_qk_norm = true;
  hf_experts(r, m, "num_local_experts", "intermediate_size");
}

void read_olmoe(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_experts", "intermediate_size");
}

// Layers with positions (RoPE) see only their own aligned chunk, layers without see everything.
void llama4_chunks(ConfigReader& r, MoeModel& m) {
  const int chunk = nullable(r, "attention_chunk_size");
  if (chunk == 0) return;
  const int interval = std::max(1, optional(r, "no_rope_layer_interval", 4));
  std::vector<ConfigNode> rope;
  if (present(r, "no_rope_layers")) rope = r.child("no_rope_layers").list();
  if (!rope.empty() && rope.size() != m.layers.size())
    r.child("no_rope_layers")
        .fail(fmt::format("expected one entry per layer ({}), found {}", m.layers.size(),
                          rope.size()));
  for_layers(m, [&](int i, LayerSpec& layer) {
    const bool local = rope.empty() ? (i + 1) % interval != 0 : rope[at(i)].integer({0, 1}) == 1;
    if (local) layer = {.window = chunk, .chunked = true, .moe = layer.moe};
  });
}

void read_llama4(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_local_experts", "intermediate_size");
  m.shared_width = m.expert_width;
  m.dense_width = optional(r, "intermediate_size_mlp", 0);
  const int step = std::max(1, optional(r, "interleave_moe_layer_step", 1));
  for_layers(m, [&](int i, LayerSpec& layer) { layer.moe = (i + 1) % step == 0; });
  llama4_chunks(r, m);
}

// Arctic's residual FFN is as wide as the model, beside the experts of every layer.
void read_arctic(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_local_experts", "intermediate_size");
  if (const ConfigNode step = r.child("moe_layer_frequency"); step.integer(at_least_one) != 1)
    step.fail("Arctic with dense layers is not modelled; 1 (experts in every layer) is expected");
  m.dense_residual = r.flag("use_residual");
  m.dense_width = m.hidden;
}

void read_dots(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "n_routed_experts", "moe_intermediate_size");
  m.shared_width = nullable(r, "n_shared_experts") * m.expert_width;
  m.dense_width = count(r, "intermediate_size");
  optional_groups(r, m);
  dense_before(m, nullable(r, "first_k_dense_replace"));
}

// Lightning attention (arXiv:2405.17381) keeps a matrix for each head that decays by a constant, as
// Mamba-2's does by a number of its own: its layers are those of a state space, without the
// convolution.
LinearAttentionSpec lightning(ConfigReader& r, int hidden) {
  const int heads = count(r, "num_attention_heads");
  const int dim = optional(r, "head_dim", hidden / heads);
  return {.key_heads = heads,
          .key_dim = dim,
          .value_heads = heads,
          .value_dim = dim,
          .convolution = 1,
          .delta = false};
}

// Ling and Ring; of the linear ones every layer_group_size-th layer has attention.
void read_bailing(ConfigReader& r, MoeModel& m) {
  m.attention = present(r, "kv_lora_rank") ? hf_mla(r) : hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_experts", "moe_intermediate_size");
  const int width = optional(r, "moe_shared_expert_intermediate_size", m.expert_width);
  m.shared_width = optional(r, "num_shared_experts", 0) * width;
  m.dense_width = count(r, "intermediate_size");
  optional_groups(r, m);
  dense_before(m, optional(r, "first_k_dense_replace", 0));
  if (!present(r, "layer_group_size")) return;
  const int group = count(r, "layer_group_size");
  m.linear = lightning(r, m.hidden);
  for_layers(m, [&](int i, LayerSpec& layer) { layer.linear = (i + 1) % group != 0; });
}

// MiniMax-Text-01 and M1: a 0 in attn_type_list is lightning attention, a 1 attention.
void read_minimax_lightning(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_local_experts", "intermediate_size");
  m.shared_width = optional(r, "shared_intermediate_size", 0);
  m.linear = lightning(r, m.hidden);
  if (present(r, "layer_types")) return;
  const std::vector<bool> attends = hf_flags(r, "attn_type_list", m.layers.size());
  for_layers(m, [&](int i, LayerSpec& layer) { layer.linear = !attends[at(i)]; });
}

// Layers by their numbers, separated by commas.
std::vector<int> numbers_in(const ConfigNode& node) {
  std::vector<int> numbers;
  const std::string text = node.text();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    int number = 0;
    const char* const end = text.data() + comma;
    if (std::from_chars(text.data() + at, end, number).ptr != end)
      node.fail(fmt::format("expected numbers separated by commas, found \"{}\"", text));
    numbers.push_back(number);
    at = comma + 1;
  }
  return numbers;
}

// Its windows stand in "layer_types"; layers with one may have more heads.
void read_step(ConfigReader& r, MoeModel& m) {
  m.attention.query_heads = count(r, "num_attention_heads");
  m.attention.kv_heads = either(r, "num_attention_groups", "num_key_value_heads");
  m.attention.head_dim = optional(r, "head_dim", m.hidden / m.attention.query_heads);
  if (present(r, "attention_other_setting")) {
    ConfigReader other(r.child("attention_other_setting"));
    m.local = m.attention;
    m.local.query_heads = count(other, "num_attention_heads");
    m.local.kv_heads = optional(other, "num_attention_groups", m.attention.kv_heads);
    m.local.head_dim = optional(other, "head_dim", m.attention.head_dim);
  }
  m.experts = either(r, "moe_num_experts", "num_experts");
  m.experts_per_token = either(r, "moe_top_k", "num_experts_per_tok");
  m.expert_width = count(r, "moe_intermediate_size");
  m.shared_width = either(r, "share_expert_dims", "share_expert_dim");
  m.dense_width = count(r, "intermediate_size");
  if (!present(r, "moe_layers_enum")) {
    dense_before(m, nullable(r, "first_k_dense_replace"));
    return;
  }
  const ConfigNode listed = r.child("moe_layers_enum");
  dense_before(m, static_cast<int>(m.layers.size()));
  for (const int layer : numbers_in(listed)) {
    if (layer < 0 || layer >= static_cast<int>(m.layers.size()))
      listed.fail(fmt::format("there is no layer {} of {}", layer, m.layers.size()));
    m.layers[at(layer)].moe = true;
  }
}

// EXAONE, Trinity and Hy3: shared experts as wide as routed ones, and windows in all layers but one
// of each few.
void every_few_see_all(ConfigReader& r, MoeModel& m, std::string_view key, int usual) {
  const int window = optional(r, "sliding_window", 0);
  const int few = optional(r, key, usual);
  for_layers(m, [&](int i, LayerSpec& layer) {
    layer.window = few > 0 && (i + 1) % few != 0 ? window : 0;
  });
}
void shared_as_wide(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_experts", "moe_intermediate_size");
  m.shared_width = optional(r, "num_shared_experts", 0) * m.expert_width;
  m.dense_width = optional(r, "intermediate_size", 0);
  optional_groups(r, m);
}
void read_afmoe(ConfigReader& r, MoeModel& m) {
  shared_as_wide(r, m);
  m.attention.output_gate = true;
  dense_before(m, optional(r, "num_dense_layers", 1));
  every_few_see_all(r, m, "global_attn_every_n_layers", 4);
}
void read_hy3(ConfigReader& r, MoeModel& m) {
  shared_as_wide(r, m);
  dense_before(m, optional(r, "first_k_dense_replace", 1));
}
void read_exaone(ConfigReader& r, MoeModel& m) {
  read_hy3(r, m);
  if (!present(r, "layer_types")) every_few_see_all(r, m, "sliding_window_pattern", 4);
}

void read_aria(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "moe_num_experts", "intermediate_size", "moe_topk");
  m.shared_width = optional(r, "moe_num_shared_experts", 2) * m.expert_width;
}

// Grok-1, and Grok-2 with a dense FFN beside the experts of every layer.
void read_grok(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  m.experts = either(r, "num_local_experts", "num_experts");
  m.experts_per_token = count(r, "num_experts_per_tok");
  m.expert_width = either(r, "moe_intermediate_size", "intermediate_size");
  m.dense_residual = present(r, "residual_moe") && r.flag("residual_moe");
  m.dense_width = count(r, "intermediate_size");
}

void read_smallthinker(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "moe_num_primary_experts", "moe_ffn_hidden_size",
             "moe_num_active_primary_experts");
  if (!present(r, "sliding_window_layout")) return;
  const int window = count(r, "sliding_window_size");
  const std::vector<bool> slides = hf_flags(r, "sliding_window_layout", m.layers.size());
  for_layers(m, [&](int i, LayerSpec& layer) { layer.window = slides[at(i)] ? window : 0; });
}

void read_granite(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_local_experts", "intermediate_size");
  m.shared_width = optional(r, "shared_intermediate_size", 0);
}

// Granite 4: Mamba-2 in the layers that layer_types says, experts in every layer.
void read_granite_hybrid(ConfigReader& r, MoeModel& m) {
  read_granite(r, m);
  const int heads = count(r, "mamba_n_heads");
  m.linear = {.key_heads = optional(r, "mamba_n_groups", 1),
              .key_dim = count(r, "mamba_d_state"),
              .value_heads = heads,
              .value_dim = optional(r, "mamba_expand", 2) * m.hidden / heads,
              .convolution = optional(r, "mamba_d_conv", 4),
              .delta = false};
}

// Its window is as long as its longest context: none.
void read_phimoe(ConfigReader& r, MoeModel& m) {
  read_mixtral(r, m);
  const int longest = optional(r, "max_position_embeddings", 0);
  for_layers(m, [&](int, LayerSpec& layer) {
    if (layer.window >= longest) layer.window = 0;
  });
}

void read_dbrx(ConfigReader& r, MoeModel& m) {
  m.attention.query_heads = count(r, "n_heads");
  ConfigReader attention(r.child("attn_config")), experts(r.child("ffn_config"));
  m.attention.kv_heads = count(attention, "kv_n_heads");
  m.attention.head_dim = m.hidden / m.attention.query_heads;
  hf_experts(experts, m, "moe_num_experts", "ffn_hidden_size", "moe_top_k");
}

void read_ernie(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "moe_num_experts", "moe_intermediate_size", "moe_k");
  m.shared_width = optional(r, "moe_num_shared_experts", 0) * m.expert_width;
  m.dense_width = count(r, "intermediate_size");
  const int first = nullable(r, "moe_layer_start_index");
  const auto last = r.integer("moe_layer_end_index", {-1, 1e9});  // -1: the model's last
  const int step = std::max(1, optional(r, "moe_layer_interval", 1));
  for_layers(m, [&](int i, LayerSpec& layer) {
    layer.moe = i >= first && (last < 0 || i <= last) && (i + 1) % step == 0;
  });
}

// A number, or a list with the same number for each layer.
int for_each_layer(ConfigReader& r, std::string_view key) {
  const ConfigNode node = r.child(key);
  if (!node.json().is_array()) return static_cast<int>(node.integer(whole));
  const std::vector<ConfigNode> layers = node.list();
  if (layers.empty()) node.fail("names no layer");
  const auto first = layers.front().integer(whole);
  for (const ConfigNode& layer : layers) {
    if (layer.integer(whole) != first)
      layer.fail(fmt::format("layers that differ are not modelled; {} is expected", first));
  }
  return static_cast<int>(first);
}

void read_hunyuan(ConfigReader& r, MoeModel& m) {
  m.attention.query_heads = count(r, "num_attention_heads");
  m.attention.kv_heads = count(r, "num_key_value_heads");
  const int head_dim = optional(r, "head_dim", m.hidden / m.attention.query_heads);
  m.attention.head_dim = optional(r, "attention_head_dim", head_dim);
  m.experts = for_each_layer(r, "num_experts");
  m.experts_per_token = for_each_layer(r, "moe_topk");
  m.expert_width = for_each_layer(r, "moe_intermediate_size");
  m.dense_width = count(r, "intermediate_size");
  m.shared_width = for_each_layer(r, "num_shared_expert") * m.dense_width;
  dense_before(m, optional(r, "moe_layer_num_skipped", 0));
}

// A dense FFN stands beside the experts of every layer, as a shared expert would, or alone in a
// dense model; layers that see everything have heads of their own.
void read_gemma4(ConfigReader& r, MoeModel& m) {
  if (optional(r, "num_kv_shared_layers", 0) > 0)
    r.child("num_kv_shared_layers").fail("layers that share a KV cache are not modelled");
  if (optional(r, "hidden_size_per_layer_input", 0) > 0)
    r.child("hidden_size_per_layer_input").fail("embeddings for each layer are not modelled");
  m.local = hf_gqa(r, m.hidden);
  m.attention = m.local;
  m.attention.kv_heads = optional(r, "num_global_key_value_heads", m.local.kv_heads);
  m.attention.head_dim = optional(r, "global_head_dim", m.local.head_dim);
  m.attention.values_are_keys = present(r, "attention_k_eq_v") && r.flag("attention_k_eq_v");
  if (!present(r, "enable_moe_block") || !r.flag("enable_moe_block")) {
    m.dense_width = count(r, "intermediate_size");
    for_layers(m, [](int, LayerSpec& layer) { layer.moe = false; });
    return;
  }
  m.experts = count(r, "num_experts");
  m.experts_per_token = count(r, "top_k_experts");
  m.expert_width = count(r, "moe_intermediate_size");
  m.shared_width = count(r, "intermediate_size");
}

void read_mimo(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  m.attention.v_dim = optional(r, "v_head_dim", m.attention.head_dim);
  m.local = {.query_heads = count(r, "swa_num_attention_heads"),
             .kv_heads = count(r, "swa_num_key_value_heads"),
             .head_dim = count(r, "swa_head_dim"),
             .v_dim = count(r, "swa_v_head_dim")};
  hf_experts(r, m, "n_routed_experts", "moe_intermediate_size");
  m.shared_width = nullable(r, "n_shared_experts") * m.expert_width;
  m.dense_width = count(r, "intermediate_size");
  optional_groups(r, m);
  const int window = count(r, "sliding_window");
  const std::vector<bool> slides = hf_flags(r, "hybrid_layer_pattern", m.layers.size());
  const std::vector<bool> moe = hf_flags(r, "moe_layer_freq", m.layers.size());
  for_layers(m, [&](int i, LayerSpec& layer) {
    layer.moe = moe[at(i)];
    layer.window = slides[at(i)] ? window : 0;
  });
}

// Sparse attention over blocks of keys; its indexer stands in the layers that it says.
void read_minimax_m3(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  const bool said = present(r, "moe_intermediate_size");
  hf_experts(r, m, "num_local_experts", said ? "moe_intermediate_size" : "intermediate_size");
  m.shared_width =
      nullable(r, "n_shared_experts") * optional(r, "shared_intermediate_size", m.expert_width);
  m.dense_width = optional(r, "dense_intermediate_size", 0);
  const std::vector<bool> moe = hf_flags(r, "moe_layer_freq", m.layers.size());
  for_layers(m, [&](int i, LayerSpec& layer) { layer.moe = moe[at(i)]; });
  if (!present(r, "sparse_attention_config")) return;
  ConfigReader sparse(r.child("sparse_attention_config"));
  if (!present(sparse, "use_sparse_attention") || !sparse.flag("use_sparse_attention")) return;
  m.attention.index_heads = count(sparse, "sparse_num_index_heads");
  m.attention.index_dim = count(sparse, "sparse_index_dim");
  m.attention.index_top = count(sparse, "sparse_topk_blocks") * count(sparse, "sparse_block_size");
  m.attention.index_keys_bf16 = true;
  const std::vector<bool> thinned = hf_flags(sparse, "sparse_attention_freq", m.layers.size());
  for_layers(m, [&](int i, LayerSpec& layer) {
    layer.sparse_top = thinned[at(i)] ? m.attention.index_top : 0;
    layer.indexer = thinned[at(i)];
  });
}

// Mamba layers but for one of each period, and experts in one of each period of their own.
void read_jamba(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  hf_experts(r, m, "num_experts", "intermediate_size");
  m.dense_width = m.expert_width;
  const int state = optional(r, "mamba_d_state", 16);
  m.linear = {.key_heads = 1,
              .key_dim = state,
              .value_heads = optional(r, "mamba_expand", 2) * m.hidden,
              .value_dim = 1,
              .convolution = optional(r, "mamba_d_conv", 4),
              .delta = false,
              .step_rank = optional(r, "mamba_dt_rank", (m.hidden + 15) / 16)};
  const int attends = std::max(1, optional(r, "attn_layer_period", 8));
  const int attends_at = optional(r, "attn_layer_offset", 4);
  const int experts = std::max(1, optional(r, "expert_layer_period", 2));
  const int experts_at = optional(r, "expert_layer_offset", 1);
  for_layers(m, [&](int i, LayerSpec& layer) {
    layer.linear = i % attends != attends_at % attends;
    layer.moe = i % experts == experts_at % experts;
  });
}

// Without a gate an FFN has two matrices where others have three: it counts as a gated one of two
// thirds its width, which GPUs divide evenly.
int width_without_gate(int width) { return (2 * width / 3 + 7) / 8 * 8; }

// Its layers are a mixer or an FFN each: M for Mamba-2, * for attention, E for experts, - for a
// dense FFN. Here a mixer and the FFN after it, if one comes, are one layer.
void append_nemotron_layer(char letter, const ConfigNode& node, MoeModel& m) {
  if (letter == 'M' || letter == '*') {
    m.layers.push_back({.moe = false, .ffn = false, .linear = letter == 'M'});
  } else if ((letter == 'E' || letter == '-') && !m.layers.empty() && !m.layers.back().ffn) {
    m.layers.back().ffn = true;
    m.layers.back().moe = letter == 'E';
  } else {
    node.fail(fmt::format(
        "\"{}\" is not modelled here; M, * and, after one of these, E or - are expected", letter));
  }
}

// Files of before transformers 5 say it in letters, later ones in words.
void nemotron_layers(ConfigReader& r, MoeModel& m) {
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
      block.fail(fmt::format(
          "a layer of type \"{}\" is not modelled; mamba, attention, moe and mlp are", name));
    append_nemotron_layer(word->letter, block, m);
  }
}

void read_nemotron(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  m.linear = {.key_heads = count(r, "n_groups"),
              .key_dim = count(r, "ssm_state_size"),
              .value_heads = count(r, "mamba_num_heads"),
              .value_dim = count(r, "mamba_head_dim"),
              .convolution = count(r, "conv_kernel"),
              .delta = false};
  nemotron_layers(r, m);
  m.dense_width = width_without_gate(optional(r, "intermediate_size", 0));
  if (m.moe_layers() == 0) return;
  hf_experts(r, m, "n_routed_experts", "moe_intermediate_size");
  m.expert_width = width_without_gate(m.expert_width);
  m.expert_hidden = optional(r, "moe_latent_size", 0);
  m.shared_width = nullable(r, "n_shared_experts") *
                   width_without_gate(optional(r, "moe_shared_expert_intermediate_size", 0));
  optional_groups(r, m);
}

// Kimi Linear: delta nets (Kimi Delta Attention) but for the layers of MLA that it names, from 1
// on, and experts that see a projection of the hidden state.
void read_kimi_linear(ConfigReader& r, MoeModel& m) {
  m.attention = hf_mla(r);
  m.attention.output_gate = present(r, "mla_use_output_gate") && r.flag("mla_use_output_gate");
  m.experts = count(r, "num_experts");
  m.experts_per_token = count(r, "num_experts_per_token");
  m.expert_width = count(r, "moe_intermediate_size");
  m.expert_hidden = optional(r, "routed_expert_hidden_size", 0);
  m.shared_width = optional(r, "num_shared_experts", 0) * m.expert_width;
  m.dense_width = count(r, "intermediate_size");
  m.expert_groups = std::max(1, optional(r, "num_expert_group", 1));
  m.groups_per_token = std::max(1, optional(r, "topk_group", 1));
  dense_before(m, nullable(r, "first_k_dense_replace"));
  ConfigReader linear(r.child("linear_attn_config"));
  const int heads = count(linear, "num_heads"), dim = count(linear, "head_dim");
  const bool full_gate = present(linear, "use_full_rank_gate") && linear.flag("use_full_rank_gate");
  m.linear = {.key_heads = heads,
              .key_dim = dim,
              .value_heads = heads,
              .value_dim = dim,
              .convolution = count(linear, "short_conv_kernel_size"),
              .decay_rank = dim,
              .gate_rank = full_gate ? 0 : dim};
  const double last = static_cast<double>(m.layers.size());
  for (const ConfigNode& layer : linear.child("kda_layers").list())
    m.layers[at(layer.integer({1, last}) - 1)].linear = true;
}

// Its heads stand there layer by layer: those of layers with a window may be more.
void read_laguna(ConfigReader& r, MoeModel& m) {
  m.attention = hf_gqa(r, m.hidden);
  if (present(r, "gating"))
    m.attention.output_gate = r.child("gating").json() == Json("per-element");
  hf_experts(r, m, "num_experts", "moe_intermediate_size");
  m.shared_width = optional(r, "shared_expert_intermediate_size", 0);
  m.dense_width = optional(r, "intermediate_size", 0);
  dense_before(m, 1);
  if (!present(r, "num_attention_heads_per_layer")) return;
  hf_layer_types(r, m);
  const std::vector<ConfigNode> heads =
      of_each_layer(r, "num_attention_heads_per_layer", m.layers.size());
  int whole_heads = 0, local_heads = 0;
  for_layers(m, [&](int i, const LayerSpec& layer) {
    const ConfigNode& node = heads[at(i)];
    const int here = static_cast<int>(node.integer(at_least_one));
    int& kind = layer.window > 0 ? local_heads : whole_heads;
    if (kind != 0 && kind != here)
      node.fail(
          fmt::format("layers that differ in more than their window are not modelled; {} is "
                      "expected",
                      kind));
    kind = here;
  });
  m.local = m.attention;
  m.local.query_heads = local_heads > 0 ? local_heads : m.attention.query_heads;
  if (whole_heads > 0) m.attention.query_heads = whole_heads;
}

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  void (*read)(ConfigReader&, MoeModel&);
  std::string_view gating_preset = {};
};
constexpr std::array families{
    Family{"afmoe", "AfmoeForCausalLM", read_afmoe},
    Family{"arctic", "ArcticForCausalLM", read_arctic},
    Family{"aria_text", "AriaForConditionalGeneration", read_aria},
    Family{"bailing_hybrid", "BailingMoeV2_5ForCausalLM", read_bailing},
    Family{"bailing_moe", "BailingMoeForCausalLM", read_bailing},
    Family{"bailing_moe_linear", "BailingMoeLinearV2ForCausalLM", read_bailing},
    Family{"bailing_moe_v2", "BailingMoeV2ForCausalLM", read_bailing},
    Family{"dbrx", "DbrxForCausalLM", read_dbrx},
    Family{"deepseek", "DeepseekForCausalLM", read_glm},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek, "deepseek_v2_lite"},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek, "deepseek_r1"},
    Family{"deepseek_v32", "DeepseekV32ForCausalLM", read_deepseek_sparse, "deepseek_r1"},
    Family{"dots1", "Dots1ForCausalLM", read_dots},
    Family{"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", read_ernie},
    Family{"exaone_moe", "ExaoneMoEForCausalLM", read_exaone},
    Family{"flex_olmo", "FlexOlmoForCausalLM", read_olmoe},
    Family{"gemma4_text", "Gemma4ForConditionalGeneration", read_gemma4, "gemma4"},
    Family{"glm4_moe", "Glm4MoeForCausalLM", read_glm},
    Family{"glm4_moe_lite", "Glm4MoeLiteForCausalLM", read_deepseek},
    Family{"glm4v_moe_text", "Glm4vMoeForConditionalGeneration", read_glm},
    Family{"glm_moe_dsa", "GlmMoeDsaForCausalLM", read_deepseek_sparse},
    Family{"gpt_oss", "GptOssForCausalLM", read_gpt_oss, "gpt_oss"},
    Family{"granitemoe", "GraniteMoeForCausalLM", read_granite},
    Family{"granitemoehybrid", "GraniteMoeHybridForCausalLM", read_granite_hybrid},
    Family{"granitemoeshared", "GraniteMoeSharedForCausalLM", read_granite},
    Family{"grinmoe", "GRINMoEForCausalLM", read_phimoe},
    Family{"grok-1", "Grok1ForCausalLM", read_grok},
    Family{"grok-1", "Grok1ModelForCausalLM", read_grok},
    Family{"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", read_hunyuan},
    Family{"hy_v3", "HYV3ForCausalLM", read_hy3},
    Family{"jamba", "JambaForCausalLM", read_jamba},
    Family{"kimi_k2", "DeepseekV3ForCausalLM", read_deepseek},
    Family{"kimi_linear", "KimiLinearForCausalLM", read_kimi_linear},
    Family{"laguna", "LagunaForCausalLM", read_laguna},
    Family{"llama", "LlamaForCausalLM", read_llama},
    Family{"llama4_text", "Llama4ForConditionalGeneration", read_llama4},
    Family{"mimo_v2_flash", "MiMoV2FlashForCausalLM", read_mimo},
    Family{"minimax", "MiniMaxForCausalLM", read_minimax_lightning},
    Family{"minimax_m1", "MiniMaxM1ForCausalLM", read_minimax_lightning},
    Family{"minimax_m2", "MiniMaxM2ForCausalLM", read_minimax},
    Family{"minimax_m3", "MiniMaxM3ForCausalLM", read_minimax_m3},
    Family{"minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", read_minimax_m3},
    Family{"minimax_text_01", "MiniMaxText01ForCausalLM", read_minimax_lightning},
    Family{"mistral", "MistralForCausalLM", read_mistral},
    Family{"mistral4", "Mistral4ForCausalLM", read_deepseek},
    Family{"mixtral", "MixtralForCausalLM", read_mixtral, "mixtral"},
    Family{"nemotron_h", "NemotronHForCausalLM", read_nemotron},
    Family{"olmoe", "OlmoeForCausalLM", read_olmoe, "olmoe"},
    Family{"pangu_pro_moe", "PanguProMoEForCausalLM", read_qwen_moe},
    Family{"phimoe", "PhiMoEForCausalLM", read_phimoe},
    Family{"qwen2", "Qwen2ForCausalLM", read_qwen_dense},
    Family{"qwen2_moe", "Qwen2MoeForCausalLM", read_qwen_moe},
    Family{"qwen3", "Qwen3ForCausalLM", read_qwen_dense},
    Family{"qwen3_5_moe_text", "Qwen3_5MoeForConditionalGeneration", read_qwen_next},
    Family{"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen_moe, "qwen3"},
    Family{"qwen3_next", "Qwen3NextForCausalLM", read_qwen_next},
    Family{"qwen3_omni_moe_text", "Qwen3OmniMoeForConditionalGeneration", read_qwen_moe, "qwen3"},
    Family{"qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration", read_qwen_moe, "qwen3"},
    Family{"smallthinker", "SmallThinkerForCausalLM", read_smallthinker},
    Family{"solar_open", "SolarOpenForCausalLM", read_solar},
    Family{"step3p5", "Step3p5ForCausalLM", read_step},
    Family{"step3p7", "Step3p7FlashForCausalLM", read_step},
};

// Families that are known, and hold what is not modelled.
constexpr std::string_view encoder_decoder =
    "encoder and decoder with cross attention are not modelled";
constexpr std::string_view two_kinds =
    "experts of two sizes, for text and for images, are not modelled";
struct Refusal {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view why;
};
constexpr std::array refusals{
    Refusal{"deepseek_v4", "DeepseekV4ForCausalLM",
            "DeepSeek-V4's compressed attention (\"compress_ratios\") is not modelled"},
    Refusal{"doge", "DogeForCausalLM",
            "Doge's retrieval of experts by product keys is not modelled"},
    Refusal{"ernie4_5_moe_vl", "Ernie4_5_VLMoeForConditionalGeneration", two_kinds},
    Refusal{"ernie4_5_vl_moe_text", "Ernie4_5_VL_MoeForConditionalGeneration", two_kinds},
    Refusal{"hunyuan", "HunYuanForCausalLM",
            "Hunyuan-Large's layers that share a KV cache (\"use_cla\") are not modelled"},
    Refusal{"jetmoe", "JetMoeForCausalLM",
            "JetMoE's experts of attention (mixture of attention heads) are not modelled"},
    Refusal{"lfm2_moe", "Lfm2MoeForCausalLM",
            "LFM2's short convolutions in the place of attention are not modelled"},
    Refusal{"longcat_flash", "LongcatFlashForCausalLM",
            "LongCat-Flash's experts without computation (\"zero_expert_num\") are not modelled"},
    Refusal{"nllb-moe", "NllbMoeForConditionalGeneration", encoder_decoder},
    Refusal{"step3_text", "Step3TextForCausalLM",
            "Step-3's attention with factored queries (\"share_q_dim\") is not modelled"},
    Refusal{"switch_transformers", "SwitchTransformersForConditionalGeneration", encoder_decoder},
};

void refuse_known(const ConfigNode& node, std::string_view name) {
  for (const Refusal& refusal : refusals)
    if (name == refusal.model_type || name == refusal.architecture)
      node.fail(std::string(refusal.why));
}

const Family& family_of(ConfigReader& top, ConfigReader& text) {
  std::string name;
  if (present(text, "model_type")) {
    name = text.text("model_type");
    for (const Family& family : families)
      if (family.model_type == name) return family;
    refuse_known(text.node(), name);
  }
  if (present(top, "architectures")) {
    for (const ConfigNode& architecture : top.child("architectures").list()) {
      const std::string written = architecture.text();
      for (const Family& family : families)
        if (family.architecture == written) return family;
      refuse_known(text.node(), written);
      if (name.empty()) name = written;
    }
  }
  std::array<std::string_view, families.size()> known;
  std::transform(families.begin(), families.end(), known.begin(),
                 [](const Family& family) { return family.model_type; });
  text.node().fail(
      fmt::format("unknown architecture \"{}\"; describe it in the zoo's format "
                  "(models/README.md), or use one of: {}",
                  name, join_names(known)));
}

// config.json seldom names its model: take the file's name, or its folder's.
std::string hf_name(ConfigReader& r) {
  if (present(r, "_name_or_path"))
    if (std::string name = r.text("_name_or_path"); !name.empty()) return name;
  const std::filesystem::path& file = r.node().file();
  return file.stem() == "config" ? file.parent_path().filename().string() : file.stem().string();
}

// As vLLM derives it (vllm/config/model.py): a scaling of the rotary embedding lengthens it, where
// the file does not count it in already.
int hf_max_positions(ConfigReader& r) {
  const char* const key = present(r, "max_seq_len") ? "max_seq_len" : "max_position_embeddings";
  int longest = optional(r, key, 0);
  for (const char* const where : {"rope_scaling", "rope_parameters"}) {
    if (!present(r, where)) continue;
    const ConfigNode node = r.child(where);
    const Json& scaling = node.json();
    const auto number = [&](const char* name) {
      const auto found = scaling.find(name);
      return found != scaling.end() && found->is_number() ? found->get<double>() : 0;
    };
    const double scaled = number("factor") * number("original_max_position_embeddings");
    if (scaled < 1e9) longest = std::max(longest, static_cast<int>(scaled));
  }
  return longest;
}

MoeModel read_hf_model(const ConfigNode& node) {
  ConfigReader top(node);
  ConfigReader r(language_part(node));
  const Family& family = family_of(top, r);
  MoeModel m;
  m.name = hf_name(top);
  m.source = fmt::format("HuggingFace config.json ({})", family.model_type);
  m.gating_preset = family.gating_preset;
  // DBRX has names of its own.
  m.hidden = count(r, present(r, "d_model") ? "d_model" : "hidden_size");
  m.vocabulary = count(r, "vocab_size");
  m.tied_embeddings = present(r, "tie_word_embeddings")     ? r.flag("tie_word_embeddings")
                      : present(top, "tie_word_embeddings") ? top.flag("tie_word_embeddings")
                                                            : false;
  const char* const layers = present(r, "n_layers") ? "n_layers" : "num_hidden_layers";
  // The list of Nemotron's blocks counts where it is given.
  if (!present(r, "layers_block_type")) m.layers.resize(at(r.integer(layers, {1, 10'000})));
  m.max_positions = hf_max_positions(r);
  family.read(r, m);
  hf_layer_types(r, m);
  hf_mlp_types(r, m);
  // Many files give a width for dense layers that the model has none of.
  if (m.moe_layers() == static_cast<int>(m.layers.size()) && !m.dense_residual) m.dense_width = 0;
  return m;
}

// ---- facts that must agree, in every source of a model ----

void require(const ConfigNode& node, bool holds, std::string_view message) {
  if (!holds) node.fail(message);
}

void require_consistent(const ConfigNode& node, const MoeModel& m) {
  const AttentionSpec& a = m.attention;
  require(node, !m.layers.empty(), "the model has no layers; at least one is expected");
  require(node, a.is_mla() || a.query_heads % a.kv_heads == 0,
          fmt::format("{} query heads do not share {} KV heads evenly", a.query_heads, a.kv_heads));
  require(node, a.is_mla() || a.head_dim > 0, "the attention's head dimension is 0");
  require(node, !a.is_sparse() || (a.index_heads > 0 && a.index_dim > 0),
          "sparse attention needs the heads of its indexer and their dimension");
  require(node, a.is_sparse() || a.index_heads == 0,
          "an indexer needs \"index_top\", the tokens that it leaves for attention to see");
  const auto sparse =
      std::ranges::find_if(m.layers, [](const LayerSpec& l) { return l.sparse_top > 0; });
  require(node, sparse == m.layers.end() || sparse->indexer,
          "the first layer with sparse attention has no indexer; one is expected");
  require(node,
          m.local.query_heads == 0 || (!m.local.is_mla() && m.local.head_dim > 0 &&
                                       m.local.query_heads % m.local.kv_heads == 0),
          "local attention is GQA; its query heads share its KV heads evenly");
  require(node, m.linear_layers() == 0 || m.linear.value_heads > 0,
          "a layer is linear but \"linear_attention\" is missing");
  require(node, m.linear_layers() < static_cast<int>(m.layers.size()),
          "every layer is linear; at least one with attention is expected");
  const int moe_layers = m.moe_layers();
  require(node, moe_layers == 0 || m.experts > 0, "a layer is \"moe\" but \"experts\" is missing");
  require(node, moe_layers > 0 || m.experts == 0, "there are experts but no layer is \"moe\"");
  const bool dense_ffn =
      m.dense_residual || std::any_of(m.layers.begin(), m.layers.end(),
                                      [](const LayerSpec& layer) { return layer.has_dense_ffn(); });
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

}  // namespace

int MoeModel::moe_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(),
                                        [](const LayerSpec& layer) { return layer.moe; }));
}

int MoeModel::linear_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(),
                                        [](const LayerSpec& layer) { return layer.linear; }));
}

AttentionSpec MoeModel::attention_of(const LayerSpec& layer) const {
  AttentionSpec a = layer.window > 0 && local.query_heads > 0 ? local : attention;
  a.index_top = layer.sparse_top;
  if (!layer.indexer) a.index_heads = a.index_dim = 0;
  return a;
}

bool is_hf_model(const ConfigNode& node) {
  return node.json().is_object() && std::ranges::any_of(hf_model_marks, [&](std::string_view mark) {
           return node.json().contains(mark);
         });
}

ConfigNode language_part(ConfigNode node) {
  for (const char* const part :
       {"thinker_config", "text_config", "language_config", "llm_config"}) {
    ConfigReader r(node);
    if (present(r, part)) node = r.child(part);
  }
  return node;
}

std::span<const Key> model_keys() {
  static constexpr Form block = form::object(block_keys);
  static constexpr Key keys[] = {
      {"name", form::text, required, "the model's name in reports"},
      {"source", form::text, required, "where these numbers come from"},
      {"huggingface", form::list(form::text), "[]", "ids that the model is also found by"},
      {"hidden", size, required, "hidden size"},
      {"vocabulary", size, required, "tokens that it knows"},
      {"tied_embeddings", form::flag, required, "the LM head is the embedding"},
      {"attention", form::object(attention_keys), required, "GQA, or MLA with kv_lora"},
      {"local_attention", form::object(attention_keys), unset("the same"),
       "attention of layers with a window, where it differs"},
      {"linear_attention", form::object(linear_attention_keys), unset("no linear layers"),
       "gated delta net or state space layer, of layers with \"linear\""},
      {"experts", form::object(expert_keys), unset("a dense model"),
       "experts of layers with \"moe\""},
      {"gating_preset", form::text, unset("that of other families"),
       "preset whose statistics synthetic routing has (moesim list presets)"},
      {"max_positions", size_or_none, "0", "tokens that a sequence may have; 0: unlimited"},
      {"dense_width", size_or_none, "0", "width of the FFN of dense layers"},
      {"dense_residual", form::flag, "false", "MoE layers have the dense FFN too (Arctic)"},
      {"layers", form::list(block), required, "blocks of layers, in order"},
      {"published", form::object(published_keys), unset("not compared"), "the authors' counts"},
      {"precision", form::object(precision_keys), unset("not said"),
       "precision of the weights as published"},
      {"checkpoints", form::object(checkpoint_keys), unset("none is known"),
       "HuggingFace ids of weights, by the precision of experts"}};
  return keys;
}

MoeModel read_model(const ConfigNode& node) {
  MoeModel model =
      is_hf_model(node) ? read_hf_model(node) : read_object(node, model_keys, read_zoo_model);
  require_consistent(node, model);
  return model;
}

double kv_elements(const AttentionSpec& a, int tp) {
  // DeepSeek-V2 (arXiv:2405.04434) section 2.1: the latent and the key's rotary part.
  if (a.is_mla()) return a.kv_lora + a.qk_rope;
  const int heads = (a.kv_heads + tp - 1) / tp;
  return static_cast<double>(heads) * (a.head_dim + a.value_dim());
}

// Numbers that share a scale in fp8_ds_mla and in index keys (vLLM 0.11,
// vllm/v1/attention/backends/mla/flashmla_sparse.py, indexer.py).
constexpr int scaled_together = 128;
constexpr double scale_bytes = 4;

double kv_bytes(const AttentionSpec& a, Precision kv_cache, int tp) {
  if (a.is_mla() && a.is_sparse() && bytes_per_element(kv_cache) == 1) {
    return a.kv_lora + a.kv_lora / scaled_together * scale_bytes +
           a.qk_rope * bytes_per_element(Precision::bf16);
  }
  return kv_elements(a, tp) * bytes_per_element(kv_cache);
}

double index_key_bytes(const AttentionSpec& a) {
  if (!a.has_indexer()) return 0;
  if (a.index_keys_bf16) return a.index_dim * bytes_per_element(Precision::bf16);
  return a.index_dim + static_cast<double>(a.index_dim) / scaled_together * scale_bytes;
}

double attention_parameters(const AttentionSpec& a, int hidden, int tp) {
  const double heads = static_cast<double>(a.query_heads) / tp;
  const double queries = a.output_gate ? 2 : 1;
  // DeepSeek-V3.2's indexer: queries from the compressed ones, one key and the heads' weights from
  // the hidden state.
  const double indexer =
      a.has_indexer()
          ? static_cast<double>(a.index_heads) * a.index_dim * (a.q_lora > 0 ? a.q_lora : hidden) +
                static_cast<double>(hidden) * (a.index_dim + a.index_heads)
          : 0;
  if (!a.is_mla()) {
    const int kv_heads = (a.kv_heads + tp - 1) / tp;
    const double values = a.values_are_keys ? 0 : a.value_dim();
    return hidden *
               (heads * (queries * a.head_dim + a.value_dim()) + kv_heads * (a.head_dim + values)) +
           indexer;
  }
  // DeepSeek-V2 (arXiv:2405.04434) section 2.1: q = W_uq W_dq x, latent = W_dkv x, k and v from the
  // latent, all heads' outputs through W_o.
  const double down = static_cast<double>(hidden) * (a.q_lora + a.kv_lora + a.qk_rope);
  const double query = heads * (a.qk_nope + a.qk_rope) * (a.q_lora > 0 ? a.q_lora : hidden);
  const double key_value = heads * (a.qk_nope + a.v_dim) * a.kv_lora;
  const double outputs = (a.output_gate ? 2 : 1) * heads * a.v_dim * hidden;
  return down + query + key_value + outputs + indexer;
}

double linear_attention_parameters(const LinearAttentionSpec& a, int hidden, int tp) {
  const double keys = static_cast<double>(a.key_heads) * a.key_dim / tp;
  const double values = static_cast<double>(a.value_heads) * a.value_dim / tp;
  const double heads = static_cast<double>(a.value_heads) / tp;
  // Mamba: channels and their gate; the step, B and C from the channels; the step's own projection,
  // a decay for each number of the state, the convolution over channels; the output.
  if (a.step_rank > 0) {
    return hidden * 2 * values + values * (a.step_rank + 2.0 * a.key_dim) + a.step_rank * values +
           values * a.key_dim + values * a.convolution + values * hidden;
  }
  // Queries, keys, values and the output's gate; a decay and a rate for each head; the convolution
  // over queries, keys and values; the output.
  const double rates = a.delta && a.decay_rank == 0 ? 2 : 1;  // Mamba-2 has the step alone
  const double decay = a.decay_rank * (hidden + keys);
  const double gate = a.gate_rank > 0 ? a.gate_rank * (hidden + values) : hidden * values;
  return hidden * (2 * keys + values + rates * heads) + decay + gate +
         (2 * keys + values) * a.convolution + 2 * heads + a.value_dim + values * hidden;
}

double mixer_parameters(const MoeModel& m, const LayerSpec& layer, int tp) {
  return layer.linear ? linear_attention_parameters(m.linear, m.hidden, tp)
                      : attention_parameters(m.attention_of(layer), m.hidden, tp);
}

LinearState linear_state(const LinearAttentionSpec& a, int tp) {
  const double keys = static_cast<double>(a.key_heads) * a.key_dim / tp;
  const double values = static_cast<double>(a.value_heads) * a.value_dim / tp;
  const double convolved = a.step_rank > 0 ? values : 2 * keys + values;
  return {values * a.key_dim, convolved * std::max(0, a.convolution - 1)};
}

double ffn_parameters(int hidden, double width) { return 3.0 * hidden * width; }

double expert_parameters(const MoeModel& m) {
  return ffn_parameters(m.expert_input(), m.expert_width);
}

double gate_parameters(const MoeModel& m) {
  return static_cast<double>(m.hidden) * m.experts + 2.0 * m.hidden * m.expert_hidden;
}

double norm_parameters(int hidden) { return 2.0 * hidden; }

ParameterCount count_parameters(const MoeModel& m) {
  const double embedding = static_cast<double>(m.vocabulary) * m.hidden;
  const double moe_layers = m.moe_layers();
  const double all_layers = static_cast<double>(m.layers.size());
  double mixers = 0;
  double dense_ffns = 0;
  for (const LayerSpec& layer : m.layers) {
    mixers += mixer_parameters(m, layer);
    if (layer.has_dense_ffn() || m.dense_residual) ++dense_ffns;
  }
  const double everywhere =
      mixers + all_layers * norm_parameters(m.hidden) +
      moe_layers * (gate_parameters(m) + ffn_parameters(m.hidden, m.shared_width)) +
      dense_ffns * ffn_parameters(m.hidden, m.dense_width) + m.hidden;
  const double expert = moe_layers * expert_parameters(m);
  return {.total = everywhere + expert * m.experts + embedding * (m.tied_embeddings ? 1 : 2),
          .active = everywhere + expert * m.experts_per_token + embedding};
}

double active_as_published(const MoeModel& m) {
  const double embedding = static_cast<double>(m.vocabulary) * m.hidden;
  const double active = count_parameters(m).active;
  switch (m.published_counts) {
    case ActiveCounts::lm_head: return active;
    case ActiveCounts::embeddings_and_lm_head: return active + (m.tied_embeddings ? 0 : embedding);
    case ActiveCounts::layers_only: return active - embedding;
  }
  return active;
}

}  // namespace moesim
