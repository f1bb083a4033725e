// SPDX-License-Identifier: Apache-2.0
#include "hardware/choice.hpp"
#include "models/checkpoints.hpp"
#include "models/mixers/keys.hpp"
#include "models/mixers/mixers.hpp"
#include "models/model_draft.hpp"

namespace moesim {

namespace {

std::span<const Key> expert_keys() {
  static constexpr Key keys[] = {
      {"count", size, required, "routed experts of a layer"},
      {"per_token", size, required, "experts that a token chooses"},
      {"width", size, required, "width of an expert's FFN"},
      {"hidden", size_or_none, "0", "size of the input of experts; 0: the model's hidden size"},
      {"shared_width", size_or_none, "0", "width of all shared experts together"},
      {"groups", size, "1", "groups that experts are chosen by"},
      {"groups_per_token", size, "1", "groups that a token chooses from"},
      {"choice_bias", form::flag, "false",
       "a bias outside the router's scores decides which experts a token picks"}};
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
  m.choice_bias = r.flag("choice_bias");
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
       "sparse attention: own indexer, else the previous layer's choice"},
      {"compress_ratio", size_or_none, "0",
       "compressed attention: tokens of an entry; 0: the window alone"}};
  return keys;
}

LayerDraft read_layer(ConfigReader& r) {
  LayerDraft layer;
  const auto ffn = choice<Ffn>(r, "ffn", ffn_names);
  layer.moe = ffn == Ffn::moe;
  layer.ffn = ffn != Ffn::none;
  layer.linear = r.flag("linear");
  layer.indexer = r.flag("indexer");
  layer.ratio = static_cast<int>(r.integer("compress_ratio"));
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

void append_block(ConfigReader& r, std::vector<LayerDraft>& layers) {
  const auto repeat = r.integer("repeat");
  std::vector<LayerDraft> pattern;
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

}  // namespace

ModelDraft read_zoo_file(ConfigReader& r) {
  ModelDraft draft;
  MoeModel& m = draft.model;
  m.name = r.text("name");
  m.source = r.text("source");
  m.hidden = count(r, "hidden");
  m.vocabulary = count(r, "vocabulary");
  m.tied_embeddings = r.flag("tied_embeddings");
  draft.attention = read_attention(r.child("attention"));
  if (r.has("local_attention")) draft.local = read_attention(r.child("local_attention"));
  if (r.has("linear_attention")) draft.linear = read_linear_attention(r.child("linear_attention"));
  if (r.has("experts"))
    read_object(r.child("experts"), expert_keys, [&](ConfigReader& e) { read_experts(e, m); });
  m.max_positions = static_cast<int>(r.integer("max_positions"));
  if (r.has("gating_preset")) m.gating_preset = r.text("gating_preset");
  if (r.has("draft_layers")) m.draft_layers = count(r, "draft_layers");
  m.dense_width = static_cast<int>(r.integer("dense_width"));
  m.dense_residual = r.flag("dense_residual");
  for (const ConfigNode& block : r.child("layers").list())
    read_object(block, block_keys, [&](ConfigReader& b) { append_block(b, draft.layers); });
  if (r.has("published"))
    read_object(r.child("published"), published_keys,
                [&](ConfigReader& p) { read_published(p, m); });
  r.optional("precision");      // read_stored_precision()'s
  r.optional("huggingface");    // shipped_file()'s
  r.optional("checkpoints");    // read_checkpoints()'s
  r.optional("vision_config");  // engines' memory share
  return draft;
}

std::span<const Key> vision_keys() {
  static constexpr Key keys[] = {
      {"num_hidden_layers", size, unset("24, as SGLang takes"), "layers of the encoder"},
      {"hidden_size", size, required, "hidden size of the encoder"}};
  return keys;
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
      {"attention", form::object(attention_keys), required,
       "GQA; MLA with kv_lora; compressed with latent_dim"},
      {"local_attention", form::object(attention_keys), unset("the same"),
       "attention of layers with a window, where it differs"},
      {"linear_attention", form::object(linear_attention_keys), unset("no linear layers"),
       "gated delta net or state space layer, of layers with \"linear\""},
      {"experts", form::object(expert_keys), unset("a dense model"),
       "experts of layers with \"moe\""},
      {"gating_preset", form::text, unset("that of other families"),
       "preset whose statistics synthetic routing has (moesim list presets)"},
      {"draft_layers", size, unset("none"), "layers that draft tokens (MTP), besides \"layers\""},
      {"max_positions", size_or_none, "0", "tokens that a sequence may have; 0: unlimited"},
      {"dense_width", size_or_none, "0", "width of the FFN of dense layers"},
      {"dense_residual", form::flag, "false", "MoE layers have the dense FFN too (Arctic)"},
      {"layers", form::list(block), required, "blocks of layers, in order"},
      {"published", form::object(published_keys), unset("not compared"), "the authors' counts"},
      {"precision", form::object(precision_keys), unset("not said"),
       "precision of the weights as published"},
      {"vision_config", form::object(vision_keys), unset("none"),
       "vision encoder: not modelled, but SGLang keeps memory for it"},
      {"checkpoints", form::object(checkpoint_keys), unset("none is known"),
       "HuggingFace ids of weights, by the precision of experts"}};
  return keys;
}

}  // namespace moesim
