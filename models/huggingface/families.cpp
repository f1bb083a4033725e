// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/exceptions.hpp"
#include "models/huggingface/family.hpp"
#include "models/huggingface/layers.hpp"
#include "models/mixers/grouped.hpp"
#include "models/mixers/keys.hpp"
#include "models/mixers/latent.hpp"

namespace moesim {

namespace {

// ---- which mixer ----

MixerPtr grouped(ConfigReader& r, int hidden) { return mixer(hf_grouped(r, hidden)); }
MixerPtr latent(ConfigReader& r, int) { return mixer(hf_latent(r)); }
MixerPtr sparse_latent(ConfigReader& r, int) { return mixer(hf_sparse_latent(r)); }
// The smallest DeepSeek-VL2 has no latent.
MixerPtr latent_if_used(ConfigReader& r, int hidden) {
  const bool unused = present(r, "use_mla") && !r.flag("use_mla");
  return unused ? grouped(r, hidden) : latent(r, hidden);
}
MixerPtr latent_if_said(ConfigReader& r, int hidden) {
  return present(r, "kv_lora_rank") ? latent(r, hidden) : grouped(r, hidden);
}
MixerPtr gated(ConfigReader& r, int hidden) {
  GroupedAttention a = hf_grouped(r, hidden);
  a.output_gate = true;
  return mixer(a);
}
MixerPtr jointly_normed(ConfigReader& r, int hidden) {
  GroupedAttention a = hf_grouped(r, hidden);
  a.joint_qk_norm = true;
  return mixer(a);
}

// ---- which keys; families of the same keys share a layout ----

constexpr HfNumber of_moe = needed("moe_intermediate_size");
constexpr HfNumber of_any = needed("intermediate_size");
constexpr HfNumber of_any_if_said = usually("intermediate_size", 0);
constexpr HfNumber first_k_dense = or_null("first_k_dense_replace");

constexpr HfLayout afmoe{.attention = gated,
                         .experts = needed("num_experts"),
                         .width = of_moe,
                         .shared = usually("num_shared_experts", 0),
                         .dense_width = of_any_if_said,
                         .groups = "n_group",
                         .moe = {.first = usually("num_dense_layers", 1)},
                         .windows = afmoe_windows};
constexpr HfLayout arctic{.attention = grouped,
                          .experts = needed("num_local_experts"),
                          .width = of_any,
                          .exceptions = arctic_residual};
constexpr HfLayout aria{.attention = grouped,
                        .experts = needed("moe_num_experts"),
                        .width = of_any,
                        .per_token = needed("moe_topk"),
                        .shared = usually("moe_num_shared_experts", 2)};
// Ling and Ring.
constexpr HfLayout bailing{
    .attention = latent_if_said,
    .experts = needed("num_experts"),
    .width = of_moe,
    .shared = usually("num_shared_experts", 0),
    .shared_width = usually("moe_shared_expert_intermediate_size", as_experts),
    .dense_width = of_any,
    .groups = "n_group",
    .moe = {.first = usually("first_k_dense_replace", 0)},
    .exceptions = bailing_lightning};
// Command A+ and North.
constexpr HfLayout cohere{.attention = grouped,
                          .experts = needed("num_experts"),
                          .width = of_any,
                          .shared = usually("num_shared_experts", 0),
                          .dense_width = usually("prefix_dense_intermediate_size", 0),
                          .moe = {.first = usually("first_k_dense_replace", 0)},
                          .windows = cohere_windows};
constexpr HfLayout dbrx{.exceptions = dbrx_parts};
// Its width of shared experts is of all of them.
constexpr HfLayout param2 =
    bailing.but(&HfLayout::shared_width, always(as_experts))
        .but(&HfLayout::shared, usually("num_shared_experts", 1))
        .but(&HfLayout::moe, MoeLayers{.first = usually("first_k_dense_replace", 1)});
// DeepSeek's way to write experts, shared by Kimi and GLM.
constexpr MoeLayers deepseek_layers{.first = whole_of("first_k_dense_replace"),
                                    .step = usually("moe_layer_freq", 1)};
constexpr HfLayout deepseek{.attention = latent_if_used,
                            .experts = needed("n_routed_experts"),
                            .width = of_moe,
                            .shared = or_null("n_shared_experts"),
                            .dense_width = of_any,
                            .groups = "n_group",
                            .moe = deepseek_layers};
constexpr HfLayout deepseek_sparse = deepseek.but(&HfLayout::attention, sparse_latent)
                                         .but(&HfLayout::exceptions, read_shared_indexers);
constexpr HfLayout deepseek_v4{.experts = needed("n_routed_experts"),
                               .width = of_moe,
                               .shared = or_null("n_shared_experts"),
                               .exceptions = deepseek_v4_layers};
constexpr HfLayout glm = deepseek.but(&HfLayout::attention, grouped);
constexpr HfLayout dots = glm.but(&HfLayout::moe, MoeLayers{.first = first_k_dense});
constexpr HfLayout ernie{.attention = grouped,
                         .experts = needed("moe_num_experts"),
                         .width = of_moe,
                         .per_token = needed("moe_k"),
                         .shared = usually("moe_num_shared_experts", 0),
                         .dense_width = of_any,
                         .exceptions = ernie_layers};
constexpr HfLayout hy3{.attention = grouped,
                       .experts = needed("num_experts"),
                       .width = of_moe,
                       .shared = usually("num_shared_experts", 0),
                       .dense_width = of_any_if_said,
                       .groups = "n_group",
                       .moe = {.first = usually("first_k_dense_replace", 1)}};
constexpr HfLayout exaone = hy3.but(&HfLayout::windows, exaone_windows);
constexpr HfLayout gemma4{.exceptions = gemma4_parts};
constexpr HfLayout granite{.attention = grouped,
                           .experts = needed("num_local_experts"),
                           .width = of_any,
                           .shared = always(1),
                           .shared_width = usually("shared_intermediate_size", 0)};
// Granite 4: Mamba-2 in the layers that layer_types says, experts in every layer.
constexpr HfLayout granite_hybrid = granite.but(&HfLayout::exceptions, granite_mamba);
// Grok-1, and Grok-2 with a dense FFN beside the experts of every layer.
constexpr HfLayout grok{.attention = grouped,
                        .experts = needed("num_local_experts", "num_experts"),
                        .width = needed("moe_intermediate_size", "intermediate_size"),
                        .dense_width = of_any,
                        .exceptions = grok_residual};
constexpr HfLayout hunyuan{.exceptions = hunyuan_parts};
constexpr HfLayout inkling{.experts = needed("n_routed_experts"),
                           .width = needed("moe_intermediate_size", "intermediate_size"),
                           .shared = usually("n_shared_experts", 0),
                           .moe = {.first = usually("dense_mlp_idx", 0)},
                           .exceptions = inkling_layers};
constexpr HfLayout jamba{.attention = grouped,
                         .experts = needed("num_experts"),
                         .width = of_any,
                         .dense_width = of_any,
                         .exceptions = jamba_layers};
// Kimi Linear: experts that see a projection of the hidden state.
constexpr HfLayout kimi_linear{.attention = kimi_latent,
                               .experts = needed("num_experts"),
                               .width = of_moe,
                               .per_token = needed("num_experts_per_token"),
                               .expert_hidden = usually("routed_expert_hidden_size", 0),
                               .shared = usually("num_shared_experts", 0),
                               .dense_width = of_any,
                               .groups = "num_expert_group",
                               .moe = {.first = first_k_dense},
                               .exceptions = kimi_delta_nets};
constexpr HfLayout laguna{.experts = needed("num_experts"),
                          .width = of_moe,
                          .shared = always(1),
                          .shared_width = usually("shared_expert_intermediate_size", 0),
                          .dense_width = of_any_if_said,
                          .moe = {.first = always(1)},
                          .exceptions = laguna_heads};
constexpr HfLayout llama{.attention = grouped, .dense_width = of_any};
constexpr HfLayout llama4{.attention = grouped,
                          .experts = needed("num_local_experts"),
                          .width = of_any,
                          .shared = always(1),
                          .dense_width = usually("intermediate_size_mlp", 0),
                          .moe = {.step = usually("interleave_moe_layer_step", 1), .ahead = 1},
                          .windows = chunk_with_positions};
constexpr HfLayout lfm2{.attention = grouped,
                        .experts = needed("num_experts"),
                        .width = of_moe,
                        .dense_width = of_any,
                        .moe = {.first = usually("num_dense_layers", 2)},
                        .exceptions = lfm_layers};
constexpr HfLayout longcat{.attention = latent, .exceptions = longcat_layers};
constexpr HfLayout mimo{.experts = needed("n_routed_experts"),
                        .width = of_moe,
                        .shared = usually("n_shared_experts", 0),
                        .dense_width = of_any,
                        .groups = "n_group",
                        .exceptions = mimo_layers};
// MiniMax-Text-01 and M1.
constexpr HfLayout minimax_lightning = granite.but(&HfLayout::exceptions, minimax_lightning_layers);
constexpr HfLayout minimax_m3{.attention = minimax_sparse,
                              .experts = needed("num_local_experts"),
                              .width = needed("moe_intermediate_size", "intermediate_size"),
                              .shared = or_null("n_shared_experts"),
                              .shared_width = usually("shared_intermediate_size", as_experts),
                              .dense_width = usually("dense_intermediate_size", 0),
                              .exceptions = minimax_m3_layers};
constexpr HfLayout mistral = llama.but(&HfLayout::windows, window_everywhere);
constexpr HfLayout mixtral{.attention = grouped,
                           .experts = needed("num_local_experts"),
                           .width = of_any,
                           .windows = window_everywhere};
constexpr HfLayout minimax_m2 =
    mixtral.but(&HfLayout::attention, jointly_normed).but(&HfLayout::windows, nullptr);
constexpr HfLayout gpt_oss = mixtral.but(&HfLayout::windows, window_in_turn);
constexpr HfLayout nemotron{.attention = grouped, .exceptions = nemotron_parts};
constexpr HfLayout olmoe{.attention = grouped, .experts = needed("num_experts"), .width = of_any};
constexpr HfLayout phimoe = mixtral.but(&HfLayout::windows, phimoe_window);
// transformers 5 saves the first name.
constexpr HfNumber qwen_experts = needed("num_local_experts", "num_experts");
constexpr HfLayout qwen = llama.but(&HfLayout::windows, window_if_used);
constexpr HfLayout qwen_moe{.attention = grouped,
                            .experts = qwen_experts,
                            .width = of_moe,
                            .shared = always(1),
                            .shared_width = usually("shared_expert_intermediate_size", 0),
                            .dense_width = of_any_if_said,
                            .moe = {.step = usually("decoder_sparse_step", 1), .ahead = 1},
                            .windows = window_if_used,
                            .exceptions = qwen_dense_layers};
constexpr HfLayout qwen_next =
    qwen_moe.but(&HfLayout::attention, gated).but(&HfLayout::exceptions, qwen_delta_nets);
constexpr HfLayout qwen_next_dense =
    qwen.but(&HfLayout::attention, gated).but(&HfLayout::exceptions, qwen_delta_nets);
constexpr HfLayout smallthinker{.attention = grouped,
                                .experts = needed("moe_num_primary_experts"),
                                .width = needed("moe_ffn_hidden_size"),
                                .per_token = needed("moe_num_active_primary_experts"),
                                .windows = smallthinker_windows};
constexpr HfLayout solar{.attention = grouped,
                         .experts = needed("n_routed_experts"),
                         .width = of_moe,
                         .shared = or_null("n_shared_experts"),
                         .groups = "n_group"};
constexpr HfLayout step{.attention = step_attention,
                        .experts = needed("moe_num_experts", "num_experts"),
                        .width = of_moe,
                        .per_token = needed("moe_top_k", "num_experts_per_tok"),
                        .shared = always(1),
                        .shared_width = needed("share_expert_dims", "share_expert_dim"),
                        .dense_width = of_any,
                        .exceptions = step_layers};

constexpr HfLayout step3{.attention = step3_attention,
                         .experts = needed("moe_num_experts"),
                         .width = of_moe,
                         .per_token = needed("moe_top_k"),
                         .shared = always(1),
                         .shared_width = needed("share_expert_dim"),
                         .dense_width = of_any,
                         .exceptions = step_layers};

constexpr HfFamily families[] = {
    HfFamily{"afmoe", "AfmoeForCausalLM", &afmoe},
    HfFamily{"arctic", "ArcticForCausalLM", &arctic},
    HfFamily{"aria_text", "AriaForConditionalGeneration", &aria},
    HfFamily{"axk1", "AXK1ForCausalLM", &deepseek},
    HfFamily{"axk2", "AXK2ForCausalLM", &deepseek_sparse},
    HfFamily{"bailing_hybrid", "BailingMoeV2_5ForCausalLM", &bailing},
    HfFamily{"bailing_moe", "BailingMoeForCausalLM", &bailing},
    HfFamily{"bailing_moe_linear", "BailingMoeLinearV2ForCausalLM", &bailing},
    HfFamily{"bailing_moe_v2", "BailingMoeV2ForCausalLM", &bailing},
    HfFamily{"cohere2_moe", "Cohere2MoeForCausalLM", &cohere},
    HfFamily{"dbrx", "DbrxForCausalLM", &dbrx},
    HfFamily{"deepseek", "DeepseekForCausalLM", &glm},
    HfFamily{"deepseek_v2", "DeepseekV2ForCausalLM", &deepseek, "deepseek_v2_lite"},
    HfFamily{"deepseek_v3", "DeepseekV3ForCausalLM", &deepseek, "deepseek_r1"},
    HfFamily{"deepseek_v32", "DeepseekV32ForCausalLM", &deepseek_sparse, "deepseek_r1"},
    HfFamily{"deepseek_v4", "DeepseekV4ForCausalLM", &deepseek_v4},
    HfFamily{"dots1", "Dots1ForCausalLM", &dots},
    HfFamily{"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", &ernie},
    HfFamily{"exaone_moe", "ExaoneMoEForCausalLM", &exaone},
    HfFamily{"flex_olmo", "FlexOlmoForCausalLM", &olmoe},
    HfFamily{"gemma4_text", "Gemma4ForConditionalGeneration", &gemma4, "gemma4"},
    HfFamily{"glm4_moe", "Glm4MoeForCausalLM", &glm},
    HfFamily{"glm4_moe_lite", "Glm4MoeLiteForCausalLM", &deepseek},
    HfFamily{"glm4v_moe_text", "Glm4vMoeForConditionalGeneration", &glm},
    HfFamily{"glm_moe_dsa", "GlmMoeDsaForCausalLM", &deepseek_sparse},
    HfFamily{"gpt_oss", "GptOssForCausalLM", &gpt_oss, "gpt_oss"},
    HfFamily{"granitemoe", "GraniteMoeForCausalLM", &granite},
    HfFamily{"granitemoehybrid", "GraniteMoeHybridForCausalLM", &granite_hybrid},
    HfFamily{"granitemoeshared", "GraniteMoeSharedForCausalLM", &granite},
    HfFamily{"grinmoe", "GRINMoEForCausalLM", &phimoe},
    HfFamily{"grok-1", "Grok1ForCausalLM", &grok},
    HfFamily{"grok-1", "Grok1ModelForCausalLM", &grok},
    HfFamily{"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", &hunyuan},
    HfFamily{"hy_v3", "HYV3ForCausalLM", &hy3},
    HfFamily{"inkling_text", "InklingForConditionalGeneration", &inkling},
    HfFamily{"jamba", "JambaForCausalLM", &jamba},
    HfFamily{"kimi_k2", "DeepseekV3ForCausalLM", &deepseek},
    HfFamily{"kimi_linear", "KimiLinearForCausalLM", &kimi_linear},
    HfFamily{"laguna", "LagunaForCausalLM", &laguna},
    HfFamily{"lfm2_moe", "Lfm2MoeForCausalLM", &lfm2},
    HfFamily{"llama", "LlamaForCausalLM", &llama},
    HfFamily{"llama4_text", "Llama4ForConditionalGeneration", &llama4},
    HfFamily{"longcat_flash", "LongcatFlashForCausalLM", &longcat},
    HfFamily{"mellum", "MellumForCausalLM", &qwen_moe},
    HfFamily{"mimo_v2", "MiMoV2ForCausalLM", &mimo},
    HfFamily{"mimo_v2_flash", "MiMoV2FlashForCausalLM", &mimo},
    HfFamily{"minimax", "MiniMaxForCausalLM", &minimax_lightning},
    HfFamily{"minimax_m1", "MiniMaxM1ForCausalLM", &minimax_lightning},
    HfFamily{"minimax_m2", "MiniMaxM2ForCausalLM", &minimax_m2},
    HfFamily{"minimax_m3", "MiniMaxM3ForCausalLM", &minimax_m3},
    HfFamily{"minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", &minimax_m3},
    HfFamily{"minimax_m3_vl_text", "MiniMaxM3VLForConditionalGeneration", &minimax_m3},
    HfFamily{"minimax_text_01", "MiniMaxText01ForCausalLM", &minimax_lightning},
    HfFamily{"mistral", "MistralForCausalLM", &mistral},
    HfFamily{"mistral4", "Mistral4ForCausalLM", &deepseek},
    HfFamily{"mixtral", "MixtralForCausalLM", &mixtral, "mixtral"},
    HfFamily{"nemotron_h", "NemotronHForCausalLM", &nemotron},
    HfFamily{"olmoe", "OlmoeForCausalLM", &olmoe, "olmoe"},
    HfFamily{"pangu_pro_moe", "PanguProMoEForCausalLM", &qwen_moe},
    HfFamily{"param2moe", "Param2MoEForCausalLM", &param2},
    HfFamily{"phimoe", "PhiMoEForCausalLM", &phimoe},
    HfFamily{"qwen2", "Qwen2ForCausalLM", &qwen},
    HfFamily{"qwen2_moe", "Qwen2MoeForCausalLM", &qwen_moe},
    HfFamily{"qwen3", "Qwen3ForCausalLM", &qwen},
    HfFamily{"qwen3_5_moe_text", "Qwen3_5MoeForConditionalGeneration", &qwen_next},
    HfFamily{"qwen3_5_text", "Qwen3_5ForConditionalGeneration", &qwen_next_dense},
    HfFamily{"qwen3_moe", "Qwen3MoeForCausalLM", &qwen_moe, "qwen3"},
    HfFamily{"qwen3_next", "Qwen3NextForCausalLM", &qwen_next},
    HfFamily{"qwen3_omni_moe_text", "Qwen3OmniMoeForConditionalGeneration", &qwen_moe, "qwen3"},
    HfFamily{"qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration", &qwen_moe, "qwen3"},
    HfFamily{"sarvam_mla", "SarvamMLAForCausalLM", &bailing},
    HfFamily{"sarvam_moe", "SarvamMoEForCausalLM", &bailing},
    HfFamily{"smallthinker", "SmallThinkerForCausalLM", &smallthinker},
    HfFamily{"solar_open", "SolarOpenForCausalLM", &solar},
    HfFamily{"step3_text", "Step3TextForCausalLM", &step3},
    HfFamily{"step3p5", "Step3p5ForCausalLM", &step},
    HfFamily{"step3p7", "Step3p7FlashForCausalLM", &step},
};

constexpr std::string_view encoder_decoder =
    "encoder and decoder with cross attention are not modelled";
constexpr std::string_view two_kinds =
    "experts of two sizes, for text and for images, are not modelled";
constexpr HfRefusal refusals[] = {
    HfRefusal{"doge", "DogeForCausalLM",
              "Doge's retrieval of experts by product keys is not modelled"},
    HfRefusal{"ernie4_5_moe_vl", "Ernie4_5_VLMoeForConditionalGeneration", two_kinds},
    HfRefusal{"ernie4_5_vl_moe_text", "Ernie4_5_VL_MoeForConditionalGeneration", two_kinds},
    HfRefusal{"hunyuan", "HunYuanForCausalLM",
              "Hunyuan-Large's layers that share a KV cache (\"use_cla\") are not modelled"},
    HfRefusal{"jetmoe", "JetMoeForCausalLM",
              "JetMoE's experts of attention (mixture of attention heads) are not modelled"},
    HfRefusal{"longcat_flash_ngram", "LongcatFlashNgramForCausalLM",
              "embeddings of n-grams are not modelled"},
    HfRefusal{"nllb-moe", "NllbMoeForConditionalGeneration", encoder_decoder},
    HfRefusal{"switch_transformers", "SwitchTransformersForConditionalGeneration", encoder_decoder},
};

}  // namespace

std::span<const HfFamily> hf_families() { return families; }
std::span<const HfRefusal> hf_refusals() { return refusals; }

}  // namespace moesim
