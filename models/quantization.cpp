// SPDX-License-Identifier: Apache-2.0
#include "models/quantization.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <compare>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "hardware/quoting.hpp"
#include "models/language_part.hpp"
#include "models/quantization/name_list.hpp"
#include "models/quantization/weight_modules.hpp"

namespace moesim {

namespace {

// Precision that one kind of module is stored in, and that its weights are multiplied with.
struct Scheme {
  Precision weights, activations;
  auto operator<=>(const Scheme&) const = default;
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

// ---- the quantisers' ways to say it ----

// NVIDIA ModelOpt's names, as vLLM and TensorRT-LLM read them.
Scheme modelopt_scheme(const std::string& algo, const ConfigNode& node) {
  struct Row {
    std::string_view name;
    Scheme scheme;
  };
  static constexpr Row rows[] = {{"nvfp4", {Precision::nvfp4, Precision::nvfp4}},
                                 {"nvfp4_awq", {Precision::nvfp4, Precision::nvfp4}},
                                 {"nvfp4_svdquant", {Precision::nvfp4, Precision::nvfp4}},
                                 {"w4a8_nvfp4_fp8", {Precision::nvfp4, Precision::fp8}},
                                 {"w4a16_nvfp4", {Precision::nvfp4, Precision::bf16}},
                                 {"mxfp4", {Precision::mxfp4, Precision::mxfp4}},
                                 {"w4a8_mxfp4_fp8", {Precision::mxfp4, Precision::fp8}},
                                 {"w4a16_mxfp4", {Precision::mxfp4, Precision::bf16}},
                                 {"w4a8_awq", {Precision::int4, Precision::fp8}},
                                 {"w4a16_awq", {Precision::int4, Precision::bf16}},
                                 {"w4a16", {Precision::int4, Precision::bf16}},
                                 {"w8a16", {Precision::int8, Precision::bf16}},
                                 {"int8_sq", {Precision::int8, Precision::int8}},
                                 {"fp8", {Precision::fp8, Precision::fp8}},
                                 {"fp8_per_channel_per_token", {Precision::fp8, Precision::fp8}},
                                 {"fp8_pb_wo", {Precision::fp8_block, Precision::fp8_block}},
                                 {"fp8_block_scales", {Precision::fp8_block, Precision::fp8_block}},
                                 // Scales of one byte for 32 values: blocks of another shape.
                                 {"mxfp8", {Precision::fp8_block, Precision::fp8_block}}};
  const auto* found = std::ranges::find(rows, algo, &Row::name);
  if (found == std::end(rows)) not_known(node, "\"" + algo + "\"");
  return found->scheme;
}

// The tensors of a group of compressed-tensors: {"num_bits", "type", "strategy", "group_size"}.
Precision compressed(const Json* tensors, const ConfigNode& node) {
  if (tensors == nullptr) return Precision::bf16;
  const int bits = whole_of(*tensors, "num_bits"), group = whole_of(*tensors, "group_size");
  const std::string type = text_of(*tensors, "type"), strategy = text_of(*tensors, "strategy");
  if (bits == 16) return Precision::bf16;
  if (bits == 8 && type == "float") {
    // MXFP8 has scales of one byte for 32 values: blocks of another shape.
    return strategy == "block" || group == 32 ? Precision::fp8_block : Precision::fp8;
  }
  if (bits == 8 && type == "int") return Precision::int8;
  if (bits == 4 && type == "int") return Precision::int4;
  if (bits == 4 && type == "float") return group == 32 ? Precision::mxfp4 : Precision::nvfp4;
  not_known(node, fmt::format("{} {} bits", type, bits));
}

Scheme compressed_scheme(const Json& group, const ConfigNode& node) {
  return {compressed(member(group, "weights"), node),
          compressed(member(group, "input_activations"), node)};
}

// A tensor of AMD Quark: {"dtype", "qscheme", "group_size"}, or a list of two that are scaled in
// turn, of which the narrower is what is stored.
Precision quark(const Json* tensor, const ConfigNode& node) {
  if (tensor == nullptr) return Precision::bf16;
  if (tensor->is_array()) {
    Precision narrowest = Precision::bf16;
    for (const Json& one : *tensor)
      if (const Precision here = quark(&one, node);
          bytes_per_element(here) < bytes_per_element(narrowest))
        narrowest = here;
    return narrowest;
  }
  const std::string type = text_of(*tensor, "dtype");
  if (type == "fp4")
    return whole_of(*tensor, "group_size") == 16 ? Precision::nvfp4 : Precision::mxfp4;
  if (type.starts_with("fp8"))
    return text_of(*tensor, "qscheme") == "per_block" ? Precision::fp8_block : Precision::fp8;
  if (type == "int4" || type == "uint4") return Precision::int4;
  if (type == "int8" || type == "uint8") return Precision::int8;
  if (type.empty() || type == "bfloat16" || type == "float16") return Precision::bf16;
  not_known(node, "\"" + type + "\"");
}

Scheme quark_scheme(const Json& config, const ConfigNode& node) {
  return {quark(member(config, "weight"), node), quark(member(config, "input_tensors"), node)};
}

// GPTQ's and AWQ's whole numbers, which engines multiply in bf16.
Scheme whole_numbers(int bits, const ConfigNode& node) {
  if (bits == 4) return {Precision::int4, Precision::bf16};
  if (bits == 8) return {Precision::int8, Precision::bf16};
  if (bits >= 16) return unconverted;
  not_known(node, fmt::format("to {} bits", bits));
}

// ---- which module is converted to what ----

std::vector<std::string> texts_in(const Json* list) {
  std::vector<std::string> texts;
  if (list == nullptr) return texts;
  if (list->is_string()) texts.push_back(list->get<std::string>());
  if (!list->is_array()) return texts;
  for (const Json& entry : *list)
    for (const std::string& text : texts_in(&entry)) texts.push_back(text);
  return texts;
}

// Keys of an object in the order of its file, where the first that fits decides; sorted ones where
// the file cannot be read again.
std::vector<std::string> keys_in_order(const ConfigNode& object) {
  std::vector<std::string> keys;
  for (const auto& entry : object.json().items()) keys.push_back(entry.key());
  if (keys.size() < 2) return keys;
  using Ordered = nlohmann::ordered_json;
  std::ifstream file(object.file());
  const Ordered whole = Ordered::parse(file, nullptr, false);
  const Ordered::json_pointer place(object.pointer());
  if (whole.is_discarded() || !whole.contains(place)) return keys;
  std::vector<std::string> ordered;
  for (const auto& entry : whole.at(place).items()) ordered.push_back(entry.key());
  return std::ranges::is_permutation(keys, ordered) ? ordered : keys;
}

// Rules of a file on modules, in the order in which they count.
struct Rules {
  std::vector<NameList> left_out;  // not converted
  std::optional<NameList> only;    // what it does not name is not converted
  std::optional<NameList> named;   // the first that fits has ...
  std::vector<Scheme> schemes;     // ... the scheme of this place
  Scheme otherwise = unconverted;
  bool experts_alone = false;  // else not converted (gpt-oss)

