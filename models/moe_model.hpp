// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "models/mixers/mixer.hpp"

namespace moesim {

/// A transformer layer.
struct LayerSpec {
  MixerPtr mixer;   ///< attention, or what stands in its place
  bool moe = true;  ///< experts follow it
  bool ffn = true;  ///< false: nothing follows it (Nemotron-H)
  int number = 0;   ///< that files and engines give to its FFN
  bool has_dense_ffn() const { return ffn && !moe; }
  bool operator==(const LayerSpec& other) const {
    return *mixer == *other.mixer && moe == other.moe && ffn == other.ffn;
  }
};

/// Weights that the authors of a model count as active in addition to its layers.
enum class ActiveCounts { lm_head, embeddings_and_lm_head, layers_only };
inline constexpr std::array<std::string_view, 3> active_counts_names{
    "lm_head", "embeddings_and_lm_head", "layers_only"};

/// Parts of a forward pass of a Mixture-of-Experts (or dense) transformer.
struct MoeModel {
  std::string name;
  std::string source;
  int hidden = 0;  ///< d
  int vocabulary = 0;
  bool tied_embeddings = false;
  int experts = 0;            ///< N, routed, per MoE layer; 0 = dense model
  int experts_per_token = 0;  ///< k
  int expert_width = 0;       ///< m, intermediate width of one routed expert
  int expert_hidden = 0;      ///< width that routed experts see, where it is not d (latent MoE)
  int shared_width = 0;       ///< total intermediate width of the shared experts, 0 for none
  int dense_width =
      0;  ///< intermediate width of the dense FFN layers (and dense residual), 0 for none
  bool dense_residual =
      false;                 ///< every MoE layer also has the dense FFN beside the experts (Arctic)
  int expert_groups = 1;     ///< group-limited gating: groups of experts ...
  int groups_per_token = 1;  ///< ... and how many groups a token may use
  /// Whose statistics synthetic routing has (moesim list presets); empty: nothing of the model's
  /// family is public.
  std::string gating_preset;
  int max_positions = 0;  ///< tokens that a sequence may have; 0: unlimited
  int draft_layers = 0;   ///< that draft tokens (MTP), beside `layers`; 0: none that files name
  std::vector<LayerSpec> layers;
  /// Layers as files and engines count them: an FFN is one of its own in Nemotron-H, and two of
  /// `layers` are one in LongCat-Flash.
  int numbered_layers = 0;
  /// A bias that is no part of the router's scores decides which experts a token picks.
  bool choice_bias = false;
  /// Keys of a config.json that may change a cost and that nothing here knows.
  std::vector<std::string> unknown_keys;
  double published_total = 0;  ///< parameters, as the model's authors publish them; 0 when unknown
  double published_active = 0;
  ActiveCounts published_counts = ActiveCounts::lm_head;  ///< the rule behind published_active

  int moe_layers() const;
  /// Numbers of the layers with experts, ascending.
  std::vector<int> moe_layer_numbers() const;
  /// The number is of a layer that drafts tokens (MTP): these follow the others.
  bool is_draft_layer(std::int64_t number) const {
    return number >= numbered_layers && number < numbered_layers + draft_layers;
  }
  /// A layer keeps a state of each sequence in the place of a KV cache.
  bool keeps_state() const;
  /// Why the layers' mixers cannot be cut over `tp` GPUs; empty: they can.
  std::string cut_fault(int tp) const;
  /// Width of what a token sends to its experts.
  int expert_input() const { return expert_hidden > 0 ? expert_hidden : hidden; }
  bool operator==(const MoeModel&) const = default;
};

/// Reads a zoo file (models/README.md) or an unmodified HuggingFace config.json ("model_type" or
/// "architectures" present; see unknown_keys). Throws ConfigError if a fact is
/// missing, contradicts another, or the architecture is not known.
MoeModel read_model(const ConfigNode&);
/// The keys of a zoo file.
std::span<const Key> model_keys();
/// Keys, of which one tells a HuggingFace config.json.
inline constexpr std::array<std::string_view, 2> hf_model_marks{"model_type", "architectures"};
bool is_hf_model(const ConfigNode&);

/// Parameters of a gated FFN: gate, up and down projections.
double ffn_parameters(int hidden, double width);
/// Parameters of one routed expert.
double expert_parameters(const MoeModel&);
/// Parameters of an MoE layer's gate and, with latent experts, of the projections around them.
double gate_parameters(const MoeModel&);
/// Parameters of the two norms of a layer.
double norm_parameters(int hidden);

/// Parameters. The counting rule has embeddings, LM head, norms, attention, gates and experts. It
/// has no MTP modules, no vision encoder, no biases, sinks or per-head norms (0.05 % of gpt-oss,
/// less elsewhere).
struct ParameterCount {
  double total = 0;
  double active =
      0;  ///< used for one token: k experts per MoE layer; embeddings are looked up, not counted
};
ParameterCount count_parameters(const MoeModel&);
/// The active parameters by the rule of the model's authors, to compare with published_active.
double active_as_published(const MoeModel&);

}  // namespace moesim
