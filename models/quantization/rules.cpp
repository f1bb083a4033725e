// SPDX-License-Identifier: Apache-2.0
#include "models/quantization/rules.hpp"

#include <fstream>
#include <utility>

#include <fmt/format.h>

namespace moesim {

namespace {

[[noreturn]] void not_known(const ConfigNode& node, const std::string& what) {
  node.fail(
      "the quantisation {} is not known; give \"experts\" and \"attention\" of \"precision\" in "
      "the experiment",
      what.empty() ? "that it holds" : what);
}

// 4-bit integers of which so many have one scale; other numbers are taken for 128.
Precision int4_of(int group) {
  if (group == 64) return Precision::int4_g64;
  return group == 32 ? Precision::int4_g32 : Precision::int4;
}

}  // namespace

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
  if (bits == 4 && type == "int") return int4_of(group);
  if (bits == 4 && type == "float") return group == 32 ? Precision::mxfp4 : Precision::nvfp4;
  not_known(node, fmt::format("{} {} bits", type, bits));
}

namespace {

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
  if (type == "int4" || type == "uint4") return int4_of(whole_of(*tensor, "group_size"));
  if (type == "int8" || type == "uint8") return Precision::int8;
  if (type.empty() || type == "bfloat16" || type == "float16") return Precision::bf16;
  not_known(node, "\"" + type + "\"");
}

Scheme quark_scheme(const Json& config, const ConfigNode& node) {
  return {quark(member(config, "weight"), node), quark(member(config, "input_tensors"), node)};
}

// GPTQ's and AWQ's whole numbers, which engines multiply in bf16. `json` has their "group_size".
Scheme whole_numbers(int bits, const Json& json, const ConfigNode& node) {
  if (bits == 4) return {int4_of(whole_of(json, "group_size")), Precision::bf16};
  if (bits == 8) return {Precision::int8, Precision::bf16};
  if (bits >= 16) return unconverted;
  not_known(node, fmt::format("to {} bits", bits));
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
    if (const std::string experts = text_of(json_, "moe_quant_algo"); !experts.empty()) {
      by_method();  // of all else: DeepSeek-V4 and MiniMax-M3.1 in NVFP4
      rules_.experts = modelopt_scheme(experts, node_);
    } else if (const Json* layers = member(json_, "quantized_layers");
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
      // Beside a format of the experts "ignore" is what that format leaves out; engines do not read
      // it.
      if (key == std::string_view("ignore") && member(json_, "moe_quant_algo") != nullptr) continue;
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
    if (method_ == "fp8" || method_ == "fbgemm_fp8" || method_ == "w8a8_fp8" ||
        method_ == "mxfp8" || method_ == "w4afp8") {
      const bool blocks = method_ == "mxfp8" || method_ == "w4afp8" ||
                          member(json_, "weight_block_size") != nullptr;
      const Precision stored = blocks ? Precision::fp8_block : Precision::fp8;
      rules_.otherwise = {stored, stored};
      if (method_ == "w4afp8") rules_.experts = Scheme{Precision::int4, Precision::fp8};
      // Experts of MiMo-V2.6, and those of Ling 3.0.
      for (const char* key : {"store_dtype", "routed_experts_quant_method"}) {
        const std::string kept = text_of(json_, key);
        if (kept == "mxfp4")
          rules_.experts = Scheme{Precision::mxfp4, stored};
        else if (!kept.empty() && kept != method_)
          not_known(node_, "\"" + kept + "\"");
      }
    } else if (method_ == "w8a8_int8" || method_ == "blockwise_int8") {
      rules_.otherwise = {Precision::int8, Precision::int8};
    } else if (method_ == "mxfp4") {  // multiplied in bf16
      rules_.experts_alone = true;
      rules_.otherwise = {Precision::mxfp4, Precision::bf16};
    } else if (method_.starts_with("awq")) {
      const int bits = whole_of(json_, "bits");
      rules_.otherwise = whole_numbers(bits > 0 ? bits : whole_of(json_, "w_bit"), json_, node_);
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
    rules_.otherwise = whole_numbers(bits, json_, node_);
    if (member(json_, "dynamic") != nullptr && json_.at("dynamic").is_object()) {
      const ConfigNode dynamic = node_.child("dynamic");
      const std::vector<std::string> keys = keys_in_order(dynamic);
      for (const std::string& key : keys) {
        const int own = whole_of(dynamic.json().at(key), "bits");
        rules_.schemes.push_back(key.starts_with("-:")
                                     ? unconverted
                                     : whole_numbers(own > 0 ? own : bits, json_, node_));
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
    rules_.otherwise = whole_numbers(whole_of(json_, "bits"), json_, node_);
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
                                   : whole_numbers(whole_of(module, "bits"), json_, node_));
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

}  // namespace

Rules read_rules(const ConfigNode& node, std::vector<std::string> prefixes) {
  return RuleReader(node, std::move(prefixes)).read();
}

}  // namespace moesim