  Scheme of(const WeightModule& module) {
    // Each list sees each module, so that it knows which entries are of none.
    bool out = experts_alone && module.part != WeightPart::experts;
    for (NameList& list : left_out) out = list.names(module) || out;
    if (only && !only->names(module)) out = true;
    const auto place = named ? named->first(module) : std::nullopt;
    if (out) return unconverted;
    return place ? schemes[*place] : otherwise;
  }

  void for_each_list(const std::function<void(const NameList&)>& take) const {
    for (const NameList& list : left_out) take(list);
    if (only) take(*only);
    if (named) take(*named);
  }
};

// Reads the rules of one quantisation.
class RuleReader {
 public:
  RuleReader(const ConfigNode& node, std::vector<std::string> prefixes)
      : node_(node),
        json_(node.json()),
        prefixes_(std::move(prefixes)),
        method_(text_of(json_, "quant_method")),
        algo_(text_of(json_, "quant_algo")) {}

  Rules read() {
    if (const Json* sparse = member(json_, "sparsity_config");
        (sparse != nullptr && !text_of(*sparse, "format").empty() &&
         text_of(*sparse, "format") != "dense") ||
        text_of(json_, "format") == "marlin-24")
      not_known(node_, "of sparse weights (sparsity_config)");
    leave_out();
    if (const Json* layers = member(json_, "quantized_layers");
        layers != nullptr && algo_ == "mixed_precision") {
      each_layer(*layers);
    } else if (const Json* groups = member(json_, "config_groups");
               groups != nullptr && groups->is_object()) {
      each_group();
    } else if (!algo_.empty()) {
      rules_.otherwise = modelopt_scheme(algo_, node_);
    } else {
      by_method();
    }
    return std::move(rules_);
  }

