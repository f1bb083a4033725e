// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// Attention of one model. GQA when kv_lora == 0, MLA otherwise.
struct AttentionSpec {
  int query_heads = 0;
  int kv_heads = 0;                         ///< GQA
  int head_dim = 0;                         ///< GQA
  int q_lora = 0;                           ///< MLA: rank of the query's compression, 0 for none
  int kv_lora = 0;                          ///< MLA: rank of the cached latent
  int qk_nope = 0, qk_rope = 0, v_dim = 0;  ///< MLA, per head
  bool is_mla() const { return kv_lora > 0; }
};

/// One transformer layer.
struct LayerSpec {
  int window = 0;        ///< tokens of context attention sees; 0 = all
  bool chunked = false;  ///< the window is an aligned chunk (Llama 4), not sliding
  bool moe = true;
  bool operator==(const LayerSpec&) const = default;
};

/// What a forward pass of a Mixture-of-Experts (or dense) transformer is made of.
struct MoeModel {
  std::string name;
  std::string source;
  int hidden = 0;  ///< d
  int vocabulary = 0;
  bool tied_embeddings = false;
  AttentionSpec attention;
  int experts = 0;            ///< N, routed, per MoE layer; 0 = dense model
  int experts_per_token = 0;  ///< k
  int expert_width = 0;       ///< m, intermediate width of one routed expert
  int shared_width = 0;       ///< total intermediate width of the shared experts, 0 for none
  int dense_width =
      0;  ///< intermediate width of the dense FFN layers (and dense residual), 0 for none
  bool dense_residual =
      false;                 ///< every MoE layer also has the dense FFN beside the experts (Arctic)
  int expert_groups = 1;     ///< group-limited gating: groups of experts ...
  int groups_per_token = 1;  ///< ... and how many of them a token may use
  std::vector<LayerSpec> layers;
  double published_total = 0;  ///< parameters, as the model's authors publish them; 0 when unknown
  double published_active = 0;

  int moe_layers() const;
};

/// Reads a zoo file or an unmodified HuggingFace config.json ("model_type" / "architectures"
/// present). Throws ConfigError if a fact is missing or the architecture is not known.
MoeModel read_model(const ConfigNode&);

/// Parameters; the counting rule: embeddings, LM head, norms, attention, gates, experts; no MTP
/// modules.
struct ParameterCount {
  double total = 0;
  double active =
      0;  ///< used for one token: k experts per MoE layer; embeddings are looked up, not counted
};
ParameterCount count_parameters(const MoeModel&);

}  // namespace moesim
