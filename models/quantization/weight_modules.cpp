// SPDX-License-Identifier: Apache-2.0
#include "models/quantization/weight_modules.hpp"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>

#include "models/huggingface/family.hpp"
#include "models/language_part.hpp"

namespace moesim {

namespace {

/// The gate's, the up and the down projection.
using FfnNames = std::array<std::string_view, 3>;
constexpr FfnNames by_word{"gate_proj", "up_proj", "down_proj"};
constexpr FfnNames by_number{"w1", "w3", "w2"};
constexpr FfnNames in_two{"input_linear", "input_linear", "output_linear"};

/// A projection of attention that has another name, or shares one, in some families.
struct Renamed {
  std::string_view usual, here;
};
constexpr Renamed one_product[] = {{"q_proj", "query_key_value"},
                                   {"k_proj", "query_key_value"},
                                   {"v_proj", "query_key_value"},
                                   {"o_proj", "dense"}};
constexpr Renamed databricks[] = {
    {"q_proj", "Wqkv"}, {"k_proj", "Wqkv"}, {"v_proj", "Wqkv"}, {"o_proj", "out_proj"}};
constexpr Renamed liquid[] = {{"o_proj", "out_proj"}};
constexpr Renamed two_products[] = {{"in_proj_qkv", "in_proj_qkvz"},
                                    {"in_proj_z", "in_proj_qkvz"},
                                    {"in_proj_b", "in_proj_ba"},
                                    {"in_proj_a", "in_proj_ba"}};

/// How the classes of some families in transformers, or their own code, name the modules of a
/// layer.
struct Naming {
  std::string_view families = {};  ///< model types, each between spaces; empty: all others
  std::string_view experts = "mlp.experts";
  std::string_view shared = "mlp.shared_experts";
  std::string_view dense = "mlp";
  std::string_view attention = "self_attn";
  std::string_view linear = "self_attn";  ///< what stands in attention's place
  FfnNames expert_names = by_word, ffn_names = by_word;
  bool numbered = true;  ///< each expert is a module of its own
  std::span<const Renamed> renamed{};
  std::string_view before = "model.layers.";
};
constexpr Naming namings[] = {
    {.families = " arctic ",
     .experts = "block_sparse_moe.experts",
     .dense = "residual_mlp",
     .expert_names = by_number,
     .ffn_names = by_number},
    {.families = " aria_text ", .expert_names = {"fc1", "fc1", "fc2"}, .numbered = false},
    {.families = " bailing_hybrid bailing_moe bailing_moe_linear bailing_moe_v2 ",
     .attention = "attention",
     .linear = "attention",
     .renamed = one_product},
    {.families = " dbrx ",
     .experts = "ffn.experts.mlp",
     .attention = "norm_attn_norm.attn",
     .expert_names = {"w1", "v1", "w2"},
     .numbered = false,
     .renamed = databricks,
     .before = "transformer.blocks."},
    {.families = " deepseek_v4 ",
     .experts = "ffn.experts",
     .shared = "ffn.shared_experts",
     .dense = "ffn",
     .attention = "attn",
     .linear = "attn",
     .expert_names = by_number,
     .ffn_names = by_number,
     .before = "layers."},
    {.families = " gemma4_text ", .experts = "experts", .shared = "mlp"},
    {.families = " granitemoe granitemoehybrid granitemoeshared ",
     .experts = "block_sparse_moe",
     .shared = "shared_mlp",
     .dense = "shared_mlp",
     .linear = "mamba",
     .expert_names = in_two,
     .ffn_names = in_two,
     .numbered = false},
    {.families = " grok-1 minimax_m2 mixtral phimoe grinmoe ",
     .experts = "block_sparse_moe.experts",
     .expert_names = by_number},
    {.families = " hunyuan_v1_moe hy_v3 ", .shared = "mlp.shared_mlp"},
    {.families = " jamba ",
     .experts = "feed_forward.experts",
     .dense = "feed_forward",
     .linear = "mamba"},
    {.families = " kimi_linear ",
     .experts = "block_sparse_moe.experts",
     .shared = "block_sparse_moe.shared_experts",
     .expert_names = by_number},
    {.families = " laguna pangu_pro_moe qwen2_moe qwen3_5_moe_text qwen3_5_text qwen3_moe "
                 "qwen3_omni_moe_text qwen3_vl_moe_text ",
     .shared = "mlp.shared_expert",
     .linear = "linear_attn"},
    {.families = " qwen3_next ",
     .shared = "mlp.shared_expert",
     .linear = "linear_attn",
     .renamed = two_products},
    {.families = " llama4_text ",
     .experts = "feed_forward.experts",
     .shared = "feed_forward.shared_expert",
     .dense = "feed_forward"},
    {.families = " lfm2_moe ",
     .experts = "feed_forward.experts",
     .dense = "feed_forward",
     .linear = "conv",
     .expert_names = by_number,
     .ffn_names = by_number,
     .renamed = liquid},
    {.families = " minimax minimax_m1 minimax_text_01 ",
     .experts = "block_sparse_moe.experts",
     .shared = "shared_mlp",
     .expert_names = by_number},
    {.families = " minimax_m3 minimax_m3_vl minimax_m3_vl_text ",
     .experts = "block_sparse_moe.experts",
     .shared = "block_sparse_moe.shared_experts",
     .expert_names = by_number},
    {.families = " nemotron_h ",
     .experts = "mixer.experts",
     .shared = "mixer.shared_experts",
     .dense = "mixer",
     .attention = "mixer",
     .linear = "mixer",
     .before = "backbone.layers."},
    {.families = " smallthinker ",
     .experts = "block_sparse_moe.experts",
     .expert_names = {"gate", "up", "down"}},
    {.families = " step3_text step3p5 step3p7 ",
     .experts = "moe",
     .shared = "share_expert",
     .numbered = false},
    {}};

/// Modules that engines hold as one where files have several.
struct Fused {
  std::string_view together, apart;
};
constexpr Fused packed[] = {{"qkv_proj", "q_proj"},
                            {"qkv_proj", "k_proj"},
                            {"qkv_proj", "v_proj"},
                            {"gate_up_proj", "gate_proj"},
                            {"gate_up_proj", "up_proj"},
                            {"fused_qkv_a_proj", "q_a_proj"},
                            {"fused_qkv_a_proj", "kv_a_proj_with_mqa"},
                            {"in_proj_qkvz", "in_proj_qkv"},
                            {"in_proj_qkvz", "in_proj_z"},
                            {"in_proj_ba", "in_proj_b"},
                            {"in_proj_ba", "in_proj_a"}};

std::string fused_with(const std::string& base, std::string_view name) {
  const auto* const found = std::ranges::find(packed, name, &Fused::apart);
  return found == std::end(packed) ? "" : base + std::string(found->together);
}

const Naming& naming_of(std::string_view type) {
  const std::string word = fmt::format(" {} ", type);
  const auto* const found = std::ranges::find_if(
      namings, [&](const Naming& row) { return row.families.find(word) != row.families.npos; });
  return found == std::end(namings) ? std::end(namings)[-1] : *found;
}

bool is_inside(const ConfigNode& file) { return language_part(file).pointer() != file.pointer(); }

/// The numbers of the blocks that a layer's mixer and its FFN are in the file.
struct Blocks {
  int mixer = 0, ffn = 0;
};

// Nemotron-H numbers mixers and FFNs apart.
std::vector<Blocks> blocks_of(const MoeModel& model, bool apart) {
  std::vector<Blocks> blocks;
  int next = 0;
  for (const LayerSpec& layer : model.layers) {
    const int mixer = next++;
    blocks.push_back({mixer, apart && layer.ffn ? next++ : mixer});
  }
  return blocks;
}

class Modules {
 public:
  Modules(const ConfigNode& file, const MoeModel& model, std::string_view prefix, bool alike,
          const std::function<void(const WeightModule&)>& take)
      : model_(model),
        type_(hf_model_type(file)),
        naming_(naming_of(type_)),
        prefix_(prefix),
        alike_(alike),
        take_(take) {}