 private:
  bool is_modelopt() const { return !algo_.empty() || method_.starts_with("modelopt"); }

  NameList list(const ConfigNode& node, const std::vector<std::string>& entries,
                Reading reading) const {
    return {node, entries, reading, prefixes_};
  }

  void leave_out() {
    const Reading reading = is_modelopt()                     ? Reading::part
                            : method_ == "compressed-tensors" ? Reading::exact
                            : method_ == "quark"              ? Reading::wildcard
                            : method_.starts_with("awq")      ? Reading::substring
                                                              : Reading::part;
    for (const char* key : {"modules_to_not_convert", "ignore", "exclude_modules", "exclude",
                            "ignored_layers", "llm_int8_skip_modules"}) {
      if (const Json* entries = member(json_, key))
        rules_.left_out.push_back(list(node_.child(key), texts_in(entries), reading));
    }
  }

  // ModelOpt's mixtures.
  void each_layer(const Json& layers) {
    std::vector<std::string> names;
    for (const auto& layer : layers.items()) {
      names.push_back(layer.key());
      rules_.schemes.push_back(modelopt_scheme(text_of(layer.value(), "quant_algo"), node_));
    }
    rules_.named = list(node_, names, Reading::part);
  }

  // Reads groups of compressed-tensors: targets are names of modules, or "Linear" for all others.
  // ModelOpt's first files name none, and mean all.
  void each_group() {
    const ConfigNode groups = node_.child("config_groups");
    std::vector<std::string> names;
    for (const std::string& key : keys_in_order(groups)) {
      const Json& group = groups.json().at(key);
      if (!group.is_object()) not_known(node_, "of config_groups/" + key);
      const Scheme scheme = compressed_scheme(group, node_);
      if (member(group, "targets") == nullptr) rules_.otherwise = scheme;
      for (const std::string& target : texts_in(member(group, "targets"))) {
        if (target == "Linear") {
          rules_.otherwise = scheme;
          continue;
        }
        names.push_back(target);
        rules_.schemes.push_back(scheme);
      }
    }
    rules_.named = list(groups, names, is_modelopt() ? Reading::part : Reading::exact);
  }

  void by_method() {
    if (method_ == "fp8" || method_ == "fbgemm_fp8") {
      const bool blocks = member(json_, "weight_block_size") != nullptr;
      const Precision stored = blocks ? Precision::fp8_block : Precision::fp8;
      rules_.otherwise = {stored, stored};
    } else if (method_ == "mxfp4") {  // multiplied in bf16
      rules_.experts_alone = true;
      rules_.otherwise = {Precision::mxfp4, Precision::bf16};
    } else if (method_.starts_with("awq")) {
      const int bits = whole_of(json_, "bits");
      rules_.otherwise = whole_numbers(bits > 0 ? bits : whole_of(json_, "w_bit"), node_);
    } else if (method_.starts_with("gptq")) {
      gptq();
    } else if (method_.ends_with("auto-round")) {
      auto_round();
    } else if (method_ == "bitsandbytes" && is_true("load_in_4bit")) {
      rules_.otherwise = {Precision::int4, Precision::bf16};
    } else if (method_ == "bitsandbytes" && is_true("load_in_8bit")) {
      rules_.otherwise = {Precision::int8, Precision::bf16};
    } else if (const Json* global = member(json_, "global_quant_config");
               method_ == "quark" && global != nullptr) {
      quark_layers();
      rules_.otherwise = quark_scheme(*global, node_);
    } else {
      not_known(node_, method_.empty() ? "" : "\"" + method_ + "\"");
    }
  }

  bool is_true(const char* key) const {
    const Json* value = member(json_, key);
    return value != nullptr && *value == true;
  }

