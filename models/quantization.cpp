// SPDX-License-Identifier: Apache-2.0
#include "models/quantization.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>

#include "models/language_part.hpp"

namespace moesim {

namespace {

// What one kind of module is stored in, and what its weights are multiplied with.
struct Scheme {
  Precision weights, activations;
};
constexpr Scheme unconverted{Precision::bf16, Precision::bf16};

std::string name_of(Precision precision) {
  return std::string(precision_names[static_cast<std::size_t>(precision)]);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

const Json* member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && !found->is_null() ? &*found : nullptr;
}

std::string text_of(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_string() ? lower(value->get<std::string>()) : "";
}

int whole_of(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_number_integer() ? value->get<int>() : 0;
}

[[noreturn]] void not_known(const ConfigNode& node, const std::string& what) {
  node.fail(fmt::format("the quantisation {} is not known; give \"precision\" in the experiment",
                        what.empty() ? "that it holds" : what));
}

// ---- which modules are meant ----

enum class Modules { none, attention, experts };

// What a list of modules means by a name, a glob or a regular expression ("re:") of one.
Modules meant_by(std::string name) {
  std::erase(name, '\\');
  if (contains(name, "norm")) return Modules::none;  // post_attention_layernorm is no projection
  if (contains(name, "attn") || contains(name, "attention")) return Modules::attention;
  if (contains(name, "shared_expert")) return Modules::none;
  if (contains(name, "experts")) return Modules::experts;
  // A whole MoE block, its experts with it.
  while (name.ends_with('*') || name.ends_with('.')) name.pop_back();
  for (const char* block : {".mlp", ".block_sparse_moe", ".feed_forward", ".moe", ".ffn"}) {
    if (name.ends_with(block)) return Modules::experts;
  }
  return Modules::none;
}

// The layer that a name is of, or -1 where it is of all.
int layer_of(const std::string& name) {
  constexpr std::string_view before = "layers.";
  const auto place = name.find(before);
  int layer = -1;
  if (place == name.npos) return layer;
  std::from_chars(name.data() + place + before.size(), name.data() + name.size(), layer);
  return layer;
}

// Whether a list names such modules of most layers.
bool names_most(const Json* list, Modules modules, int layers) {
  if (list == nullptr || !list->is_array()) return false;
  std::set<int> named;
  for (const Json& entry : *list) {
    if (!entry.is_string()) continue;
    const auto name = entry.get<std::string>();
    if (meant_by(name) != modules) continue;
    const int layer = layer_of(name);
    if (layer < 0) return true;
    named.insert(layer);
  }
  return std::ssize(named) * 2 > layers;
}

// ---- the quantisers' ways to say it ----

// NVIDIA ModelOpt's names, as vLLM and TensorRT-LLM read them.
Scheme modelopt_scheme(const std::string& algo, const ConfigNode& node) {
  struct Row {
    std::string_view name;
    Scheme scheme;
  };
  static constexpr Row rows[] = {{"nvfp4", {Precision::nvfp4, Precision::nvfp4}},
                                 {"nvfp4_awq", {Precision::nvfp4, Precision::nvfp4}},
                                 {"w4a16_nvfp4", {Precision::nvfp4, Precision::bf16}},
                                 {"mxfp4", {Precision::mxfp4, Precision::mxfp4}},
                                 {"w4a8_mxfp4_fp8", {Precision::mxfp4, Precision::fp8}},
                                 {"w4a16_mxfp4", {Precision::mxfp4, Precision::bf16}},
                                 {"w4a8_awq", {Precision::int4, Precision::fp8}},
                                 {"w4a16_awq", {Precision::int4, Precision::bf16}},
                                 {"fp8", {Precision::fp8, Precision::fp8}},
                                 {"fp8_pb_wo", {Precision::fp8_block, Precision::fp8_block}},
                                 {"fp8_block_scales", {Precision::fp8_block, Precision::fp8_block}},
                                 // Scales of one byte for 32 values: blocks of another shape.
                                 {"mxfp8", {Precision::fp8_block, Precision::fp8_block}}};
  const auto* found = std::ranges::find(rows, algo, &Row::name);
  if (found == std::end(rows)) not_known(node, "\"" + algo + "\"");
  return found->scheme;
}

// A group of compressed-tensors: {"num_bits", "type", "strategy", "group_size"}.
Precision compressed(const Json* tensors, const ConfigNode& node) {
  if (tensors == nullptr) return Precision::bf16;
  const int bits = whole_of(*tensors, "num_bits");
  const std::string type = text_of(*tensors, "type");
  if (bits == 8 && type == "float") {
    return text_of(*tensors, "strategy") == "block" ? Precision::fp8_block : Precision::fp8;
  }
  if (bits == 4 && type == "int") return Precision::int4;
  if (bits == 4 && type == "float") {
    return whole_of(*tensors, "group_size") == 16 ? Precision::nvfp4 : Precision::mxfp4;
  }
  not_known(node, fmt::format("{} {} bits", type, bits));
}

// The group whose targets are such modules, or all linear layers.
const Json* group_for(const Json& groups, Modules modules, int layers) {
  const Json* general = nullptr;
  for (const Json& group : groups) {
    const Json* targets = member(group, "targets");
    if (names_most(targets, modules, layers)) return &group;
    const bool linear =
        targets != nullptr && targets->is_array() &&
        std::ranges::any_of(*targets, [](const Json& target) {
          return target.is_string() && contains(target.get<std::string>(), "Linear");
        });
    if (linear) general = &group;
  }
  return general;
}

Scheme compressed_scheme(const Json& groups, Modules modules, int layers, const ConfigNode& node) {
  const Json* group = group_for(groups, modules, layers);
  if (group == nullptr) return unconverted;
  return {compressed(member(*group, "weights"), node),
          compressed(member(*group, "input_activations"), node)};
}

// ModelOpt's mixtures: what most modules of a kind are converted to, module by module.
Scheme mixed_scheme(const Json& layers_of, Modules modules, const ConfigNode& node) {
  std::map<std::string, int> votes;
  for (const auto& layer : layers_of.items()) {
    if (meant_by(layer.key()) == modules) ++votes[text_of(layer.value(), "quant_algo")];
  }
  if (votes.empty()) return unconverted;
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
  return modelopt_scheme(most->first, node);
}

// AMD Quark: {"global_quant_config": {"weight": {"dtype"}, "input_tensors": {"dtype"}}}.
Precision quark(const Json* tensor, const ConfigNode& node) {
  if (tensor == nullptr) return Precision::bf16;
  const std::string type = text_of(*tensor, "dtype");
  if (type == "fp4") return Precision::mxfp4;
  if (type.starts_with("fp8")) return Precision::fp8;
  if (type == "int4" || type == "uint4") return Precision::int4;
  not_known(node, "\"" + type + "\"");
}

class Quantisation {
 public:
  Quantisation(const ConfigNode& node, int layers)
      : node_(node), json_(node.json()), layers_(layers), method_(text_of(json_, "quant_method")) {}