  void visit() const {
    const std::vector<Blocks> blocks = blocks_of(model_, type_ == "nemotron_h");
    const bool halves = type_ == "longcat_flash";  // two layers here are one of the file
    for (std::size_t l = 0; l < blocks.size(); ++l) {
      const LayerSpec& layer = model_.layers[l];
      const auto base = [&](int block) {
        return fmt::format("{}{}.", prefix_, halves ? block / 2 : block);
      };
      const std::string half = halves ? fmt::format(".{}", l % 2) : "";
      attention(layer, base(blocks[l].mixer), half);
      const std::string ffn = base(blocks[l].ffn);
      if (layer.moe) experts(ffn);
      if (layer.moe && model_.shared_width > 0)
        dense(ffn + std::string(naming_.shared), model_.shared_width);
      if (layer.has_dense_ffn() || model_.dense_residual)
        dense(halves ? ffn + "mlps" + half : ffn + std::string(naming_.dense), model_.dense_width);
    }
  }

 private:
  void attention(const LayerSpec& layer, const std::string& base, const std::string& half) const {
    const bool linear = layer.mixer->kept({}, {}).elements == 0;
    const std::string_view block = linear ? naming_.linear : naming_.attention;
    const std::string in = fmt::format("{}{}{}.", base, block, half);
    for (const MixerMatrix& one : layer.mixer->matrices(model_.hidden)) {
      const auto found = std::ranges::find(naming_.renamed, one.name, &Renamed::usual);
      const std::string name(found == naming_.renamed.end() ? one.name : found->here);
      take_({in + name, fused_with(in, name), WeightPart::attention, one.parameters});
    }
  }

