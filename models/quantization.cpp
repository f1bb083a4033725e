// SPDX-License-Identifier: Apache-2.0
#include "models/quantization.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "hardware/quoting.hpp"
#include "models/language_part.hpp"
#include "models/quantization/rules.hpp"

namespace moesim {

namespace {

std::string name_of(Precision precision) { return std::string(precision_names[at(precision)]); }

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
    for (const auto& [scheme, here] : parameters) shares[at(scheme.weights)] += here / all;
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
  Rules rules = read_rules(node, prefixes);
  bool alike = true;
  rules.for_each_list([&](const NameList& list) { alike = alike && !list.tells_experts_apart(); });
  std::array<Tally, 3> parts;
  for_each_module(file, model, prefixes.front(), alike, [&](const WeightModule& module) {
    if (module.parameters > 0)
      parts[at(module.part)].parameters[rules.of(module)] += module.parameters;
  });
  const Tally& attention = parts[at(WeightPart::attention)];
  const auto of = [&](WeightPart part, const Tally& if_none) -> const Tally& {
    const Tally& tally = parts[at(part)];
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
  if (name.starts_with("fp8") || name == "static") return Precision::fp8;
  if (name.starts_with("nvfp4")) return Precision::nvfp4;
  if (name == "mxfp4" || name == "fp4") return Precision::mxfp4;
  if (name == "int8" || name == "uint8") return Precision::int8;
  if (name == "int4" || name == "uint4") return Precision::int4;
  node.fail("the KV cache's precision \"{}\" is not known; give \"precision\" in the experiment",
            name);
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

// The last one is MLX's.
constexpr std::array quantisation_keys{"quantization_config", "compression_config", "quantization"};

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
  if (text_of(quantisation.json(), "kv_cache_scheme") == "static")
    stored.warning += fmt::format(
        "{}{} has scales of an fp8 KV cache: fp8 is taken; engines do so with --kv-cache-dtype fp8",
        stored.warning.empty() ? "" : "; ", file);
  stored.plan.kv_cache = kv_cache.value_or(Precision::bf16);
  // DeepSeek-V4 says the format of its experts beside that of all else; engines keep the entries
  // of its KV cache in fp8.
  const ConfigNode text = language_part(described);
  if (text_of(text.json(), "expert_dtype") == "fp4" &&
      text_of(quantisation.json(), "moe_quant_algo").empty()) {
    stored.plan.experts = Precision::mxfp4;
    stored.plan.expert_shares = {};
  }
  if (member(text.json(), "compress_ratios") != nullptr ||
      member(text.json(), "compress_rates") != nullptr)
    stored.plan.kv_cache = Precision::fp8;
  return stored;
}

// Bytes of a number in a state, as a config.json says. Kernels of Kimi Delta Attention keep fp32
// whatever a file says (kda_state_dtype of vLLM's mamba_utils.py).
std::optional<double> state_bytes_said(const Json& text) {
  for (const char* key : {"linear_attn_config", "kda_safe_gate", "no_kda_lora"})
    if (member(text, key) != nullptr) return 4;
  for (const char* key : {"mamba_ssm_dtype", "mamba_ssm_cache_dtype"}) {
    const std::string said = text_of(text, key);
    if (said == "float32") return 4;
    if (said == "bfloat16" || said == "float16") return 2;
  }
  return std::nullopt;
}

StoredPrecision hf_precision(const ConfigNode& config, const MoeModel& model) {
  const std::string file = config.file().filename().string();
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

}  // namespace

std::optional<StoredPrecision> read_stored_precision(const ConfigNode& config,
                                                     const MoeModel& model) {
  const std::string file = config.file().filename().string();
  if (!is_hf_model(config)) {
    const Json* const said = member(config.json(), "precision");
    if (said == nullptr) return std::nullopt;
    return StoredPrecision{.plan = read_precision(config.child("precision")),
                           .said_by = file,
                           .states_said = said->contains("state")};
  }
  StoredPrecision stored = hf_precision(config, model);
  const std::optional<double> of_states = state_bytes_said(language_part(config).json());
  stored.states_said = of_states.has_value();
  stored.plan.state_bytes = of_states.value_or(stored.plan.state_bytes);
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