  // "-:" leaves modules out, "+:" or nothing gives them other bits (GPTQModel's "dynamic").
  void gptq() {
    const int bits = whole_of(json_, "bits");
    rules_.otherwise = whole_numbers(bits, node_);
    if (member(json_, "dynamic") != nullptr && json_.at("dynamic").is_object()) {
      const ConfigNode dynamic = node_.child("dynamic");
      const std::vector<std::string> keys = keys_in_order(dynamic);
      for (const std::string& key : keys) {
        const int own = whole_of(dynamic.json().at(key), "bits");
        rules_.schemes.push_back(
            key.starts_with("-:") ? unconverted : whole_numbers(own > 0 ? own : bits, node_));
      }
      rules_.named = list(dynamic, keys, Reading::regex);
    }
    if (const Json* in_block = member(json_, "modules_in_block_to_quantize");
        in_block != nullptr && !in_block->empty())
      rules_.only =
          list(node_.child("modules_in_block_to_quantize"), texts_in(in_block), Reading::block);
  }

  // "extra_config" gives modules other bits, by their names or by regular expressions that are
  // searched in them. Blocks that are named leave others as they are.
  void auto_round() {
    const std::string type = text_of(json_, "data_type");
    if (!type.empty() && type != "int") not_known(node_, "\"" + type + "\"");
    rules_.otherwise = whole_numbers(whole_of(json_, "bits"), node_);
    for (const char* key : {"block_name_to_quantize", "to_quant_block_names"}) {
      std::vector<std::string> blocks;
      for (const std::string& text : texts_in(member(json_, key)))
        for (std::size_t at = 0; at < text.size();) {
          const std::size_t comma = std::min(text.find(',', at), text.size());
          blocks.push_back(text.substr(at, comma - at));
          at = comma + 1;
        }
      // "model.layers" is all of them.
      const auto is_layer = [](const std::string& name) {
        return !name.empty() && std::isdigit(static_cast<unsigned char>(name.back())) != 0;
      };
      if (!blocks.empty() && std::ranges::all_of(blocks, is_layer))
        rules_.only = list(node_.child(key), blocks, Reading::part);
    }
    if (const Json* given = member(json_, "extra_config"); given == nullptr || !given->is_object())
      return;
    const ConfigNode extra = node_.child("extra_config");
    std::vector<std::string> names;
    for (const std::string& key : keys_in_order(extra)) {
      const Json& module = extra.json().at(key);
      const bool is_regex = key.find_first_of("*+?^$()[]{}|\\") != key.npos;
      names.push_back(is_regex ? ".*(?:" + key + ")" : key);
      rules_.schemes.push_back(member(module, "bits") == nullptr
                                   ? rules_.otherwise
                                   : whole_numbers(whole_of(module, "bits"), node_));
    }
    rules_.named = list(extra, names, Reading::part);
  }

  void quark_layers() {
    if (const Json* types = member(json_, "layer_type_quant_config"); types && !types->empty())
      not_known(node_, "of layer_type_quant_config");
    if (const Json* layers = member(json_, "layer_quant_config");
        layers != nullptr && layers->is_object()) {
      const ConfigNode node = node_.child("layer_quant_config");
      const std::vector<std::string> keys = keys_in_order(node);
      for (const std::string& key : keys)
        rules_.schemes.push_back(quark_scheme(layers->at(key), node_));
      rules_.named = list(node, keys, Reading::wildcard);
    }
  }

  const ConfigNode& node_;
  const Json& json_;
  std::vector<std::string> prefixes_;
  std::string method_, algo_;
  Rules rules_;
};

// The prefixes of a model, first the one that the file's own names have.
std::vector<std::string> prefixes_in_use(const ConfigNode& file, const Json& quantisation) {
  std::vector<std::string> prefixes = layer_prefixes(file);
  std::string text = quantisation.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::erase(text, '\\');
  const auto used = std::ranges::find_if(prefixes, [&](const std::string& one) {
    for (std::size_t at = text.find(one); at != text.npos; at = text.find(one, at + 1))
      if (std::string_view("\":^*)").find(text[at - 1]) != std::string_view::npos) return true;
    return false;
  });
  if (used != prefixes.end()) std::rotate(prefixes.begin(), used, used + 1);
  return prefixes;
}

// True if an entry of a list looks as if it meant linear modules of the language model's layers.
bool seems_linear(const std::string& entry, std::size_t layers) {
  std::string name = entry;
  std::erase(name, '\\');
  const auto has = [&](std::string_view part) { return contains(name, part); };
  for (const char* other : {"norm", "vision", "visual", "audio", "mtp", "router", "embed", "rotary",
                            "A_log", "latent_proj", "lm_head", "projector", "conv1d", "bias"})
    if (has(other)) return false;
  while (!name.empty() && std::string_view("*.$").find(name.back()) != std::string_view::npos)
    name.pop_back();
  if (name.ends_with("gate") || has("merge")) return false;
  const std::size_t place = name.find("layers.");
  if (place != name.npos && std::strtoul(name.c_str() + place + 7, nullptr, 10) >= layers)
    return false;
  for (const char* part :
       {"attn", "attention", "mlp", "expert", "ffn", "feed_forward", "mixer", "moe", "_proj"})
    if (has(part)) return true;
  return false;
}

// Tally of how a part of the model is stored.
struct Tally {
  std::map<Scheme, double> parameters;

