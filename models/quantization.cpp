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

// The kinds of modules that a PrecisionPlan tells apart; FFNs are the shared and the dense ones.
enum class Modules { attention, experts, ffn };
using Kinds = std::set<Modules>;

// What stands under the FFN's name in a layer, as the model's family builds it.
struct Naming {
  Kinds under_mlp;
};

// What a list of modules means by a name, a glob or a regular expression ("re:") of one.
Kinds meant_by(std::string name, const Naming& naming) {
  std::erase(name, '\\');
  const auto has = [&](std::string_view part) { return contains(name, part); };
  if (has("norm")) return {};  // post_attention_layernorm is no projection
  for (const char* other : {"vision", "visual", "audio", "mtp"}) {
    if (has(other)) return {};  // no part of the language model's layers
  }
  while (name.ends_with('*') || name.ends_with('.')) name.pop_back();
  if (has("router") || name.ends_with("gate")) return {};  // shared_expert_gate, too
  if (has("shared_expert") || has("share_expert")) return {Modules::ffn};
  if (has("experts")) return {Modules::experts};
  if (has("attn") || has("attention") || has("mixer")) return {Modules::attention};
  for (const char* block : {"mlp", "block_sparse_moe", "feed_forward", "moe", "ffn"}) {
    if (name.ends_with(std::string(".") + block)) return naming.under_mlp;
    // A projection of the FFN itself.
    if (has(std::string(block) + '.') && has("_proj")) return {Modules::ffn};
  }
  return {};
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
  Quantisation(const ConfigNode& node, const MoeModel& model, Naming naming)
      : node_(node),
        json_(node.json()),
        model_(model),
        naming_(std::move(naming)),
        method_(text_of(json_, "quant_method")) {}

  StoredPrecision read() const {
    const Scheme attention = of(Modules::attention);
    const Scheme ffn = layers_with(Modules::ffn) > 0 ? of(Modules::ffn) : attention;
    // A dense model's precision of experts is of nothing; it is that of its FFNs.
    const Scheme experts = model_.experts > 0 ? of(Modules::experts) : ffn;
    Scheme first = attention;
    for (const Scheme& scheme : {ffn, experts}) {
      if (scheme.weights != Precision::bf16) first = scheme;
    }
    return {.plan = {.experts = experts.weights,
                     .attention = attention.weights,
                     .kv_cache = kv_cache(),
                     .activations = first.activations,
                     .ffn = ffn.weights},
            .said_by = fmt::format("{}: {}", node_.file().filename().string(), name()),
            .quantised = true};
  }

 private:
  std::string name() const {
    const std::string algo = text_of(json_, "quant_algo");
    return algo.empty() ? method_ : algo;
  }

  bool means(const std::string& name, Modules modules) const {
    return meant_by(name, naming_).contains(modules);
  }

  // How many layers have such modules. Where there are shared experts, they are what FFNs go by.
  std::ptrdiff_t layers_with(Modules modules) const {
    const std::ptrdiff_t all = std::ssize(model_.layers), moe = model_.moe_layers();
    if (modules == Modules::attention) return all;
    return modules == Modules::experts || model_.shared_width > 0 ? moe : all - moe;
  }

  // Whether a list names such modules of most layers that have any.
  bool names_most(const Json* list, Modules modules) const {
    if (list == nullptr || !list->is_array()) return false;
    std::set<int> named;
    for (const Json& entry : *list) {
      if (!entry.is_string()) continue;
      const auto name = entry.get<std::string>();
      if (!means(name, modules)) continue;
      const int layer = layer_of(name);
      if (layer < 0) return true;
      named.insert(layer);
    }
    return !named.empty() && std::ssize(named) * 2 > layers_with(modules);
  }

  // The group of compressed-tensors whose targets are such modules, or all linear layers.
  const Json* group_for(const Json& groups, Modules modules) const {
    const Json* general = nullptr;
    for (const Json& group : groups) {
      const Json* targets = member(group, "targets");
      if (names_most(targets, modules)) return &group;
      const bool linear =
          targets != nullptr && targets->is_array() &&
          std::ranges::any_of(*targets, [](const Json& target) {
            return target.is_string() && contains(target.get<std::string>(), "Linear");
          });
      if (linear) general = &group;
    }
    return general;
  }

  Scheme compressed_scheme(const Json& groups, Modules modules) const {
    const Json* group = group_for(groups, modules);
    if (group == nullptr) return unconverted;
    return {compressed(member(*group, "weights"), node_),
            compressed(member(*group, "input_activations"), node_)};
  }

  // ModelOpt's mixtures: what most modules of a kind are converted to, module by module.
  Scheme mixed_scheme(const Json& layers, Modules modules) const {
    std::map<std::string, int> votes;
    for (const auto& layer : layers.items()) {
      if (means(layer.key(), modules)) ++votes[text_of(layer.value(), "quant_algo")];
    }
    if (votes.empty()) return unconverted;
    const auto most =
        std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
    return modelopt_scheme(most->first, node_);
  }

  Scheme of(Modules modules) const {
    for (const char* key :
         {"modules_to_not_convert", "ignore", "exclude_modules", "exclude", "ignored_layers"}) {
      if (names_most(member(json_, key), modules)) return unconverted;
    }
    if (const Json* groups = member(json_, "config_groups")) {
      return compressed_scheme(*groups, modules);
    }
    if (const std::string algo = text_of(json_, "quant_algo"); !algo.empty()) {
      const Json* each = member(json_, "quantized_layers");
      if (each != nullptr && algo == "mixed_precision") return mixed_scheme(*each, modules);
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
  const MoeModel& model_;
  Naming naming_;
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

// Gemma 4 has its experts beside the dense FFN of a layer; others have them in it.
Naming naming_of(const ConfigNode& config, const MoeModel& model) {
  const bool beside = member(language_part(config).json(), "enable_moe_block") != nullptr;
  if (beside || model.experts == 0) return {{Modules::ffn}};
  return {{Modules::experts, Modules::ffn}};
}

// The format that a model's name says its weights are in, as "nvidia/GLM-5-NVFP4" does.
std::string format_named(const std::string& name) {
  const std::string text = lower(name);
  for (const char* format :
       {"nvfp4", "mxfp4", "fp4", "mxfp8", "fp8", "int4", "awq", "gptq", "w4a16", "w8a8"}) {
    if (contains(text, format)) {
      std::string upper = format;
      std::ranges::transform(upper, upper.begin(),
                             [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      return upper;
    }
  }
  return "";
}

}  // namespace

std::optional<StoredPrecision> read_stored_precision(const ConfigNode& config,
                                                     const MoeModel& model) {
  const std::string file = config.file().filename().string();
  if (!is_hf_model(config)) {
    if (member(config.json(), "precision") == nullptr) return std::nullopt;
    return StoredPrecision{read_precision(config.child("precision")), file};
  }
  const std::optional<ConfigNode> quantisation = quantisation_of(config);
  if (quantisation) {
    StoredPrecision stored = Quantisation(*quantisation, model, naming_of(config, model)).read();
    // DeepSeek-V4 says the format of its experts beside that of all else; engines keep the entries
    // of its KV cache in fp8.
    const std::string experts = text_of(language_part(config).json(), "expert_dtype");
    if (experts == "fp4") stored.plan.experts = Precision::mxfp4;
    if (member(language_part(config).json(), "compress_ratios") != nullptr ||
        member(language_part(config).json(), "compress_rates") != nullptr)
      stored.plan.kv_cache = Precision::fp8;
    return stored;
  }
  StoredPrecision stored{{}, file};
  if (const std::string named = format_named(model.name); !named.empty()) {
    stored.warning = fmt::format(
        "bf16 is taken, because {} has no \"quantization_config\"; the model's name says {}: put "
        "hf_quant_config.json next to the file, or give \"precision\"",
        file, named);
  }
  return stored;
}

std::string precision_text(const PrecisionPlan& plan) {
  const std::string others = plan.ffn == plan.attention
                                 ? "other weights " + name_of(plan.attention)
                                 : fmt::format("attention {}, shared and dense FFNs {}",
                                               name_of(plan.attention), name_of(plan.ffn));
  return fmt::format("experts {}, {}, KV cache {}, activations {}", name_of(plan.experts), others,
                     name_of(plan.kv_cache), name_of(plan.activations));
}

}  // namespace moesim