  StoredPrecision read() const {
    const Scheme experts = of(Modules::experts), attention = of(Modules::attention);
    const bool none = experts.weights == Precision::bf16;
    return {.plan = {.experts = experts.weights,
                     .attention = attention.weights,
                     .kv_cache = kv_cache(),
                     .activations = none ? attention.activations : experts.activations},
            .said_by = fmt::format("{}: {}", node_.file().filename().string(), name()),
            .quantised = true};
  }

 private:
  std::string name() const {
    const std::string algo = text_of(json_, "quant_algo");
    return algo.empty() ? method_ : algo;
  }

  Scheme of(Modules modules) const {
    for (const char* key :
         {"modules_to_not_convert", "ignore", "exclude_modules", "exclude", "ignored_layers"}) {
      if (names_most(member(json_, key), modules, layers_)) return unconverted;
    }
    if (const Json* groups = member(json_, "config_groups")) {
      return compressed_scheme(*groups, modules, layers_, node_);
    }
    if (const std::string algo = text_of(json_, "quant_algo"); !algo.empty()) {
      const Json* each = member(json_, "quantized_layers");
      if (each != nullptr && algo == "mixed_precision") return mixed_scheme(*each, modules, node_);
      return modelopt_scheme(algo, node_);
    }
    return by_method(modules);
  }

  Scheme by_method(Modules modules) const {
    if (method_ == "fp8" || method_ == "fbgemm_fp8") {
      const bool blocks = member(json_, "weight_block_size") != nullptr;
      const Precision stored = blocks ? Precision::fp8_block : Precision::fp8;
      return {stored, stored};
    }
    // gpt-oss: its experts alone, multiplied in bf16.
    if (method_ == "mxfp4") {
      return modules == Modules::experts ? Scheme{Precision::mxfp4, Precision::bf16} : unconverted;
    }
    const bool grouped = method_.starts_with("gptq") || method_.starts_with("awq");
    if (grouped && whole_of(json_, "bits") == 4) return {Precision::int4, Precision::bf16};
    const Json* global = member(json_, "global_quant_config");
    if (method_ == "quark" && global != nullptr) {
      return {quark(member(*global, "weight"), node_),
              quark(member(*global, "input_tensors"), node_)};
    }
    not_known(node_, method_.empty() ? "" : "\"" + method_ + "\"");
  }

  // Engines keep the KV cache as the checkpoint has scales for it.
  Precision kv_cache() const {
    const Json* scheme = member(json_, "kv_cache_scheme");
    const bool eight = text_of(json_, "kv_cache_quant_algo") == "fp8" ||
                       (scheme != nullptr && whole_of(*scheme, "num_bits") == 8);
    return eight ? Precision::fp8 : Precision::bf16;
  }

  const ConfigNode& node_;
  const Json& json_;
  int layers_;
  std::string method_;
};

// Where a HuggingFace model says how it is quantised, or nothing.
std::optional<ConfigNode> quantisation_of(const ConfigNode& model) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    for (const ConfigNode& node : {model, language_part(model)})
      if (member(node.json(), key) != nullptr) return node.child(key);
  }
  const std::filesystem::path beside = model.file().parent_path() / "hf_quant_config.json";
  if (!model.pointer().empty() || !std::filesystem::exists(beside)) return std::nullopt;
  const ConfigNode file = ConfigNode::from_file(beside);
  if (member(file.json(), "quantization") == nullptr) return std::nullopt;
  return file.child("quantization");
}

int layers_of(const ConfigNode& model) {
  return std::max(1, whole_of(language_part(model).json(), "num_hidden_layers"));
}

}  // namespace

std::optional<StoredPrecision> read_stored_precision(const ConfigNode& model) {
  if (!is_hf_model(model)) {
    if (member(model.json(), "precision") == nullptr) return std::nullopt;
    return StoredPrecision{read_precision(model.child("precision")),
                           model.file().filename().string()};
  }
  const std::optional<ConfigNode> quantisation = quantisation_of(model);
  if (!quantisation) return StoredPrecision{{}, model.file().filename().string()};
  return Quantisation(*quantisation, layers_of(model)).read();
}

std::string precision_text(const PrecisionPlan& plan) {
  return fmt::format("experts {}, other weights {}, KV cache {}, activations {}",
                     name_of(plan.experts), name_of(plan.attention), name_of(plan.kv_cache),
                     name_of(plan.activations));
}

}  // namespace moesim
