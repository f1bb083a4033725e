// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/other_keys.hpp"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>

namespace moesim {

namespace {

/// Keys that change no cost that is modelled, and why.
struct Harmless {
  std::string_view why;
  std::span<const std::string_view> keys;
};

using Names = std::string_view[];
constexpr Names tokens = {"begin_suppress_tokens",
                          "bos_token_id",
                          "boi_token_index",
                          "diversity_penalty",
                          "do_sample",
                          "eos_token_id",
                          "image_token_id",
                          "image_token_index",
                          "length_penalty",
                          "max_length",
                          "mask_token_id",
                          "min_length",
                          "num_beam_groups",
                          "num_beams",
                          "num_logits_to_keep",
                          "num_return_sequences",
                          "pad_token_id",
                          "prefix",
                          "repetition_penalty",
                          "sep_token_id",
                          "temperature",
                          "tokenizer_class",
                          "top_k",
                          "top_p",
                          "typical_p",
                          "video_token_id"};
constexpr Names software = {"_attn_implementation",
                            "_attn_implementation_autoset",
                            "_name_or_path",
                            "architectures",
                            "attn_implementation",
                            "auto_map",
                            "base_model_pp_plan",
                            "base_model_tp_plan",
                            "dtype",
                            "ep_size",
                            "finetuning_task",
                            "id2label",
                            "is_decoder",
                            "label2id",
                            "model_type",
                            "pretraining_tp",
                            "problem_type",
                            "return_dict",
                            "task_specific_params",
                            "torch_dtype",
                            "transformers_version",
                            "use_bfloat16",
                            "use_cache",
                            "use_mamba_kernels"};
constexpr Names training = {
    "attention_dropout",        "aux_loss_alpha", "embd_pdrop",           "hidden_dropout",
    "initializer_range",        "moe_capacity",   "moe_drop_tokens",      "output_router_logits",
    "rescale_prenorm_residual", "resid_pdrop",    "router_aux_loss_coef", "router_jitter_noise",
    "router_z_loss_coef",       "seq_aux",        "use_router_aux_loss"};
constexpr Names formulas = {"activation_situ_beta",
                            "activation_situ_linear_beta",
                            "attention_value_scale",
                            "attn_logit_softcapping",
                            "compress_rope_theta",
                            "embedding_multiplier",
                            "final_logit_softcapping",
                            "hc_eps",
                            "hc_sinkhorn_iters",
                            "hidden_act",
                            "hidden_activation",
                            "indexer_rope_interleave",
                            "initial_context_length",
                            "layer_norm_eps",
                            "layer_norm_epsilon",
                            "layernorm_epsilon",
                            "latent_moe_use_norm",
                            "logits_scaling",
                            "mamba_hidden_act",
                            "mla_use_nope",
                            "mlp_hidden_act",
                            "moe_renormalize",
                            "moe_router_activation_func",
                            "moe_router_scaling_factor",
                            "norm_eps",
                            "norm_topk_prob",
                            "partial_rotary_factor",
                            "qk_norm_type",
                            "query_pre_attn_scalar",
                            "residual_in_fp32",
                            "residual_multiplier",
                            "rms_norm_eps",
                            "rope_interleave",
                            "rope_parameters",
                            "rope_scaling",
                            "rope_theta",
                            "rotary_dim",
                            "routed_scaling_factor",
                            "router_activation_func",
                            "scoring_func",
                            "swa_rope_theta",
                            "swiglu_alpha",
                            "swiglu_limit",
                            "time_step_floor",
                            "time_step_limit",
                            "time_step_max",
                            "time_step_min",
                            "topk_method",
                            "use_gemma_norm",
                            "use_grouped_topk",
                            "use_qk_norm"};
constexpr Names small = {"add_full_attention_sink_bias",
                         "add_swa_attention_sink_bias",
                         "attention_bias",
                         "attn_res_block_size",
                         "lm_head_bias",
                         "mamba_proj_bias",
                         "mlp_bias",
                         "use_bias",
                         "use_conv_bias",
                         "use_head_wise_attn_gate",
                         "use_moe_router_bias",
                         "use_qkv_bias",
                         "use_routing_bias"};
constexpr Names said_elsewhere = {"attention_chunk_size",
                                  "attn_output_gate",
                                  "chunk_size",
                                  "expand",
                                  "expert_dtype",
                                  "experts_per_token",
                                  "first_k_dense_replace",
                                  "head_dim",
                                  "intermediate_size",
                                  "mamba_d_head",
                                  "mamba_ssm_cache_dtype",
                                  "mamba_ssm_dtype",
                                  "max_window_layers",
                                  "moe_layer_freq",
                                  "n_shared_experts",
                                  "num_key_value_heads",
                                  "parallel_attn_mlp_res",
                                  "qk_head_dim",
                                  "quantization_config",
                                  "sliding_window",
                                  "sliding_window_pattern",
                                  "sliding_window_size",
                                  "use_mixed_mlp_moe"};
constexpr Names drafts = {"mtp_num_hidden_layers",        "mtp_transformer_layers",
                          "mtp_use_dedicated_embeddings", "num_mtp_modules",
                          "num_nextn_predict_layers",     "use_mtp"};
constexpr Names ids = {"num_hash_layers", "use_bidirectional_attention",
                       "vocab_size_per_layer_input", "zero_expert_type"};

constexpr Harmless harmless[] = {
    {"tokens and how they are drawn", tokens},
    {"how the software runs the model", software},
    {"training", training},
    {"what an operation computes, not how long", formulas},
    {"biases, sinks, gates of one number: below a thousandth of a layer", small},
    {"the family's rules or other keys say so, or a precision", said_elsewhere},
    {"drafts are what an experiment's \"speculative\" says", drafts},
    {"experts by token id are drawn like the others'; inputs that are no text", ids},
};

/// Keys that change layers in a way that is not modelled.
struct Refused {
  std::string_view key, why;
};
constexpr Refused refused[] = {
    {"add_cross_attention", "cross attention is"},
    {"cross_attention_hidden_size", "cross attention is"},
    {"hidden_size_per_layer_input", "embeddings for each layer are"},
    {"is_encoder_decoder", "an encoder with a decoder is"},
    {"num_kv_shared_layers", "layers that share a KV cache are"},
    {"use_cla", "layers that share a KV cache are"},
    {"use_double_wide_mlp", "FFNs of twice the width in layers that share a KV cache are"},
};

bool is_off(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

bool is_harmless(std::string_view key) {
  return std::ranges::any_of(harmless, [&](const Harmless& of) {
    return std::ranges::find(of.keys, key) != of.keys.end();
  });
}

}  // namespace

std::vector<std::string> unknown_hf_keys(const ConfigReader& r) {
  std::vector<std::string> unknown;
  for (const std::string& key : r.unread()) {
    const Json& value = r.node().json().at(key);
    if (is_off(value)) continue;
    for (const Refused& switched : refused)
      if (switched.key == key)
        r.node().child(key).fail(
            fmt::format("{} not modelled; switched off would be right", switched.why));
    if (!is_harmless(key)) unknown.push_back(key);
  }
  return unknown;
}

}  // namespace moesim