  // The projections of FFNs whose weights are `all`. Nemotron-H's have no gate.
  void projections(const std::string& in, const std::string& fused_in, const FfnNames& names,
                   WeightPart part, double all) const {
    const bool gated = type_ != "nemotron_h";
    for (const std::string_view name : names) {
      if (!gated && name == names.front()) continue;
      std::string fused = fused_with(fused_in, name);
      if (fused.empty() && fused_in != in) fused = fused_in + std::string(name);
      take_({in + std::string(name), std::move(fused), part, all / (gated ? 3 : 2)});
    }
  }

  void dense(const std::string& block, double width) const {
    projections(block + ".", block + ".", naming_.ffn_names, WeightPart::ffn,
                ffn_parameters(model_.hidden, width));
  }

  void experts(const std::string& base) const {
    const std::string block = base + std::string(naming_.experts) + ".";
    const double each = expert_parameters(model_);
    const auto emit = [&](const std::string& in, int count) {
      projections(in, block, naming_.expert_names, WeightPart::experts, each * count);
    };
    if (!naming_.numbered) return emit(block, model_.experts);
    for (int first = 0, next = 10; first < model_.experts; first = next, next *= 10) {
      const int end = std::min(next, model_.experts);
      for (int expert = first; expert < (alike_ ? first + 1 : end); ++expert)
        emit(fmt::format("{}{}.", block, expert), alike_ ? end - first : 1);
    }
  }

  const MoeModel& model_;
  std::string_view type_;
  const Naming& naming_;
  std::string prefix_;
  bool alike_;
  const std::function<void(const WeightModule&)>& take_;
};

}  // namespace

std::vector<std::string> layer_prefixes(const ConfigNode& file) {
  const std::string_view type = hf_model_type(file);
  std::vector<std::string> prefixes;
  if (is_inside(file) || type.ends_with("_text"))
    prefixes = {"model.language_model.layers.", "language_model.model.layers.",
                "language_model.layers.", "thinker.model.layers."};
  for (const std::string_view usual : {naming_of(type).before, Naming{}.before})
    prefixes.emplace_back(usual);
  return prefixes;
}

void for_each_module(const ConfigNode& file, const MoeModel& model, std::string_view prefix,
                     bool alike, const std::function<void(const WeightModule&)>& take) {
  Modules(file, model, prefix, alike, take).visit();
}

}  // namespace moesim