  bool converts() const {
    return std::ranges::any_of(parameters,
                               [](const auto& entry) { return entry.first != unconverted; });
  }
  PrecisionShares shares() const {
    PrecisionShares shares{};
    double all = 0;
    for (const auto& [scheme, here] : parameters) all += here;
    for (const auto& [scheme, here] : parameters)
      shares[static_cast<std::size_t>(scheme.weights)] += here / all;
    return shares;
  }
  // Scheme of the precision that most of it is in, and what most is multiplied with.
  Scheme most() const {
    if (parameters.empty()) return unconverted;
    const Precision weights = most_of(shares());
    Scheme found{weights, weights};
    double largest = -1;
    for (const auto& [scheme, here] : parameters)
      if (scheme.weights == weights && here > largest) {
        largest = here;
        found = scheme;
      }
    return found;
  }
};

// Zeros where one precision is all.
PrecisionShares shares_of(const Tally& tally) {
  const PrecisionShares shares = tally.shares();
  return std::ranges::count_if(shares, [](double share) { return share > 0; }) > 1
             ? shares
             : PrecisionShares{};
}

StoredPrecision read_quantisation(const ConfigNode& node, const ConfigNode& file,
                                  const MoeModel& model) {
  const std::vector<std::string> prefixes = prefixes_in_use(file, node.json());
  Rules rules = RuleReader(node, prefixes).read();
  bool alike = true;
  rules.for_each_list([&](const NameList& list) { alike = alike && !list.tells_experts_apart(); });
  std::array<Tally, 3> parts;
  for_each_module(file, model, prefixes.front(), alike, [&](const WeightModule& module) {
    if (module.parameters > 0)
      parts[static_cast<std::size_t>(module.part)].parameters[rules.of(module)] +=
          module.parameters;
  });
  const Tally& attention = parts[static_cast<std::size_t>(WeightPart::attention)];
  const auto of = [&](WeightPart part, const Tally& if_none) -> const Tally& {
    const Tally& tally = parts[static_cast<std::size_t>(part)];
    return tally.parameters.empty() ? if_none : tally;
  };
  const Tally& ffn = of(WeightPart::ffn, attention);
  // A dense model's precision of experts is of nothing; it is that of its FFNs.
  const Tally& experts = of(WeightPart::experts, ffn);
  Scheme first = attention.most();
  for (const Tally* part : {&ffn, &experts})
    if (part->most().weights != Precision::bf16) first = part->most();

  const std::string algo = text_of(node.json(), "quant_algo");
  StoredPrecision stored{
      .plan = {.experts = experts.most().weights,
               .attention = attention.most().weights,
               .activations = first.activations,
               .ffn = ffn.most().weights,
               .expert_shares = shares_of(experts),
               .attention_shares = shares_of(attention),
               .ffn_shares = shares_of(ffn)},
      .said_by = fmt::format("{}: {}", node.file().filename().string(),
                             algo.empty() ? text_of(node.json(), "quant_method") : algo),
      .quantised = true};
  const bool means_some = !rules.schemes.empty() || rules.otherwise != unconverted;
  if (means_some && std::ranges::none_of(parts, &Tally::converts))
    stored.warning = fmt::format(
        "{} converts no linear module of the model's layers: bf16 is taken", stored.said_by);
  std::vector<std::string> of_nothing;
  rules.for_each_list([&](const NameList& list) {
    for (const std::string& entry : list.unused())
      if (seems_linear(entry, model.layers.size())) of_nothing.push_back(entry);
  });
  if (!of_nothing.empty())
    stored.warning = fmt::format(
        "{} lists {}{}, but no linear module of the model is called so: that changes nothing",
        stored.said_by, visible(fmt::format("\"{}\"", of_nothing.front())),
        of_nothing.size() > 1 ? fmt::format(" and {} more", of_nothing.size() - 1) : "");
  return stored;
}

// ---- the KV cache ----

// A precision by a quantiser's name of it, or nothing.
std::optional<Precision> kv_named(const std::string& name, const ConfigNode& node) {
  if (name.empty() || name == "none" || name == "auto") return std::nullopt;
  if (name.starts_with("fp8")) return Precision::fp8;
  if (name.starts_with("nvfp4")) return Precision::nvfp4;
  if (name == "mxfp4" || name == "fp4") return Precision::mxfp4;
  if (name == "int8" || name == "uint8") return Precision::int8;
  if (name == "int4" || name == "uint4") return Precision::int4;
  node.fail(fmt::format(
      "the KV cache's precision \"{}\" is not known; give \"precision\" in the experiment", name));
}

// Quark says it of what keys' projections put out.
std::optional<Precision> quark_kv_cache(const Json& json, const ConfigNode& node) {
  const Json* export_part = member(json, "export");
  const bool grouped =
      export_part != nullptr && !texts_in(member(*export_part, "kv_cache_group")).empty();
  for (const char* key : {"kv_cache_quant_config", "layer_quant_config"}) {
    const Json* layers = member(json, key);
    if (layers == nullptr || !layers->is_object()) continue;
    if (key == std::string_view("layer_quant_config") && !grouped) continue;
    for (const auto& layer : layers->items()) {
      const Json* out = member(layer.value(), "output_tensors");
      const bool of_cache = contains(layer.key(), "k_proj") || contains(layer.key(), "v_proj") ||
                            contains(layer.key(), "kv");
      if (out != nullptr && of_cache) return kv_named(text_of(*out, "dtype"), node);
    }
  }
  return std::nullopt;
}

// Engines keep the KV cache as the checkpoint has scales for it.
std::optional<Precision> kv_cache_of(const ConfigNode& node) {
  const Json& json = node.json();
  if (const auto named = kv_named(text_of(json, "kv_cache_quant_algo"), node)) return named;
  if (const Json* scheme = member(json, "kv_cache_scheme")) {
    if (scheme->is_string()) return kv_named(text_of(json, "kv_cache_scheme"), node);
    if (scheme->is_object() && !scheme->empty()) {
      const Precision stored = compressed(scheme, node);
      return stored == Precision::fp8_block ? Precision::fp8 : stored;
    }
  }
  return quark_kv_cache(json, node);
}

// ModelOpt's hf_quant_config.json next to a config.json.
std::optional<ConfigNode> beside(const ConfigNode& model) {
  const std::filesystem::path path = model.file().parent_path() / "hf_quant_config.json";
  if (!model.pointer().empty() || !std::filesystem::exists(path)) return std::nullopt;
  const ConfigNode file = ConfigNode::from_file(path);
  if (member(file.json(), "quantization") != nullptr) return file.child("quantization");
  return member(file.json(), "quant_algo") != nullptr ? std::optional(file) : std::nullopt;
}

constexpr std::array quantisation_keys{"quantization_config", "compression_config"};

// The file but for what it says of quantisation, which may be 20,000 names long.
ConfigNode without_quantisation(const ConfigNode& model) {
  Json left = Json::object();
  for (const auto& entry : model.json().items())
    if (std::ranges::find(quantisation_keys, entry.key()) == quantisation_keys.end())
      left[entry.key()] = entry.value();
  return {std::move(left), model.file(), model.pointer()};
}

// Finds where a HuggingFace model says how it is quantised, or nothing.
std::optional<ConfigNode> quantisation_of(const ConfigNode& model) {
  for (const char* key : quantisation_keys) {
    for (const ConfigNode& part : {model, language_part(model)}) {
      if (member(part.json(), key) == nullptr) continue;
      ConfigNode found = part.child(key);
      const Json* inner = member(found.json(), "quantization");
      return inner != nullptr && inner->is_object() ? found.child("quantization") : found;
    }
  }
  return beside(model);
}

// True if it is of the KV cache alone: ModelOpt writes no algorithm of weights then.
bool leaves_weights(const ConfigNode& node) {
  const Json& json = node.json();
  const std::string algo = text_of(json, "quant_algo"), method = text_of(json, "quant_method");
  return (algo.empty() || algo == "none") && member(json, "config_groups") == nullptr &&
         (method.starts_with("modelopt") || (method.empty() && json.contains("quant_algo")));
}

// TensorRT-LLM has the layers of a mixture in a file of their own.
ConfigNode with_layers(const ConfigNode& node) {
  const std::filesystem::path layers = node.file().parent_path() / "quant_cfg.json";
  const bool elsewhere = text_of(node.json(), "quant_algo") == "mixed_precision" &&
                         member(node.json(), "quantized_layers") == nullptr &&
                         member(node.json(), "config_groups") == nullptr;
  return elsewhere && std::filesystem::exists(layers) ? ConfigNode::from_file(layers) : node;
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

// Reads the files of a quantised model.
StoredPrecision quantised(const ConfigNode& config, const ConfigNode& quantisation,
                          const MoeModel& model) {
  const std::string file = config.file().filename().string();
  StoredPrecision stored{{}, quantisation.file().filename().string()};
  const ConfigNode described = without_quantisation(config);
  if (!leaves_weights(quantisation))
    stored = read_quantisation(with_layers(quantisation), described, model);
  std::optional<Precision> kv_cache = kv_cache_of(quantisation);
  if (const auto other = beside(config); !kv_cache && other) {
    kv_cache = kv_cache_of(*other);
    if (kv_cache)
      stored.warning += fmt::format(
          "{}{} says a KV cache in {}, {} none: {} is taken, as TensorRT-LLM does; vLLM reads "
          "the "
          "latter alone",
          stored.warning.empty() ? "" : "; ", other->file().filename().string(), name_of(*kv_cache),
          file, name_of(*kv_cache));
  }
  stored.plan.kv_cache = kv_cache.value_or(Precision::bf16);
  // DeepSeek-V4 says the format of its experts beside that of all else; engines keep the entries
  // of its KV cache in fp8.
  const ConfigNode text = language_part(described);
  if (text_of(text.json(), "expert_dtype") == "fp4") {
    stored.plan.experts = Precision::mxfp4;
    stored.plan.expert_shares = {};
  }
  if (member(text.json(), "compress_ratios") != nullptr ||
      member(text.json(), "compress_rates") != nullptr)
    stored.plan.kv_cache = Precision::fp8;
  return stored;
}

}  // namespace

std::optional<StoredPrecision> read_stored_precision(const ConfigNode& config,
                                                     const MoeModel& model) {
  const std::string file = config.file().filename().string();
  if (!is_hf_model(config)) {
    if (member(config.json(), "precision") == nullptr) return std::nullopt;
    return StoredPrecision{read_precision(config.child("precision")), file};
  }
  if (const std::optional<ConfigNode> quantisation = quantisation_of(config)) {
    try {
      return quantised(config, *quantisation, model);
    } catch (const ConfigError& error) {
      return StoredPrecision{.plan = {}, .said_by = file, .unknown = error.what()};
    }
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

namespace {

// "nvfp4", or "75.0 % nvfp4 + 25.0 % bf16", the largest share first.
std::string part_text(Precision precision, const PrecisionShares& shares) {
  std::vector<std::pair<double, Precision>> parts;
  for (std::size_t i = 0; i < shares.size(); ++i)
    if (shares[i] > 0) parts.emplace_back(shares[i], static_cast<Precision>(i));
  if (parts.empty()) return name_of(precision);
  std::ranges::stable_sort(parts, std::greater(), &std::pair<double, Precision>::first);
  std::string text;
  for (const auto& [share, in] : parts)
    text += fmt::format("{}{} % {}", text.empty() ? "" : " + ",
                        share < .0005 ? "<0.1" : fmt::format("{:.1f}", 100 * share), name_of(in));
  return text;
}

}  // namespace

std::string precision_text(const PrecisionPlan& plan) {
  const std::string attention = part_text(plan.attention, plan.attention_shares);
  const std::string ffn = part_text(plan.ffn, plan.ffn_shares);
  return fmt::format(
      "experts {}, {}, KV cache {}, activations {}", part_text(plan.experts, plan.expert_shares),
      ffn == attention ? "other weights " + attention
                       : fmt::format("attention {}, shared and dense FFNs {}", attention, ffn),
      name_of(plan.kv_cache), name_of(plan.activations));
}

}  // namespace moesim
