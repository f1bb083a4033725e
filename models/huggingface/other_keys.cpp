// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/other_keys.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace moesim {

namespace {

/// Keys that change no cost that is modelled, and why.
struct Harmless {
  std::string_view why;
  std::string_view keys;  ///< each between spaces
};

constexpr Harmless harmless[] = {
    {"tokens and how they are drawn",
     " begin_suppress_tokens bos_token_id boi_token_index diversity_penalty do_sample "
     "eos_token_id image_token_id image_token_index length_penalty max_length mask_token_id "
     "min_length num_beam_groups num_beams num_logits_to_keep num_return_sequences pad_token_id "
     "prefix repetition_penalty sep_token_id temperature tokenizer_class top_k top_p typical_p "
     "video_token_id "},
    {"how the software runs the model",
     " _attn_implementation _attn_implementation_autoset _name_or_path architectures "
     "attn_implementation auto_map base_model_pp_plan base_model_tp_plan compression_config "
     "dtype ep_size finetuning_task id2label is_decoder label2id model_type pretraining_tp "
     "problem_type quantization_config return_dict task_specific_params torch_dtype "
     "transformers_version use_bfloat16 use_cache use_mamba_kernels "},
    {"training",
     " attention_dropout aux_loss_alpha embd_pdrop hidden_dropout initializer_range "
     "input_jitter_noise moe_capacity moe_drop_tokens output_router_logits "
     "rescale_prenorm_residual resid_pdrop "
     "router_aux_loss_coef router_jitter_noise router_z_loss_coef seq_aux use_router_aux_loss "},
    {"what an operation computes, not how long",
     " activation_situ_beta activation_situ_linear_beta attention_method attention_multiplier "
     "attention_value_scale attn_logit_softcapping compress_rope_theta embedding_multiplier "
     "final_logit_softcapping full_attn_alpha_factor full_attn_beta_factor hc_eps "
     "hc_sinkhorn_iters hidden_act "
     "hidden_activation indexer_rope_interleave initial_context_length layer_norm_eps "
     "layer_norm_epsilon layernorm_epsilon linear_attn_alpha_factor linear_attn_beta_factor "
     "latent_moe_use_norm logits_scaling mamba_hidden_act mla_scale_kv_lora mla_scale_q_lora "
     "mla_use_nope mlp_alpha_factor mlp_beta_factor mlp_hidden_act moe_renormalize "
     "moe_router_activation_func moe_router_scaling_factor moe_router_use_sigmoid norm_eps "
     "norm_topk_prob norm_type original_max_position_embeddings partial_rotary_factor qk_norm "
     "qk_norm_type query_pre_attn_scalar residual_in_fp32 residual_multiplier rms_norm_eps "
     "rope_interleave rope_parameters rope_scaling rope_theta rotary_dim route_norm "
     "routed_scaling_factor router_activation_func router_dtype router_scaling_factor "
     "score_function scoring_func swa_rope_theta swiglu_alpha swiglu_limit swiglu_limits "
     "time_step_floor time_step_limit time_step_max time_step_min topk_method use_gemma_norm "
     "use_grouped_topk "
     "use_qk_norm use_rmsnorm "},
    {"biases, sinks, gates of one number: below a thousandth of a layer",
     " add_full_attention_sink_bias add_swa_attention_sink_bias attention_bias "
     "attn_res_block_size lm_head_bias moe_router_enable_expert_bias mamba_proj_bias mlp_bias "
     "qkv_bias use_bias use_conv_bias use_head_wise_attn_gate use_moe_router_bias use_qkv_bias "
     "use_expert_bias use_routing_bias "},
    {"drafts are what an experiment's \"speculative\" says",
     " mtp_hybrid_override_pattern mtp_layer_types mtp_sliding_windows mtp_transformer_layers "
     "mtp_use_dedicated_embeddings use_mtp "},
    {"experts by token id are drawn like the others'; inputs that are no text",
     " num_hash_layers use_bidirectional_attention vocab_size_per_layer_input "},
};

/// Keys that a family's rules or its other keys say already; in other families they may matter.
struct SaidElsewhere {
  std::string_view key;
  std::string_view families;  ///< model types, each between spaces
};
constexpr SaidElsewhere said_elsewhere[] = {
    {"attention_chunk_size", " mimo_v2 mimo_v2_flash "},
    {"attn_type_list", " minimax_m2 "},
    {"attn_output_gate", " qwen3_5_moe_text qwen3_5_text "},
    {"block_size", " minimax minimax_m1 minimax_text_01 "},
    {"chunk_size", " nemotron_h "},
    {"cla_share_factor", " hunyuan_v1_moe "},
    {"expand", " nemotron_h "},
    {"expert_dtype", " deepseek_v4 "},
    {"expert_hidden_dim", " hy_v3 "},
    {"experts_per_token", " gpt_oss "},
    {"first_k_dense_replace", " minimax_m3 "},
    {"head_dim", " axk2 glm4_moe_lite glm_moe_dsa kimi_linear "},
    {"intermediate_size", " minimax_m3 "},
    {"mamba_d_head", " granitemoehybrid "},
    {"mamba_ssm_cache_dtype", " nemotron_h "},
    {"mamba_ssm_dtype", " qwen3_5_moe_text qwen3_5_text "},
    {"max_window_layers", " qwen2_moe qwen3_moe "},
    {"moe_layer_freq", " kimi_linear "},
    {"n_shared_experts", " step3p7 "},
    {"num_key_value_heads",
     " axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 glm4_moe_lite "
     "glm_moe_dsa kimi_k2 "
     "kimi_linear longcat_flash mistral4 "},
    {"parallel_attn_mlp_res", " arctic "},
    {"qk_head_dim", " bailing_hybrid glm_moe_dsa "},
    {"sliding_window_pattern", " exaone_moe "},
    {"sliding_window_size", " mimo_v2 mimo_v2_flash "},
    {"use_mixed_mlp_moe", " hunyuan_v1_moe "},
    {"zero_expert_type", " longcat_flash "},
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
    {"per_layer_config", "layers that differ one by one are"},
    {"num_kv_shared_layers", "layers that share a KV cache are"},
    {"use_cla", "layers that share a KV cache are"},
    {"use_double_wide_mlp", "FFNs of twice the width in layers that share a KV cache are"},
};

bool is_off(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

// True if a text has a name between spaces.
bool has(std::string_view names, std::string_view name) {
  return names.find(fmt::format(" {} ", name)) != names.npos;
}

bool is_harmless(std::string_view key, std::string_view family) {
  return std::ranges::any_of(harmless, [&](const Harmless& of) { return has(of.keys, key); }) ||
         std::ranges::any_of(said_elsewhere, [&](const SaidElsewhere& said) {
           return said.key == key && has(said.families, family);
         });
}

}  // namespace

std::vector<std::string> unknown_hf_keys(const ConfigReader& r, std::string_view family) {
  std::vector<std::string> unknown;
  for (const std::string& key : r.unread()) {
    const Json& value = r.node().json().at(key);
    if (is_off(value)) continue;
    for (const Refused& switched : refused)
      if (switched.key == key)
        r.node().child(key).fail("{} not modelled; switched off would be right", switched.why);
    if (!is_harmless(key, family)) unknown.push_back(key);
  }
  return unknown;
}

}  // namespace moesim
