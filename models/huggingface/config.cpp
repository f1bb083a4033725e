// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/choice.hpp"
#include "models/huggingface/family.hpp"
#include "models/huggingface/layers.hpp"
#include "models/huggingface/other_keys.hpp"
#include "models/language_part.hpp"
#include "models/mixers/keys.hpp"

// A config.json, as the classes in transformers read it.

namespace moesim {

namespace {

void refuse_known(const ConfigNode& node, std::string_view name) {
  for (const HfRefusal& refusal : hf_refusals())
    if (name == refusal.model_type || name == refusal.architecture)
      node.fail(std::string(refusal.why));
}

// Engines choose a model's code by its class, which goes before a model type of another family.
const HfFamily& family_of(ConfigReader& top, ConfigReader& text) {
  std::string name;
  if (present(text, "model_type")) name = text.text("model_type");
  std::vector<std::string> classes;
  for (ConfigReader* part : {&top, &text}) {
    if (!present(*part, "architectures")) continue;
    for (const ConfigNode& architecture : part->child("architectures").list())
      classes.push_back(architecture.text());
  }
  for (const std::string& written : classes) refuse_known(text.node(), written);
  const HfFamily *by_type = nullptr, *by_class = nullptr;
  for (const HfFamily& family : hf_families()) {
    const bool typed = family.model_type == name;
    const bool written = std::ranges::find(classes, family.architecture) != classes.end();
    if (typed && written) return family;
    if (typed && by_type == nullptr) by_type = &family;
    if (written && by_class == nullptr) by_class = &family;
  }
  if (by_class != nullptr) return *by_class;
  if (by_type != nullptr) return *by_type;
  refuse_known(text.node(), name);
  if (name.empty() && !classes.empty()) name = classes.front();
  std::vector<std::string_view> known;
  for (const HfFamily& family : hf_families())
    if (std::ranges::find(known, family.model_type) == known.end())
      known.push_back(family.model_type);
  text.node().fail(
      "unknown architecture \"{}\"; describe it in the zoo's format "
      "(models/README.md), or use one of: {}",
      name, join_names(known));
}

// config.json seldom names its model: take the file's name, or its folder's. HuggingFace's cache
// has folders models--OWNER--NAME/snapshots/COMMIT.
std::string hf_name(ConfigReader& r) {
  if (present(r, "_name_or_path"))
    if (std::string name = r.text("_name_or_path"); !name.empty()) return name;
  const std::filesystem::path& file = r.node().file();
  if (file.stem() != "config") return file.stem().string();
  const std::filesystem::path folder = file.parent_path(), above = folder.parent_path();
  return (above.filename() == "snapshots" ? above.parent_path() : folder).filename().string();
}

// True if the head is the embedding. A text part in transformers has no head of its own: the whole
// model's file decides. Cohere's, ERNIE's and Gemma 4's classes tie where a file is silent.
bool tied_embeddings(ConfigReader& top, ConfigReader& text, std::string_view model_type) {
  bool tied =
      model_type == "cohere2_moe" || model_type == "ernie4_5_moe" || model_type == "gemma4_text";
  std::array<ConfigReader*, 2> parts{&top, &text};  // the last one decides
  if (model_type.ends_with("_text")) std::swap(parts[0], parts[1]);
  for (ConfigReader* part : parts)
    if (present(*part, "tie_word_embeddings")) tied = part->flag("tie_word_embeddings");
  return tied;
}

// Derives it as vLLM does (vllm/config/model.py): a scaling of the rotary embedding lengthens it,
// where the file does not count it in already.
int hf_max_positions(ConfigReader& r) {
  // Names of vLLM's list (config/model.py); the first that a file has counts.
  int longest = 0;
  for (const char* const key :
       {"max_seq_len", "max_position_embeddings", "n_positions", "model_max_length", "seq_length",
        "max_sequence_length", "max_seq_length", "seq_len"})
    if (longest == 0) longest = optional(r, key, 0);
  for (const char* const where : {"rope_scaling", "rope_parameters"}) {
    if (!present(r, where)) continue;
    const ConfigNode node = r.child(where);
    const Json& scaling = node.json();
    const auto number = [&](const char* name) {
      const auto found = scaling.find(name);
      return found != scaling.end() && found->is_number() ? found->get<double>() : 0;
    };
    const auto name = [&](const char* key) {
      const auto found = scaling.find(key);
      return found != scaling.end() && found->is_string() ? found->get<std::string>() : "";
    };
    const std::string type = scaling.contains("rope_type") ? name("rope_type") : name("type");
    // The files of these give the length that they were trained for (the same place in vLLM).
    if (type == "llama3" || type == "su" || type == "longrope" || number("factor") <= 0) continue;
    const double original = number("original_max_position_embeddings");
    const double scaled = number("factor") * (original > 0 ? original : longest);
    if (scaled < 1e9) longest = static_cast<int>(scaled);
    break;  // where a file has both keys, they say the same
  }
  return longest;
}

// Families whose experts are picked by scores and a bias, which router logits do not show
// (e_score_correction_bias, expert_bias): transformers' modeling files. Others say it by a key.
bool picks_with_bias(std::string_view model_type) {
  static constexpr std::array<std::string_view, 24> families{
      "afmoe",         "axk1",         "axk2",          "bailing_moe_v2", "bailing_hybrid",
      "deepseek_v3",   "deepseek_v32", "deepseek_v4",   "dots1",          "ernie4_5_moe",
      "exaone_moe",    "glm4_moe",     "glm4_moe_lite", "glm4v_moe_text", "glm_moe_dsa",
      "kimi_k2",       "kimi_linear",  "lfm2_moe",      "longcat_flash",  "mimo_v2",
      "mimo_v2_flash", "minimax_m2",   "nemotron_h",    "solar_open"};
  return std::ranges::find(families, model_type) != families.end();
}

// A dense model in the class of one with experts: what the file says of experts is then of nothing.
bool has_no_experts(const HfLayout& layout, ConfigReader& r) {
  if (layout.experts.when != HfNumber::When::needed) return false;
  const auto is_none = [&](std::string_view key) {
    if (key.empty() || !r.has(key)) return false;
    const Json& number = r.node().json().at(std::string(key));
    return number.is_null() || number == 0;
  };
  if (!is_none(layout.experts.key) && !is_none(layout.experts.other)) return false;
  for (const HfNumber& number : {layout.experts, layout.per_token, layout.width, layout.shared,
                                 layout.shared_width, layout.moe.first, layout.moe.step})
    for (const std::string_view key : {number.key, number.other})
      if (!key.empty()) r.optional(key);
  for (const std::string_view key : {layout.groups, std::string_view("topk_group")})
    if (!key.empty()) r.optional(key);
  return true;
}

void read_experts_by(const HfLayout& layout, ConfigReader& r, ModelDraft& draft) {
  MoeModel& m = draft.model;
  m.experts = has_no_experts(layout, r) ? 0 : read(r, layout.experts);
  if (m.experts == 0) return;
  m.experts_per_token = read(r, layout.per_token);
  m.expert_width = read(r, layout.width);
  m.expert_hidden = read(r, layout.expert_hidden);
  HfNumber width = layout.shared_width;
  if (width.usual == as_experts) width.usual = m.expert_width;
  m.shared_width = read(r, layout.shared) * read(r, width);
  if (!layout.groups.empty()) {
    m.expert_groups = std::max(1, optional(r, layout.groups, 1));
    m.groups_per_token = std::max(1, optional(r, "topk_group", 1));
  }
  // A list of the layers' FFNs, which is read later, needs no first layer.
  const bool listed = present(r, "mlp_layer_types") && !r.has(layout.moe.first.key);
  const int first = listed ? 0 : read(r, layout.moe.first);
  const int step = std::max(1, read(r, layout.moe.step));
  for_layers(draft, [&](int i, LayerDraft& layer) {
    layer.moe = i >= first && (i + layout.moe.ahead) % step == 0;
  });
}

void read_by(const HfLayout& layout, ConfigReader& r, ModelDraft& draft) {
  if (layout.attention != nullptr) draft.attention = layout.attention(r, draft.model.hidden);
  read_experts_by(layout, r, draft);
  draft.model.dense_width = read(r, layout.dense_width);
  if (layout.windows != nullptr) layout.windows(r, draft);
  if (layout.exceptions != nullptr) layout.exceptions(r, draft);
  if (draft.model.experts == 0)
    for_layers(draft, [](int, LayerDraft& layer) { layer.moe = false; });
}

}  // namespace

std::string_view hf_model_type(const ConfigNode& file) {
  ConfigReader top(file);
  ConfigReader r(language_part(file));
  return family_of(top, r).model_type;
}

int read(ConfigReader& r, const HfNumber& number) {
  using When = HfNumber::When;
  switch (number.when) {
    case When::always: break;
    case When::needed:
      return count(r, number.other.empty() || present(r, number.key) ? number.key : number.other);
    case When::whole: return static_cast<int>(r.integer(number.key, whole));
    case When::nullable: return nullable(r, number.key);
    case When::usually: return optional(r, number.key, number.usual);
  }
  return number.usual;
}

ModelDraft read_hf_config(const ConfigNode& node) {
  ConfigReader top(node);
  ConfigReader r(language_part(node));
  const HfFamily& family = family_of(top, r);
  ModelDraft draft;
  MoeModel& m = draft.model;
  m.name = hf_name(top);
  m.source = fmt::format("HuggingFace config.json ({})", family.model_type);
  m.gating_preset = family.gating_preset;
  // DBRX has names of its own.
  m.hidden = count(r, present(r, "d_model") ? "d_model" : "hidden_size");
  m.vocabulary = count(r, "vocab_size");
  m.tied_embeddings = tied_embeddings(top, r, family.model_type);
  const char* const layers = present(r, "n_layers")            ? "n_layers"
                             : present(r, "num_hidden_layers") ? "num_hidden_layers"
                                                               : "num_layers";
  // The list of Nemotron's blocks counts where it is given.
  if (!present(r, "layers_block_type")) draft.layers.resize(at(r.integer(layers, {1, 10'000})));
  m.max_positions = hf_max_positions(r);
  for (const char* const key :
       {"num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"})
    m.draft_layers = std::max(m.draft_layers, optional(r, key, 0));
  m.choice_bias = picks_with_bias(family.model_type) ||
                  (present(r, "topk_method") && r.text("topk_method") == "noaux_tc");
  for (const char* const key : {"use_gate_bias", "use_routing_bias", "use_moe_router_bias",
                                "router_bias", "moe_router_enable_expert_bias"})
    m.choice_bias = m.choice_bias || (present(r, key) && r.flag(key));
  read_by(*family.layout, r, draft);
  read_layer_types(r, draft);
  read_mlp_types(r, draft);
  // Many files give a width for dense layers that the model has none of.
  if (draft.moe_layers() == static_cast<int>(draft.layers.size()) && !m.dense_residual)
    m.dense_width = 0;
  m.unknown_keys = unknown_hf_keys(r, family.model_type);
  return draft;
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

}  // namespace moesim
