// SPDX-License-Identifier: Apache-2.0
// Does a model read from its file hold the parameters, bytes and operations that its authors and a
// pencil say it does?
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>

#include "hardware/kernels/compressed_attention.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/rng.hpp"
#include "models/launches.hpp"
#include "models/memory.hpp"
#include "models/mixers/grouped.hpp"
#include "models/mixers/short_convolution.hpp"
#include "models/mixers/state_space.hpp"
#include "models/moe_model.hpp"
#include "models/step_ops.hpp"
#include "tests/support.hpp"

namespace moesim::test_models {
namespace {

using Catch::Matchers::Contains;
using namespace test;

MoeModel read(const Json& json) { return read_model(config(json.dump())); }
std::string error_of(const Json& json) {
  return config_error([&] { read(json); });
}

MoeModel zoo(const std::string& name) {
  return read_model(ConfigNode::from_file(source_dir() / "models" / "zoo" / (name + ".json")));
}

// A GPU whose kernels start at once and reach their peaks: 1 TB/s, 1 TFLOP/s in bf16, 2 in fp8.
GpuSpec plain_gpu() {
  GpuSpec gpu;
  gpu.name = "plain";
  gpu.sms = 1;
  gpu.hbm_capacity = Bytes(1e12);
  gpu.hbm_bandwidth = BytesPerSecond(1e12);
  gpu.l2_capacity = Bytes(1e12);
  gpu.l2_bandwidth = BytesPerSecond(1e18);
  gpu.smem_per_sm = Bytes(1e6);
  gpu.smem_bandwidth = BytesPerSecond(1e18);
  gpu.dense_peak = {{Precision::bf16, FlopsPerSecond(1e12)},
                    {Precision::fp8, FlopsPerSecond(2e12)}};
  for (const Kernel* kernel : kernels()) {
    if (!kernel->has_own(Law::roofline)) continue;
    gpu.kernels[kernel] = {.launch = Seconds(0),
                           .bandwidth_share = 1,
                           .peak_share = {{Precision::bf16, 1.0}},
                           .source = ""};
  }
  return gpu;
}

const Operation& find(const std::vector<Operation>& operations, std::string_view name) {
  const auto found = std::find_if(operations.begin(), operations.end(),
                                  [&](const Operation& op) { return op.name == name; });
  REQUIRE(found != operations.end());
  return *found;
}

// All operations of a mixer, those of a decode step's absorption before the core.
std::vector<Operation> all_of(const Mixer& mixer, const MixerShard& shard,
                              const std::vector<SequenceWork>& sequences) {
  double tokens = 0;
  for (const SequenceWork& sequence : sequences) tokens += sequence.new_tokens;
  std::vector<Operation> out;
  mixer.input(shard, tokens, out);
  mixer.absorption(shard, decode_queries(sequences), out);
  mixer.core(shard, sequences, out);
  mixer.output(shard, tokens, out);
  return out;
}

std::vector<Operation> attention(const MoeModel& model, const ParallelPlan& plan,
                                 const std::vector<SequenceWork>& sequences,
                                 const PrecisionPlan& precision = {}, std::size_t layer = 0) {
  return all_of(*model.layers.at(layer).mixer, {model.hidden, plan, precision, plain_gpu()},
                sequences);
}

int window_of(const LayerSpec& layer) { return layer.mixer->sight().window; }
Kept kept(const LayerSpec& layer, int tp = 1, Precision cache = Precision::bf16) {
  return layer.mixer->kept({.tp = tp}, {.kv_cache = cache});
}
double parameters(const MoeModel& model, std::size_t layer) {
  return model.layers.at(layer).mixer->parameters(model.hidden, {});
}
// Of the state in numbers of two bytes as the convolution's, and of none.
double state_numbers(const MixerPtr& mixer, int tp = 1) {
  return mixer->kept({.tp = tp}, {.state_bytes = 4}).state_bytes / 2 -
         mixer->kept({.tp = tp}, {.state_bytes = 2}).state_bytes / 2;
}
double convolved_numbers(const MixerPtr& mixer, int tp = 1) {
  return mixer->kept({.tp = tp}, {.state_bytes = 0}).state_bytes / 2;
}

// ---- the zoo ----

struct Published {
  std::string file;
  double total;  // as the authors write it
  double active;
  double last_digit;    // the unit of the last digit of `active`
  double not_modelled;  // in their total, but no part of generating text
};

// Total within 1 %; active within 3 % or half a unit of its last digit. Which embeddings count as
// active is the authors' choice and stands in the file as "active_counts"; gpt-oss and GLM-4.5
// state their rule, for the others it is the one that fits their figure:
//   both tables  Qwen3, Qwen3.5, Mixtral, Llama, OLMoE
//   LM head      DeepSeek, Kimi, gpt-oss, MiniMax, Arctic, Step-3
//   neither      GLM, Qwen3-Next
const std::vector<Published>& published() {
  static const std::vector<Published> table{
      {"qwen3_30b_a3b", 30.5e9, 3.3e9, 1e8, 0},
      {"qwen3_235b_a22b", 235e9, 22e9, 1e9, 0},
      {"qwen3_coder_480b", 480e9, 35e9, 1e9, 0},
      {"deepseek_v3", 671e9, 37e9, 1e9, 0},
      {"deepseek_v2_lite", 15.7e9, 2.4e9, 1e8, 0},
      {"kimi_k2", 1026.5e9, 32e9, 1e9, 0},
      {"mixtral_8x7b", 46.7e9, 12.9e9, 1e8, 0},
      {"mixtral_8x22b", 141e9, 39e9, 1e9, 0},
      {"gpt_oss_20b", 20.91e9, 3.61e9, 1e7, 0},
      {"gpt_oss_120b", 116.83e9, 5.13e9, 1e7, 0},
      {"minimax_m2_5", 230e9, 10e9, 1e9, 0},
      {"arctic", 480e9, 17e9, 1e9, 0},
      {"glm_4_5_air", 106e9, 12e9, 1e9, 0},
      {"glm_4_6", 355e9, 32e9, 1e9, 0},
      {"llama_4_scout", 109e9, 17e9, 1e9, 0.87e9},  // the vision encoder
      {"olmoe_1b_7b", 6.9e9, 1.3e9, 1e8, 0},
      {"llama_3_1_8b", 8.03e9, 8.03e9, 1e7, 0},
      {"llama_3_3_70b", 70.6e9, 70.6e9, 1e8, 0},
      {"qwen3_32b", 32.8e9, 32.8e9, 1e8, 0},
      {"kimi_k2_5", 1026.5e9, 32e9, 1e9, 0},
      {"llama_4_maverick", 400e9, 17e9, 1e9, 0},
      {"qwen3_5_397b_a17b", 397e9, 17e9, 1e9, 0},
      {"qwen3_next_80b_a3b", 80e9, 3e9, 1e9, 0},
      {"glm_5", 744e9, 40e9, 1e9, 0},
      {"glm_5_2", 753e9, 39e9, 1e9, 9.95e9},  // the MTP layer
      {"kimi_k3", 2.8e12, 104e9, 1e9, 0},
      {"deepseek_v3_2", 671e9, 37e9, 1e9, 0},
      {"deepseek_v4_flash", 284e9, 13e9, 1e9, 0},
      {"deepseek_v4_pro", 1573e9, 49e9, 1e9, 0},
      {"step3", 316e9, 38e9, 1e9, 0},
  };
  return table;
}

TEST_CASE("every model of the zoo has the parameters its authors publish") {
  for (const Published& row : published()) {
    CAPTURE(row.file);
    const MoeModel model = zoo(row.file);
    CHECK(model.published_total == row.total);
    CHECK(model.published_active == row.active);
    CHECK_FALSE(model.source.empty());
    CHECK_THAT(count_parameters(model).total + row.not_modelled, WithinRel(row.total, 0.01));
    CHECK_THAT(active_as_published(model),
               WithinAbs(row.active, std::max(0.03 * row.active, row.last_digit / 2)));
  }
}

TEST_CASE("the table of published parameters names every file of the zoo") {
  std::set<std::string> listed;
  for (const Published& row : published()) listed.insert(row.file + ".json");
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "models" / "zoo"))
    files.insert(entry.path().filename().string());
  CHECK(files == listed);
}

TEST_CASE(
    "a dense layer and a shared expert are counted once, routed experts k times when active") {
  // hidden 4, vocabulary 10, 2 heads of 2 with 1 KV head: attention 4*(2*4 + 2*2) = 48, norms 8.
  // MoE layer: gate 4*6, experts of 3*4*5 = 60, shared 3*4*3 = 36. Dense layer: 3*4*7 = 84.
  // everywhere = 2*(48 + 8) + 24 + 36 + 84 + 4 (final norm) = 260.
  const MoeModel model = read_model(config(R"({
    "name": "tiny", "source": "made up", "hidden": 4, "vocabulary": 10, "tied_embeddings": false,
    "attention": {"query_heads": 2, "kv_heads": 1, "head_dim": 2},
    "experts": {"count": 6, "per_token": 2, "width": 5, "shared_width": 3}, "dense_width": 7,
    "layers": [{"repeat": 1, "pattern": [{"ffn": "dense"}, {"ffn": "moe"}]}]})"));
  CHECK(count_parameters(model).total == 260 + 6 * 60 + 2 * 40);
  CHECK(count_parameters(model).active == 260 + 2 * 60 + 40);
}

// ---- HuggingFace files ----

// What the zoo adds to a config.json.
MoeModel without_origin(MoeModel model) {
  model.name = model.source = "";
  model.published_total = model.published_active = 0;
  model.published_counts = ActiveCounts::lm_head;
  model.max_positions = 0;
  return model;
}

struct Twin {
  std::string file;
  std::string config_json;
};

TEST_CASE("a HuggingFace config.json reads as the same model as the zoo's file") {
  const auto twin = GENERATE(
      Twin{"qwen3_30b_a3b", R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
        "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "rope_scaling": null,
        "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
        "vocab_size": 151936})"},
      Twin{"deepseek_v3", R"({"architectures": ["DeepseekV3ForCausalLM"], "ep_size": 1,
        "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "scoring_func": "sigmoid",
        "tie_word_embeddings": false, "topk_group": 4, "v_head_dim": 128, "vocab_size": 129280,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})"},
      Twin{"deepseek_v2_lite", R"({"architectures": ["DeepseekV2ForCausalLM"],
        "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
        "kv_lora_rank": 512, "model_type": "deepseek_v2", "moe_intermediate_size": 1408,
        "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
        "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
        "vocab_size": 102400})"},
      Twin{"kimi_k2", R"({"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 1,
        "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
        "n_routed_experts": 384, "n_shared_experts": 1, "num_attention_heads": 64,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "topk_group": 1,
        "v_head_dim": 128, "vocab_size": 163840})"},
      Twin{"mixtral_8x7b", R"({"architectures": ["MixtralForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 14336, "model_type": "mixtral", "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "sliding_window": null, "tie_word_embeddings": false,
        "vocab_size": 32000})"},
      Twin{"gpt_oss_20b", R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true,
        "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
          "full_attention", "sliding_attention", "full_attention", "sliding_attention",
          "full_attention", "sliding_attention", "full_attention", "sliding_attention",
          "full_attention", "sliding_attention", "full_attention", "sliding_attention",
          "full_attention", "sliding_attention", "full_attention", "sliding_attention",
          "full_attention", "sliding_attention", "full_attention", "sliding_attention",
          "full_attention"],
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "sliding_window": 128, "tie_word_embeddings": false, "vocab_size": 201088,
        "quantization_config": {"quant_method": "mxfp4"}})"},
      Twin{"glm_4_5_air", R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true,
        "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 10944, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
        "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 96,
        "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "topk_group": 1, "vocab_size": 151552})"},
      Twin{"llama_4_scout", R"({"architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4", "vision_config": {"hidden_size": 1408}, "text_config": {
        "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
        "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
        "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
        "num_local_experts": 16, "tie_word_embeddings": false, "vocab_size": 202048}})"},
      Twin{"minimax_m2_5", R"({"architectures": ["MiniMaxM2ForCausalLM"], "head_dim": 128,
        "hidden_size": 3072, "intermediate_size": 1536, "model_type": "minimax_m2",
        "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
        "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3,
        "shared_intermediate_size": 0, "use_mtp": true, "vocab_size": 200064})"},
      Twin{"olmoe_1b_7b", R"({"architectures": ["OlmoeForCausalLM"], "hidden_size": 2048,
        "intermediate_size": 1024, "model_type": "olmoe", "num_attention_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "vocab_size": 50304})"},
      Twin{"arctic", R"({"architectures": ["ArcticForCausalLM"], "hidden_size": 7168,
        "intermediate_size": 4864, "model_type": "arctic", "moe_layer_frequency": 1,
        "num_attention_heads": 56, "num_experts_per_tok": 2, "num_hidden_layers": 35,
        "num_key_value_heads": 8, "num_local_experts": 128, "parallel_attn_mlp_res": true,
        "sliding_window": null, "use_residual": true, "vocab_size": 32000})"});
  CAPTURE(twin.file);
  CHECK(without_origin(read_model(config(twin.config_json))) == without_origin(zoo(twin.file)));
}

Json qwen3_moe() {
  return Json::parse(R"({"model_type": "qwen3_moe", "hidden_size": 64, "vocab_size": 100,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "intermediate_size": 128, "decoder_sparse_step": 1, "mlp_only_layers": []})");
}

std::vector<bool> moe_pattern(const MoeModel& model) {
  std::vector<bool> pattern;
  for (const LayerSpec& layer : model.layers) pattern.push_back(layer.moe);
  return pattern;
}

TEST_CASE("interleaved dense layers stand where the HuggingFace keys put them") {
  Json json = qwen3_moe();
  json["decoder_sparse_step"] = 2;
  CHECK(moe_pattern(read(json)) == std::vector<bool>{false, true, false, true});
  json["mlp_only_layers"] = {3};
  const MoeModel model = read(json);
  CHECK(moe_pattern(model) == std::vector<bool>{false, true, false, false});
  CHECK(model.dense_width == 128);

  // Llama-4-Maverick: experts in every second layer, the first is dense.
  const MoeModel maverick = read_model(config(R"({"model_type": "llama4_text", "hidden_size": 5120,
    "vocab_size": 202048, "num_hidden_layers": 4, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 1,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0]})"));
  CHECK(moe_pattern(maverick) == std::vector<bool>{false, true, false, true});
  CHECK(maverick.dense_width == 16384);
  CHECK(maverick.layers[2].mixer->sight() == Sight{.window = 8192, .chunked = true});
  CHECK(maverick.layers[3].mixer->sight() == Sight{});
}

TEST_CASE("windows follow layer_types, or the architecture's own rule without them") {
  Json json = qwen3_moe();
  json["sliding_window"] = 256;
  json["use_sliding_window"] = false;
  CHECK(window_of(read(json).layers.back()) == 0);
  json["use_sliding_window"] = true;
  json["max_window_layers"] = 3;
  CHECK(window_of(read(json).layers[2]) == 0);
  CHECK(window_of(read(json).layers[3]) == 256);
  json["model_type"] = "qwen3";  // dense, by the same rule
  CHECK(window_of(read(json).layers[2]) == 0);
  CHECK(window_of(read(json).layers[3]) == 256);
  json["model_type"] = "qwen3_moe";
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  CHECK(window_of(read(json).layers[0]) == 256);
  CHECK(window_of(read(json).layers[3]) == 0);
  json["sliding_windows"] = {4096, 0, 0, 0};  // K-EXAONE 2.0's
  CHECK(window_of(read(json).layers[0]) == 4096);
  json.erase("sliding_windows");
  json["layer_types"][1] = "linear_attention";
  CHECK_THAT(error_of(json),
             Contains("/layer_types/1: linear attention of this architecture is not modelled"));
  json["layer_types"] = {"full_attention", "full_attention"};
  CHECK_THAT(error_of(json), Contains("/layer_types: expected one entry per layer (4), found 2"));
}

TEST_CASE("Llama 4 says layer by layer where its chunks are, or every how many layers not") {
  Json json = Json::parse(R"({"model_type": "llama4_text", "hidden_size": 64, "vocab_size": 100,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 8, "num_experts_per_tok": 1, "intermediate_size": 32,
    "attention_chunk_size": 128, "no_rope_layers": [1, 0, 1, 1]})");
  const auto chunked = [&] {
    std::vector<bool> layers;
    for (const LayerSpec& layer : read(json).layers) layers.push_back(layer.mixer->sight().chunked);
    return layers;
  };
  CHECK(chunked() == std::vector<bool>{true, false, true, true});
  json["no_rope_layers"] = {1, 0, 1};
  CHECK_THAT(config_error([&] { chunked(); }),
             Contains("/no_rope_layers: expected one entry per layer (4), found 3"));
  json.erase("no_rope_layers");
  CHECK(chunked() == std::vector<bool>{true, true, true, false});
  json["no_rope_layer_interval"] = 2;
  CHECK(chunked() == std::vector<bool>{true, false, true, false});
}

TEST_CASE("a dense model has no experts and reads like any other") {
  // Llama-3.1-8B: 8.03 B parameters.
  const MoeModel llama = read_model(config(R"({"architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096, "intermediate_size": 14336, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": false, "vocab_size": 128256})"));
  CHECK(llama.moe_layers() == 0);
  CHECK(kept(llama.layers[0]).elements == 2 * 8 * 128);
  CHECK_THAT(count_parameters(llama).total, WithinRel(8.03e9, 0.001));
  // Mistral-7B-v0.1: 7.24 B, every layer looks back 4,096 tokens.
  const MoeModel mistral = read_model(config(R"({"architectures": ["MistralForCausalLM"],
    "hidden_size": 4096, "intermediate_size": 14336, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})"));
  CHECK_THAT(count_parameters(mistral).total, WithinRel(7.24e9, 0.001));
  for (const LayerSpec& layer : mistral.layers)
    CHECK(layer.mixer->sight() == Sight{.window = 4096});
  // Qwen3-8B: 8.19 B, a window that is not used.
  const MoeModel qwen = read_model(config(R"({"architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 36,
    "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "sliding_window": null, "tie_word_embeddings": false,
    "use_sliding_window": false, "vocab_size": 151936})"));
  CHECK_THAT(count_parameters(qwen).total, WithinRel(8.19e9, 0.001));
  for (const LayerSpec& layer : qwen.layers) CHECK(layer.mixer->sight() == Sight{});
}

TEST_CASE("a config.json without a model type is known by its architecture") {
  Json json = qwen3_moe();
  const MoeModel by_type = read(json);
  json.erase("model_type");
  json["architectures"] = {"Unheard", "Qwen3MoeForCausalLM"};
  CHECK(without_origin(read(json)) == without_origin(by_type));
  CHECK(without_origin(read({{"model_type", "x"}, {"language_config", json}})) ==
        without_origin(by_type));
  // Engines go by the class where a model type is of another family, and so is a refusal.
  json["model_type"] = "mixtral";
  CHECK(without_origin(read(json)) == without_origin(by_type));
  json["architectures"] = {"JetMoeForCausalLM"};
  CHECK_THAT(error_of(json), Contains("JetMoE's experts of attention"));
  json.erase("model_type");
  json["architectures"] = {"Unheard"};
  CHECK_THAT(error_of(json), Contains("unknown architecture \"Unheard\""));
}

TEST_CASE("transformers 5 saves some keys under other names") {
  Json json = qwen3_moe();
  json["num_local_experts"] = json.at("num_experts");
  json.erase("num_experts");
  CHECK(without_origin(read(json)) == without_origin(read(qwen3_moe())));
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const auto file = [](const char* folder) {
    return ConfigNode::from_file(shared_dir() / "data/models" / folder / "config.json").json();
  };
  const auto layers_of = [](const Json& of) { return read(of).layers; };
  Json glm = file("nvidia--GLM-5-NVFP4");
  const auto glm_layers = layers_of(glm);
  const auto glm_count = glm.at("num_hidden_layers").get<std::size_t>();
  glm["layer_types"] = std::vector<std::string>(glm_count, "indexed_attention");
  CHECK(layers_of(glm) == glm_layers);
  // MiniMax-M3: the indexer's keys in the open, its layers by name.
  const Json whole = file("MiniMaxAI--MiniMax-M3");
  Json flat = whole.contains("text_config") ? whole.at("text_config") : whole;
  const Json sparse = flat.at("sparse_attention_config"), moe = flat.at("moe_layer_freq");
  for (const char* key : {"sparse_attention_config", "moe_layer_freq", "architectures"})
    flat.erase(key);
  flat["model_type"] = "minimax_m3_vl_text";
  flat["index_n_heads"] = sparse.at("sparse_num_index_heads");
  flat["index_head_dim"] = sparse.at("sparse_index_dim");
  flat["index_topk_blocks"] = sparse.at("sparse_topk_blocks");
  flat["index_block_size"] = sparse.at("sparse_block_size");
  for (std::size_t i = 0; i < flat.at("num_hidden_layers"); ++i) {
    flat["layer_types"].push_back(
        sparse.at("sparse_attention_freq").at(i) == 1 ? "minimax_m3_sparse" : "full_attention");
    flat["mlp_layer_types"].push_back(moe.at(i) == 1 ? "sparse" : "dense");
  }
  CHECK(layers_of({{"model_type", "minimax_m3_vl"}, {"text_config", flat}}) == layers_of(whole));
}

TEST_CASE("Gemma 4's layers that see everything have heads of their own, by key or by layer") {
  const Json keys = Json::parse(R"({"model_type": "gemma4_text", "hidden_size": 8, "vocab_size": 10,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"],
    "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 5,
    "intermediate_size": 6, "global_head_dim": 8, "num_global_key_value_heads": 1})");
  const MoeModel model = read(keys);
  CHECK(model.tied_embeddings);  // the class's default
  Json by_layer = keys;
  by_layer.erase("global_head_dim");
  by_layer.erase("num_global_key_value_heads");
  by_layer["per_layer_config"] = {{"01", {{"head_dim", 8}, {"num_key_value_heads", 1}}}};
  CHECK(read(by_layer).layers == model.layers);
  by_layer["per_layer_config"]["00"] = {{"head_dim", 2}};
  CHECK_THAT(error_of(by_layer), Contains("layers of more than two kinds are not modelled"));
  Json other = qwen3_moe();
  other["per_layer_config"] = {{"00", {{"head_dim", 2}}}};
  CHECK_THAT(error_of(other), Contains("layers that differ one by one are not modelled"));
}

TEST_CASE("a config.json is named as it says, else as its file, else as its folder") {
  const auto name_of = [](const Json& json, const char* file) {
    return read_model(ConfigNode(json, file)).name;
  };
  Json json = qwen3_moe();
  CHECK(name_of(json, "/models/small/config.json") == "small");
  CHECK(name_of(json, "/models/small.json") == "small");
  CHECK(name_of(json, "/hub/models--a--small/snapshots/1f2e/config.json") == "models--a--small");
  json["_name_or_path"] = "";
  CHECK(name_of(json, "/models/small.json") == "small");
  json["_name_or_path"] = "Qwen/Tiny";
  CHECK(name_of(json, "/models/small/config.json") == "Qwen/Tiny");
}

TEST_CASE("models with linear or sparse attention read from their config.json as from the zoo") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const auto hf = [](const char* folder) {
    return read_model(ConfigNode::from_file(shared_dir() / "data/models" / folder / "config.json"));
  };
  const auto same = [](const MoeModel& a, const MoeModel& b) {
    CHECK(a.layers == b.layers);
    CHECK(count_parameters(a).total == count_parameters(b).total);
  };
  same(hf("Qwen--Qwen3-Next-80B-A3B-Instruct"), zoo("qwen3_next_80b_a3b"));
  same(hf("deepseek-ai--DeepSeek-V3.2"), zoo("deepseek_v3_2"));
  same(hf("nvidia--GLM-5-NVFP4"), zoo("glm_5"));
  same(hf("moonshotai--Kimi-K2.5"), zoo("kimi_k2_5"));
  same(hf("moonshotai--Kimi-K3"), zoo("kimi_k3"));
  same(hf("meta-llama--Llama-4-Maverick-17B-128E-Instruct"), zoo("llama_4_maverick"));
  const MoeModel qwen = hf("Qwen--Qwen3.5-122B-A10B");
  CHECK(std::ranges::count_if(
            qwen.layers, [](const LayerSpec& layer) { return kept(layer).state_bytes > 0; }) == 36);
  CHECK_THAT(count_parameters(qwen).total, WithinRel(122e9, 0.01));
}

// config.json of 40 models of this year, and what their authors say of their parameters.
struct OfThisYear {
  std::string folder;
  double published = 0;  // 0: not said to the percent
};

TEST_CASE("the models of this year are read from their config.json") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const std::vector<OfThisYear> models{{"MiniMaxAI--MiniMax-M2.5", 230e9},
                                       {"MiniMaxAI--MiniMax-M3"},
                                       {"Qwen--Qwen3-235B-A22B", 235e9},
                                       {"Qwen--Qwen3-235B-A22B-FP8", 235e9},
                                       {"Qwen--Qwen3-Next-80B-A3B-Instruct", 80e9},
                                       {"Qwen--Qwen3-VL-235B-A22B-Instruct", 235e9},
                                       {"Qwen--Qwen3.5-122B-A10B", 122e9},
                                       {"Snowflake--snowflake-arctic-instruct", 480e9},
                                       {"XiaomiMiMo--MiMo-V2-Flash", 309e9},
                                       {"ai21labs--AI21-Jamba-1.5-Mini", 51.6e9},
                                       {"allenai--OLMoE-1B-7B-0924", 6.9e9},
                                       {"baidu--ERNIE-4.5-21B-A3B-PT", 21.8e9},
                                       {"databricks--dbrx-instruct", 132e9},
                                       {"deepseek-ai--DeepSeek-R1", 671e9},
                                       {"deepseek-ai--DeepSeek-V3.2", 671e9},
                                       {"deepseek-ai--DeepSeek-V4-Flash", 284e9},
                                       {"google--gemma-4-26B-A4B", 25.2e9},
                                       {"ibm-granite--granite-3.1-3b-a800m-instruct", 3.3e9},
                                       {"inclusionAI--Ling-flash-2.0"},
                                       {"meta-llama--Llama-4-Maverick-17B-128E-Instruct", 400e9},
                                       {"microsoft--Phi-3.5-MoE-instruct", 41.9e9},
                                       {"mistralai--Mixtral-8x22B-v0.1", 141e9},
                                       {"moonshotai--Kimi-K2-Instruct", 1026.5e9},
                                       {"moonshotai--Kimi-K2.5", 1026.5e9},
                                       {"moonshotai--Kimi-K3"},
                                       {"nvidia--GLM-5-NVFP4", 744e9},
                                       {"nvidia--Gemma-4-26B-A4B-NVFP4", 25.2e9},
                                       {"nvidia--Kimi-K2.5-NVFP4", 1026.5e9},
                                       {"nvidia--MiniMax-M3-NVFP4"},
                                       {"nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6e9},
                                       {"nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 31.6e9},
                                       {"nvidia--Qwen3.5-122B-A10B-NVFP4", 122e9},
                                       {"openai--gpt-oss-120b", 116.83e9},
                                       {"rednote--dots.llm1.inst", 142e9},
                                       {"sgl-project--DeepSeek-V4-Flash-FP8", 284e9},
                                       {"stepfun-ai--Step-3.7-Flash"},
                                       {"stepfun-ai--Step-3.7-Flash-FP8"},
                                       {"tencent--Hunyuan-A13B-Instruct", 80.4e9},
                                       {"zai-org--GLM-4.5-Air", 106e9},
                                       {"zai-org--GLM-5.1", 744e9}};
  for (const OfThisYear& row : models) {
    CAPTURE(row.folder);
    const std::filesystem::path file = shared_dir() / "data/models" / row.folder / "config.json";
    const MoeModel model = read_model(ConfigNode::from_file(file));
    CHECK(model.experts > 0);
    INFO(count_parameters(model).total);
    if (row.published > 0)
      CHECK_THAT(count_parameters(model).total, WithinRel(row.published, 0.01));
  }
}

TEST_CASE("layers with a window may have heads of their own, and cache by them") {
  // hidden 8. Full: 4 heads of 6 with values of 2, 1 KV head: 8 * (4 * (6 + 2) + 6 + 2) = 320.
  // Sliding: 2 KV heads: 8 * (4 * 8 + 2 * 8) = 384. Cached: 8 and 16 numbers.
  const MoeModel model = read_model(config(R"({
    "name": "tiny", "source": "made up", "hidden": 8, "vocabulary": 10, "tied_embeddings": false,
    "attention": {"query_heads": 4, "kv_heads": 1, "head_dim": 6, "v_dim": 2},
    "local_attention": {"query_heads": 4, "kv_heads": 2, "head_dim": 6, "v_dim": 2},
    "experts": {"count": 4, "per_token": 2, "width": 5},
    "layers": [{"repeat": 2, "pattern": [{"ffn": "moe", "window": 16}, {"ffn": "moe"}]}]})"));
  CHECK(parameters(model, 0) == 384);
  CHECK(parameters(model, 1) == 320);
  CHECK(kv_bytes_per_token(model, {}, {}) == Bytes((2 * 8 + 2 * 16) * 2));
  const MixerPtr unprojected = mixer(GroupedAttention{
      .query_heads = 4, .kv_heads = 1, .head_dim = 6, .v_dim = 2, .values_are_keys = true});
  CHECK(unprojected->parameters(8, {}) == 320 - 8 * 2);
  CHECK(unprojected->kept({}, {}).elements == 8);
}

TEST_CASE("state space layers keep a state and have parameters as their papers say") {
  // Mamba-2, 4 heads of 8, 2 groups of 16: x, z, B, C, dt of 6: 6 * (2*32 + 2*32 + 2*4) +
  // convolution (2*32 + 32) * 4 + 2*4 + 8 + out 32 * 6.
  const MixerPtr mamba2 = mixer(StateSpace{
      .heads = {
          .key_heads = 2, .key_dim = 16, .value_heads = 4, .value_dim = 8, .convolution = 4}});
  CHECK(mamba2->parameters(6, {}) == 6 * 132 + 96 * 4 + 2 * 4 + 8 + 192);
  CHECK(state_numbers(mamba2) == 4 * 8 * 16);
  // Mamba, 12 channels, state 5, step of rank 3, hidden 6: 6 * 24 + 12 * (3 + 10) + 3 * 12 +
  // 12 * 5 + 12 * 4 + 12 * 6.
  const MixerPtr mamba = mixer(StateSpace{
      .heads = {.key_heads = 1, .key_dim = 5, .value_heads = 12, .value_dim = 1, .convolution = 4},
      .step_rank = 3});
  CHECK(mamba->parameters(6, {}) == 144 + 156 + 36 + 60 + 48 + 72);
  CHECK(state_numbers(mamba) == 60);
  CHECK(convolved_numbers(mamba) == 36);
  CHECK(state_numbers(mamba, 3) == 20);
}

TEST_CASE("latent experts see a projection of the hidden state") {
  const MoeModel model = read_model(config(R"({
    "name": "tiny", "source": "made up", "hidden": 8, "vocabulary": 10, "tied_embeddings": false,
    "attention": {"query_heads": 2, "kv_heads": 1, "head_dim": 4},
    "experts": {"count": 4, "per_token": 2, "width": 5, "hidden": 3},
    "layers": [{"repeat": 1, "pattern": [{"ffn": "moe"}, {"ffn": "none"}]}]})"));
  CHECK(expert_parameters(model) == 3 * 3 * 5);
  CHECK(gate_parameters(model) == 8 * 4 + 2 * 8 * 3);
  CHECK(expert_bytes(model, {}, {}) == Bytes(45 * 2));
  // Two mixers of 8 * (2*4*2 + 2*4) = 192, norms, the gate, experts, tables; no FFN in the second.
  CHECK(count_parameters(model).total == 2 * (192 + 16) + 80 + 4 * 45 + 8 + 2 * 80);
}

TEST_CASE("a linear layer keeps a state of fixed size for each sequence, and no KV cache") {
  const MoeModel model = zoo("qwen3_5_397b_a17b");
  // 64 heads of 128 x 128, and three inputs of 12,288 channels.
  const MixerPtr& linear = model.layers.front().mixer;
  CHECK(state_numbers(linear) == 1'048'576);
  CHECK(convolved_numbers(linear) == 3 * 12'288);
  CHECK(state_numbers(linear, 8) == 131'072);
  // 15 layers of attention, 2 x 2 heads x 256.
  CHECK(kv_bytes_per_token(model, {}, {}) == Bytes(15 * 1024 * 2));
  // A state of a layer is as large as 1,060 tokens of 2,048 B, and blocks are whole sixteens.
  PrecisionPlan precision;
  precision.state_bytes = 2;
  const KvPaging vllm{.pages_as_states = true};
  const KvLayout layout = kv_layout(model, {}, precision, vllm);
  const double state = 1'048'576 * 2.0 + 3 * 12'288 * 2.0;
  CHECK(layout.block_tokens == 1'072);
  CHECK(layout.block == Bytes(15.0 * layout.block_tokens * 2048));
  CHECK(layout.state_blocks == 3);
  CHECK(layout.blocks_for(0) == 0);
  CHECK(layout.blocks_for(1) == 3 + 1);
  CHECK(layout.blocks_for(layout.block_tokens + 1) == 3 + 2);
  CHECK(state_bytes(model, {}, precision) == Bytes(45 * state));
  // Else states take as many blocks of the usual size as hold them.
  const KvLayout shared = kv_layout(model, {}, precision);
  CHECK(shared.block_tokens == 16);
  CHECK(double(shared.state_blocks) == std::ceil(45 * state / shared.block.value()));
  // Layers that compress have blocks for as many tokens as two of their largest entries.
  CHECK(kv_layout(zoo("deepseek_v4_flash"), {}, {}, vllm).block_tokens == 256);
  // Room of their own: blocks are those of tokens alone.
  const KvLayout apart = kv_layout(model, {}, precision, {.state_slots = 1});
  CHECK(apart.block_tokens == 16);
  CHECK(apart.state_blocks == 0);
}

TEST_CASE("SGLang's pools of DeepSeek-V4 take as many bytes a token as its logs say") {
  // V4-Flash on 8 H20: 45.78 GiB for 3,080,960 tokens, its MTP layer's window included.
  const KvLayout layout = kv_layout(zoo("deepseek_v4_flash"), {}, {.kv_cache = Precision::fp8},
                                    {.window_ratio = .1, .state_slots = 1});
  const double mtp = .1 * 584;
  const double token = layout.block.value() * double(layout.groups.size()) / layout.block_tokens;
  CHECK_THAT(token + mtp, WithinRel(45.78 * 1024 * 1024 * 1024 / 3'080'960, 1e-3));
  CHECK(layout.state_blocks == 0);
  CHECK(layout.has_windows());
}

TEST_CASE("vLLM's logs say how many requests of 8,192 tokens such pages hold") {
  // "Maximum concurrency for 8,192 tokens per request", vLLM 0.18 on H200, by the GiB of its KV
  // cache (validation_db.json of ashishkamra/vllm-memory-estimator).
  struct Log {
    const char* model;
    int tp;
    double state_bytes, gib, requests;
  };
  for (const Log& log : {Log{"qwen3_5_397b_a17b", 4, 4, 26.76, 161.0},
                         Log{"qwen3_next_80b_a3b", 1, 2, 49.29, 208.32}}) {
    PrecisionPlan precision;
    precision.state_bytes = log.state_bytes;
    const ParallelPlan plan{.tp = log.tp};
    const KvLayout layout = kv_layout(zoo(log.model), plan, precision, {.pages_as_states = true});
    const double request = layout.block.value() * double(layout.blocks_for(8192));
    CHECK_THAT(log.gib * 1024 * 1024 * 1024 / request, WithinRel(log.requests, 2e-3));
  }
}

TEST_CASE("a linear layer's decode reads and writes its state, whatever came before") {
  const MoeModel model = zoo("qwen3_next_80b_a3b");
  const auto core = [&](std::int32_t context) {
    const std::vector<SequenceWork> sequences(4, {1, context});
    std::vector<Operation> out;
    model.layers.front().mixer->core({model.hidden, {}, {}, plain_gpu()}, sequences, out);
    return find(out, "linear_state").cost;
  };
  const double states = 4 * 2 * (524'288 * 4.0 + 3 * 8'192 * 2.0);
  const double passed = 4 * (2 * 2'048 + 2 * 4'096) * 2.0;
  CHECK_THAT(core(100).work.hbm.value(), WithinRel(states + passed, 1e-9));
  CHECK(core(100).time == core(100'000).time);
}

TEST_CASE("sparse attention scores every token and reads the best") {
  const MoeModel model = zoo("deepseek_v3_2");
  const auto ops = [&](std::int32_t context) {
    return attention(model, {}, {{1, context - 1}}, {});
  };
  const double latent = 512 + 64, per_query = 128 * (latent + 512) * 2;
  CHECK_THAT(find(ops(8'192), "attention_decode").cost.work.hbm.value(),
             WithinRel(2'048 * latent * 2 + per_query, 1e-9));
  CHECK_THAT(find(ops(1'024), "attention_decode").cost.work.hbm.value(),
             WithinRel(1'024 * latent * 2 + per_query, 1e-9));
  const Work scores = find(ops(8'192), "index_scores").cost.work;
  CHECK(scores.flops == Flops(2.0 * 64 * 128 * 8'192));
  // Keys of 128 numbers in fp8 and a scale in fp32, beside the latent.
  CHECK(scores.hbm == Bytes(8'192 * 132));
  CHECK(kept(model.layers[0]).index_bytes == 132);
  CHECK(kept(model.layers[0], 8).bytes == 576 * 2);
  CHECK(kept(model.layers[0], 8, Precision::fp8).bytes == 656);
}

// The models that a pencil counted: ../shared/reference/architectures-2026.md, section 1.4.
TEST_CASE("compressed attention reads a window, entries of several tokens, and index keys") {
  const MoeModel flash = zoo("deepseek_v4_flash");
  const auto read = [&](std::size_t layer, std::int32_t context) {
    double bytes = 0;
    const double queries_and_outputs = 64 * 2 * 512 * 2;
    for (const Operation& op :
         attention(flash, {}, {{1, context - 1}}, {.kv_cache = Precision::fp8}, layer)) {
      if (op.name == "attention_decode") bytes += op.cost.work.hbm.value() - queries_and_outputs;
      if (op.name == "index_scores") bytes += op.cost.work.hbm.value();
    }
    return bytes;
  };
  CHECK(read(0, 8'192) == 128 * 584);
  CHECK(read(0, 100) == 100 * 584);
  CHECK(read(2, 8'192) == (128 + 512) * 584 + 2'048 * 132);
  CHECK(read(3, 8'192) == (128 + 64) * 584);
  const double all = 2 * read(0, 131'072) + 21 * read(2, 131'072) + 20 * read(3, 131'072);
  CHECK_THAT(all, WithinRel(112.3e6, 1e-3));
  // Beside its entries a sequence keeps windows and open entries, 3.2 and 12.2 MB.
  double state = 0;
  for (const LayerSpec& layer : flash.layers)
    state += layer.mixer->kept({}, {.kv_cache = Precision::fp8}).state_bytes;
  CHECK(state == 43 * 128 * 584 + 21 * (65'536 + 16'384) + 20 * 524'288);
}

TEST_CASE("prompts of compressed attention see as many entries as a loop counts") {
  for (const auto& [first, end, ratio, top] :
       {std::array{0, 1, 4, 2}, {0, 50, 4, 2}, {3, 41, 4, 0}, {100, 517, 128, 0}, {7, 9, 0, 0}}) {
    CAPTURE(first, end, ratio, top);
    constexpr int window = 6;
    double pairs = 0, scored = 0;
    for (int t = first + 1; t <= end; ++t) {
      const int entries = ratio > 0 ? t / ratio : 0;
      pairs += std::min(t, window) + (top > 0 ? std::min(entries, top) : entries);
      if (top > 0) scored += entries;
    }
    const EntriesSeen seen = entries_seen(first, end, window, ratio, top);
    CHECK(seen.pairs == pairs);
    CHECK(seen.scored == scored);
    CHECK(seen.keys == (ratio > 0 ? end / ratio : 0));
  }
}

TEST_CASE("compressed attention that contradicts itself is refused") {
  Json json = ConfigNode::from_file(source_dir() / "models/zoo/deepseek_v4_flash.json").json();
  const MoeModel model = read(json);
  CHECK(model.cut_fault(8).empty());
  CHECK_THAT(model.cut_fault(16), Contains("8 groups of the output"));
  json["attention"]["index_heads"] = 0;
  CHECK_THAT(error_of(json), Contains("\"sparse_ratio\""));
  json["attention"].update({{"sparse_ratio", 0}, {"index_dim", 0}, {"index_top", 0}});
  json["layers"] = Json::parse(R"([{"repeat": 2, "pattern": [{"ffn": "moe"}]}])");
  CHECK_THAT(error_of(json), Contains("no layer keeps tokens in a KV cache"));
}

TEST_CASE("later files name the kinds of DeepSeek-V4's layers and their ratios") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const auto file = shared_dir() / "data/models/deepseek-ai--DeepSeek-V4-Flash/config.json";
  Json json = ConfigNode::from_file(file).json();
  const MoeModel before = read(json);
  json.erase("compress_ratios");
  json["compress_rates"] = {{"compressed_sparse_attention", 4},
                            {"heavily_compressed_attention", 128}};
  for (int layer = 0; layer < 43; ++layer)
    json["layer_types"].push_back(layer < 2        ? "sliding_attention"
                                  : layer % 2 == 0 ? "compressed_sparse_attention"
                                                   : "heavily_compressed_attention");
  CHECK(read(json).layers == before.layers);
  CHECK(before.layers == zoo("deepseek_v4_flash").layers);
  json["layer_types"][5] = "unheard_of_attention";
  CHECK_THAT(error_of(json), Contains("unheard_of_attention"));
}

TEST_CASE("a layer that shares an indexer attends to as few keys, and scores none") {
  Json json = ConfigNode::from_file(source_dir() / "models/zoo/deepseek_v3_2.json").json();
  json["layers"] = Json::parse(R"([{"repeat": 1, "pattern": [{"ffn": "dense"}]},
                                   {"repeat": 1, "pattern": [{"ffn": "moe", "indexer": false}]}])");
  const MoeModel model = read(json);
  const double indexer = 1536.0 * 64 * 128 + 7168 * (128 + 64);
  CHECK(parameters(model, 0) - parameters(model, 1) == indexer);
  CHECK(kv_bytes_per_token(model, {}, {}) == Bytes(2 * 1152 + 132));
  const auto names_index = [](const Operation& op) { return op.name.starts_with("index_"); };
  const auto whole = attention(model, {}, {{1, 8'191}}),
             shared = attention(model, {}, {{1, 8'191}}, {}, 1);
  CHECK(std::ranges::count_if(whole, names_index) == 5);
  CHECK(std::ranges::none_of(shared, names_index));
  CHECK(find(shared, "attention_decode").cost.work.hbm ==
        find(whole, "attention_decode").cost.work.hbm);
  CHECK_THAT(config_error([&] {
               json["layers"][0]["pattern"][0]["indexer"] = false;
               read(json);
             }),
             Contains("the first layer with sparse attention has no indexer"));
}

TEST_CASE("shared and dense FFNs may be stored otherwise than attention") {
  const PrecisionPlan plan =
      read_precision(config(R"({"experts": "nvfp4", "attention": "bf16", "ffn": "nvfp4"})"));
  CHECK(plan.attention == Precision::bf16);
  CHECK(plan.ffn == Precision::nvfp4);
  CHECK(read_precision(config(R"({"experts": "fp8", "attention": "fp8"})")).ffn == Precision::fp8);
  // Weights in bf16 are multiplied in bf16, whatever the model's files have.
  const PrecisionPlan files{.experts = Precision::fp8_block,
                            .attention = Precision::fp8_block,
                            .activations = Precision::fp8_block};
  CHECK(read_precision(config(R"({"experts": "bf16", "attention": "bf16"})"), &files).activations ==
        Precision::bf16);
  const MoeModel model = zoo("deepseek_v3");
  const double wide = non_expert_bytes(model, {}, {}).value();
  const double narrow = non_expert_bytes(model, {}, plan).value();
  const double ffns = 3.0 * 7168 * (58 * 2048 + 3 * 18432);
  CHECK_THAT(wide - narrow, WithinRel(ffns * (2 - bytes_per_element(Precision::nvfp4)), 1e-9));
}

// ---- 80 config.json, chosen beforehand, and what is published of them ----

// A published figure as it is written, in billions: "16.50" is known to half of 0.01.
struct Figure {
  double value, half_digit;
};
Figure figure(const std::string& text) {
  const std::size_t exponent = std::min(text.find('e'), text.size());
  const std::size_t point = std::min(text.find('.'), exponent);
  const double decimals = point < exponent ? static_cast<double>(exponent - point - 1) : 0;
  const double power = exponent < text.size() ? std::stod(text.substr(exponent + 1)) : 0;
  return {std::stod(text), .5 * std::pow(10, power - decimals)};
}

TEST_CASE("a published figure is known to half a unit of its last digit") {
  CHECK(figure("16.50").value == 16.5);
  CHECK_THAT(figure("16.50").half_digit, WithinRel(.005, 1e-12));
  CHECK(figure("671").half_digit == .5);
  CHECK_THAT(figure("2.8e3").half_digit, WithinRel(50, 1e-12));
}

// A line of tests/models/published.jsonl: the figures, who says them, and the file: in short, or
// the name of its folder in ../shared/data/models.
std::optional<ConfigNode> file_of(const Json& row) {
  if (row.contains("config")) return config(row.at("config").dump());
  if (!has_shared()) return std::nullopt;
  const std::string folder = row.at("file");
  return ConfigNode::from_file(shared_dir() / "data" / "models" / folder / "config.json");
}

ActiveCounts rule_named(const std::string& name) {
  const auto found = std::find(active_counts_names.begin(), active_counts_names.end(), name);
  REQUIRE(found != active_counts_names.end());
  return static_cast<ActiveCounts>(found - active_counts_names.begin());
}

// The active parameters: to half a unit of the figure's last digit, or, where the authors "cut" the
// digits that follow instead of rounding them, to a whole one below. By the rule that the row
// names; where none fits, "off" says what is known of it.
void check_active(const Json& row, MoeModel model) {
  const Figure said = figure(row.at("active"));
  model.published_counts = rule_named(row.at("counts"));
  const double over = active_as_published(model) / 1e9 - said.value;
  INFO("we count " << over << " more");
  const bool cut = row.value("cut", false) && over >= 0 && over < 2 * said.half_digit;
  const bool off = row.contains("off");
  CHECK((cut || std::abs(over) <= said.half_digit) == !off);
  if (off) CHECK(std::abs(over) < .25 * said.value);
}

// Totals within 1 %, or what the figure's digits leave open.
void check_counts(const Json& row, const MoeModel& model) {
  const Figure said = figure(row.at("total"));
  const double ours = count_parameters(model).total / 1e9 + row.value("beside", 0.);
  CHECK_THAT(ours, WithinAbs(said.value, std::max(.01 * said.value, said.half_digit)));
  if (row.contains("active")) check_active(row, model);
}

TEST_CASE("84 config.json: 83 hold the published parameters, 1 is refused with the reason") {
  std::ifstream file(source_dir() / "tests/models/published.jsonl");
  int held = 0, refused = 0, absent = 0;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    CAPTURE(row.at("name").get<std::string>());
    CHECK_FALSE(row.at("source").get<std::string>().empty());
    const std::optional<ConfigNode> node = file_of(row);
    if (!node) {
      ++absent;
    } else if (row.contains("refused")) {
      const std::string why = row.at("refused");
      CHECK_THAT(config_error([&] { read_model(*node); }), Contains(why));
      ++refused;
    } else {
      const MoeModel model = read_model(*node);
      check_counts(row, model);
      CHECK(model.moe_layers() > 0);
      CHECK(model.experts_per_token < model.experts);
      CHECK(model.unknown_keys.empty());  // each key is read, or harmless with a reason
      ++held;
    }
  }
  if (absent > 0) WARN("skipped: ../shared is absent, and with it " << absent << " of the files");
  CHECK(held + refused + absent == 84);
  CHECK(refused == 1);
  CHECK(held == (absent > 0 ? 43 : 83));
}

TEST_CASE("a key of config.json that nothing knows is named, and one that changes layers refused") {
  const auto read_with = [](const char* more) {
    return read_model(config(fmt::format(
        R"({{"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 2, "vocab_size": 32000,
             "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
             "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5 {}}})",
        more)));
  };
  CHECK(read_with("").unknown_keys.empty());
  CHECK(read_with(R"(, "expert_tiers": [2, 6], "depth_router": true)").unknown_keys ==
        std::vector<std::string>{"depth_router", "expert_tiers"});
  CHECK(read_with(R"(, "expert_tiers": [], "depth_router": false, "a": null, "b": 0, "c": "")")
            .unknown_keys.empty());
  CHECK_THAT(config_error([&] { read_with(R"(, "use_cla": true)"); }),
             Contains("use_cla: layers that share a KV cache are not modelled"));
  CHECK(read_with(R"(, "use_cla": false)").unknown_keys.empty());
  // Step-3.7 says its shared expert by another key; in Mixtral the key would be new.
  CHECK(read_with(R"(, "n_shared_experts": 1)").unknown_keys.size() == 1);
}

// arXiv:2507.19427: 316 billion parameters, 38 active.
TEST_CASE("Step-3's queries pass one rank on the way to all heads") {
  const MoeModel model = read_model(config(R"({"model_type": "step3_vl", "text_config": {
    "model_type": "step3_text", "hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 128815,
    "num_attention_heads": 64, "num_attention_groups": 1, "head_dim": 256, "share_q_dim": 2048,
    "moe_num_experts": 48, "moe_top_k": 3, "moe_intermediate_size": 5120, "share_expert_dim": 5120,
    "intermediate_size": 18432, "moe_layers_enum":
    "4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59"}})"));
  CHECK(model.layers == zoo("step3").layers);
  CHECK(parameters(model, 0) ==
        7168. * 2048 + 2048. * 64 * 256 + 7168. * 2 * 256 + 64. * 256 * 7168);
  CHECK_THAT(count_parameters(model).total, WithinRel(316e9, .005));
  CHECK_THAT(count_parameters(model).active, WithinRel(38e9, .005));
  CHECK(kv_bytes_per_token(model, {}, {}) == Bytes(62'464));
}

// arXiv:2509.01322: 560 billion, 27 active in the mean: of 12 experts of 768 a token has 8 of 512
// that compute something.
TEST_CASE("LongCat-Flash is two sublayers a layer, one with experts beside its dense FFN") {
  const MoeModel model = read_model(config(R"({"model_type": "longcat_flash", "num_layers": 28,
    "hidden_size": 6144, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048,
    "n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12, "num_attention_heads": 64,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 131072})"));
  CHECK(model.layers.size() == 56);
  CHECK(model.moe_layers() == 28);
  CHECK(model.experts_per_token == 8);
  CHECK_THAT(count_parameters(model).total, WithinRel(560.7e9, 1e-3));
  CHECK_THAT(count_parameters(model).active, WithinRel(27.0e9, .005));
  CHECK(kv_bytes_per_token(model, {}, {}) == Bytes(64'512));
}

// 2048 channels over 3 tokens: gates and value in, value out, the last two inputs kept.
TEST_CASE("a short convolution keeps its last inputs and projects three values") {
  const MixerPtr convolution = mixer(ShortConvolution{.hidden = 2048, .tokens = 3});
  CHECK(convolution->parameters(2048, {}) == 4. * 2048 * 2048 + 3 * 2048);
  CHECK(convolution->kept({.tp = 2}, {}).state_bytes == 1024 * 2 * 2);
  CHECK(convolution->kept({}, {}).elements == 0);
  CHECK_THAT(convolution->cut_fault(3), Contains("2048 channels"));
}

TEST_CASE("families that are known but not modelled are refused with the reason") {
  const auto error_of = [](const std::string& keys) {
    return config_error([&] { read_model(config("{" + keys + "}")); });
  };
  CHECK_THAT(error_of(R"("model_type": "hunyuan", "architectures": ["HunYuanForCausalLM"])"),
             Contains("\"use_cla\"") && Contains("not modelled"));
  CHECK_THAT(error_of(R"("model_type": "switch_transformers")"), Contains("encoder and decoder"));
  CHECK_THAT(error_of(R"("architectures": ["JetMoeForCausalLM"])"), Contains("JetMoE"));
}

TEST_CASE("lightning attention is a state space layer without convolution") {
  // 2 heads of 3 over a hidden size of 8: q, k, v, the output's gate and the output 8 * 6 each, and
  // what a state space layer has beside: a step for each head and its decay and skip, the norm, and
  // a convolution over one token.
  const Json json = Json::parse(R"({"model_type": "minimax_text_01", "hidden_size": 8,
    "vocab_size": 10, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 3, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 5,
    "attn_type_list": [0, 0, 0, 1]})");
  const MoeModel model = read(json);
  CHECK(kept(model.layers[2]).state_bytes > 0);
  CHECK(kept(model.layers[3]).state_bytes == 0);
  CHECK(parameters(model, 0) == 5 * 8 * 6 + 8 * 2 + 3 * 6 + 2 * 2 + 3);
  CHECK(state_numbers(model.layers[0].mixer) == 2 * 3 * 3);
  CHECK(convolved_numbers(model.layers[0].mixer) == 0);
  // The same layers, as transformers writes them, and as Ring does.
  Json named = json;
  named.erase("attn_type_list");
  named["layer_types"] = {"linear_attention", "linear_attention", "linear_attention",
                          "full_attention"};
  CHECK(read(named).layers == model.layers);
  const MoeModel ring = read_model(config(R"({"model_type": "bailing_moe_linear", "hidden_size": 8,
    "vocab_size": 10, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 3, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
    "intermediate_size": 5, "layer_group_size": 4})"));
  CHECK(ring.layers == model.layers);
  // Behind the last whole group layers attend. Ling 3's are Kimi Delta Attention: q, k, v, gate,
  // decay and output at full width, a step for each head, and a convolution of q, k and v.
  const MoeModel ling = read_model(config(R"({"model_type": "bailing_hybrid", "hidden_size": 64,
    "vocab_size": 10, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
    "intermediate_size": 5, "layer_group_size": 4, "no_kda_lora": true,
    "short_conv_kernel_size": 4})"));
  for (const std::size_t attends : {3U, 4U, 5U}) CHECK(kept(ling.layers[attends]).state_bytes == 0);
  const double matrices = 6 * 64 * 64 + 64 * 4 + 3 * 64 * 4;
  CHECK(std::abs(static_cast<double>(parameters(ling, 0)) / matrices - 1) < .02);  // norms, biases
}

Json step() {
  return Json::parse(R"({"model_type": "step3p5", "hidden_size": 64, "vocab_size": 100,
    "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "num_attention_heads": 4,
    "num_attention_groups": 2, "head_dim": 16, "intermediate_size": 32, "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
    "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 8, "share_expert_dim": 8,
    "moe_layers_enum": "1,2"})");
}

TEST_CASE("what a file says layer by layer is taken, and may go on with layers that look ahead") {
  Json json = step();
  const MoeModel model = read(json);
  CHECK(moe_pattern(model) == std::vector<bool>{false, true, true});
  GroupedAttention heads{.query_heads = 4, .kv_heads = 2, .head_dim = 16};
  CHECK(*model.layers[0].mixer == *mixer(heads));
  heads.query_heads = 6;
  heads.window = 7;
  CHECK(*model.layers[1].mixer == *mixer(heads));
  json["moe_layers_enum"] = "1,2,3";
  CHECK_THAT(error_of(json), Contains("/moe_layers_enum: there is no layer 3 of 3"));
  json["moe_layers_enum"] = "1,two";
  CHECK_THAT(error_of(json), Contains("expected numbers separated by commas"));
  json = step();
  json["num_nextn_predict_layers"] = 2;
  CHECK_THAT(error_of(json), Contains("/layer_types: expected one entry per layer (3), found 4"));

  json = qwen3_moe();
  json["mlp_layer_types"] = {"dense", "sparse", "sparse", "dense"};
  CHECK(moe_pattern(read(json)) == std::vector<bool>{false, true, true, false});
  json["mlp_layer_types"][2] = "hash_moe";
  CHECK_THAT(error_of(json),
             Contains("/mlp_layer_types/2: FFNs of type \"hash_moe\" are not modelled"));
}

TEST_CASE("heads that differ with the window are read layer by layer") {
  const MoeModel laguna = read_model(config(R"({"model_type": "laguna", "hidden_size": 64,
    "vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 32, "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention"],
    "num_attention_heads_per_layer": [4, 6], "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "gating": "per-element"})"));
  GroupedAttention heads{.query_heads = 4, .kv_heads = 2, .head_dim = 16, .output_gate = true};
  CHECK(*laguna.layers[0].mixer == *mixer(heads));
  heads.query_heads = 6;
  heads.window = 7;
  CHECK(*laguna.layers[1].mixer == *mixer(heads));
  CHECK(moe_pattern(laguna) == std::vector<bool>{false, true});
}

TEST_CASE("the language model of a file with several parts is found wherever it stands") {
  const Json alone = qwen3_moe();
  const MoeModel model = read(alone);
  const std::vector<Json> files{
      {{"model_type", "a"}, {"text_config", alone}},
      {{"model_type", "b"}, {"language_config", alone}},
      {{"model_type", "c"}, {"llm_config", alone}},
      {{"model_type", "d"}, {"thinker_config", {{"text_config", alone}}}}};
  for (const Json& file : files) {
    CAPTURE(file.dump());
    CHECK(without_origin(read(file)) == without_origin(model));
  }
  // Tied embeddings are said there, or outside.
  Json outside = files[0];
  outside["tie_word_embeddings"] = true;
  CHECK(read(outside).tied_embeddings);
  outside["text_config"]["tie_word_embeddings"] = false;
  CHECK_FALSE(read(outside).tied_embeddings);
  // A text part in transformers has no head: the whole model's file decides.
  outside["text_config"]["model_type"] = "qwen3_vl_moe_text";
  CHECK(read(outside).tied_embeddings);
}

TEST_CASE("a missing or impossible fact is an error that names it") {
  Json json = qwen3_moe();
  json.erase("moe_intermediate_size");
  CHECK_THAT(error_of(json), Contains("\"moe_intermediate_size\" is missing"));

  json = qwen3_moe();
  json["model_type"] = "mamba2";
  CHECK_THAT(error_of(json), Contains("unknown architecture \"mamba2\"") && Contains("qwen3_moe"));

  json = qwen3_moe();
  json["num_experts_per_tok"] = 9;
  CHECK_THAT(error_of(json), Contains("cannot choose 9 of 8 experts"));

  json = qwen3_moe();
  json["num_key_value_heads"] = 3;
  CHECK_THAT(error_of(json), Contains("4 query heads do not share 3 KV heads"));

  json = Json::parse(R"({"name": "x"})");
  CHECK_THAT(error_of(json), Contains("\"source\" is missing"));
}

TEST_CASE("a misspelt key in a zoo file is refused, an unused one in a config.json is not") {
  CHECK_NOTHROW(read_model(config(qwen3_moe().dump())));
  Json json = ConfigNode::from_file(source_dir() / "models/zoo/mixtral_8x7b.json").json();
  json["vocabulery"] = 1;
  CHECK_THAT(error_of(json), Contains("unknown key \"vocabulery\"; did you mean \"vocabulary\"?"));
}

// ---- memory ----

TEST_CASE("one token's KV cache has the bytes that engines reserve") {
  // DeepSeek-V3: 61 layers x (512 + 64) x 2 B, on every GPU of a tp group.
  CHECK(kv_bytes_per_token(zoo("deepseek_v3"), {}, {}) == Bytes(70'272));
  CHECK(kv_bytes_per_token(zoo("deepseek_v3"), {.tp = 8, .ep = 8}, {}) == Bytes(70'272));
  // Qwen3-235B: 94 layers x 2 x 4 heads x 128 x 2 B; a quarter of it on tp 4, and no less on tp 8.
  const MoeModel qwen = zoo("qwen3_235b_a22b");
  CHECK(kv_bytes_per_token(qwen, {}, {}) == Bytes(192'512));
  CHECK(kv_bytes_per_token(qwen, {.tp = 4, .ep = 4}, {}) == Bytes(48'128));
  CHECK(kv_bytes_per_token(qwen, {.tp = 8, .ep = 8}, {}) == Bytes(48'128));
  CHECK(kv_bytes_per_token(qwen, {}, {.kv_cache = Precision::fp8}) == Bytes(96'256));
}

TEST_CASE("a block lies in one piece for each array that a layer keeps") {
  const auto pieces = [](const char* model, const ParallelPlan& plan = {}) {
    return kv_layout(zoo(model), plan, {}).pieces;
  };
  CHECK(pieces("qwen3_30b_a3b") == 48 * 2);  // keys and values
  CHECK(pieces("qwen3_30b_a3b", {.tp = 4}) == 48 * 2);
  CHECK(pieces("qwen3_30b_a3b", {.pp = 5}) == 10 * 2);
  CHECK(pieces("deepseek_v3") == 61);            // latent vectors
  CHECK(pieces("deepseek_v3_2") == 61 * 2);      // and keys of the indexer
  CHECK(pieces("qwen3_5_397b_a17b") == 15 * 2);  // its 45 linear layers keep no token
  CHECK(pieces("gpt_oss_20b") == 12 * 2);        // of either group's block
}

TEST_CASE("layers of one kind page their KV cache together") {
  const KvLayout full = kv_layout(zoo("qwen3_30b_a3b"), {}, {});
  REQUIRE(full.groups.size() == 1);
  CHECK(full.block == 16 * kv_bytes_per_token(zoo("qwen3_30b_a3b"), {}, {}));
  CHECK(full.blocks_for(0) == 0);
  CHECK(full.blocks_for(1) == 1);
  CHECK(full.blocks_for(16) == 1);
  CHECK(full.blocks_for(17) == 2);

  // gpt-oss-20b: 12 windowed and 12 full layers; a block holds 16 tokens x 12 layers x 2 x 8 x 64 x
  // 2 B. The window of 128 tokens touches at most 128/16 + 1 = 9 blocks.
  const KvLayout oss = kv_layout(zoo("gpt_oss_20b"), {}, {});
  REQUIRE(oss.groups.size() == 2);
  CHECK(oss.groups[0].layers == 12);
  CHECK(oss.groups[1].layers == 12);
  CHECK(oss.block == Bytes(16 * 12 * 2048));
  CHECK(oss.blocks_for(100) == 7 + 7);
  CHECK(oss.blocks_for(1600) == 100 + 9);
  // A step holds all tokens of its chunk: 8192/16 blocks in both groups. The next one lets go of
  // what lies behind its window.
  CHECK(oss.blocks_in_step(0, 8192) == 512 + 512);
  CHECK(oss.blocks_in_step(8192, 8193) == 513 + 9);
  CHECK(oss.blocks_in_step(8191, 8192) == 512 + 8);
  // Without the hybrid manager all 24 layers keep all tokens, in blocks twice as large.
  const KvLayout whole = kv_layout(zoo("gpt_oss_20b"), {}, {}, {.keeps_all = true});
  REQUIRE(whole.groups.size() == 1);
  CHECK_FALSE(whole.has_windows());
  CHECK(whole.block == Bytes(16 * 24 * 2048));
  CHECK(whole.blocks_for(1600) == 100);
  // SGLang's pools: one of full layers, and one for .8 of its tokens of the windows.
  const KvLayout pools = kv_layout(zoo("gpt_oss_20b"), {}, {}, {.window_ratio = .8});
  REQUIRE(pools.groups.size() == 1);
  CHECK(pools.has_windows());
  CHECK_THAT(pools.block.value(), WithinRel(16 * (12 + .8 * 12) * 2048, 1e-12));
  CHECK(pools.blocks_for(1600) == 100);
  // vLLM's cap: 128 - 1 + 8192 tokens in one block more than they fill.
  CHECK(oss.blocks_at_most(100'000, 8192) == 6250 + 521);

  // Two steps of a prompt are in flight from 0.26 on (vllm#49878): of a full and ten window groups.
  KvLayout gemma{.groups = {{}}};
  gemma.groups.resize(11, {.window = 1024});
  CHECK(gemma.blocks_at_most(262'144, 32'768) == 16'384 + 10 * 2'113);
  gemma.steps_in_flight = 2;
  CHECK(gemma.blocks_at_most(262'144, 32'768) == 16'384 + 10 * 4'161);
  CHECK(kv_layout(zoo("gpt_oss_20b"), {}, {}, {.steps_in_flight = 2}).steps_in_flight == 2);

  // Llama-4-Scout: 36 chunked and 12 full layers are 3 + 1 groups of 12.
  const KvLayout scout = kv_layout(zoo("llama_4_scout"), {}, {});
  REQUIRE(scout.groups.size() == 4);
  CHECK(std::count_if(scout.groups.begin(), scout.groups.end(),
                      [](const KvGroup& group) { return group.window == 8192; }) == 3);
  // An aligned chunk lets go of all that is behind it, and of nothing before its end.
  CHECK(scout.blocks_in_step(8191, 8192) == 4 * 512);
  CHECK(scout.blocks_in_step(8192, 8193) == 513 + 3);
}

TEST_CASE("DeepSeek-V4's pages under vLLM: room of a request as logs have it") {
  const PrecisionPlan fp8{.kv_cache = Precision::fp8};
  const auto layout = [&](const char* model) {
    return kv_layout(zoo(model), {}, fp8, {.pages_as_states = true});
  };
  const KvLayout flash = layout("deepseek_v4_flash");
  CHECK(flash.block == Bytes(22 * 47'808));
  CHECK(layout("deepseek_v4_pro").block == Bytes(31 * 47'808));
  const auto gib = [&](std::int64_t tokens, std::int64_t chunk) {
    return double(flash.blocks_at_most(tokens, chunk)) * flash.block.value() / (1 << 30);
  };
  // vllm#44376: 30,000 tokens need 6.66 GiB, 5.44 GiB are enough for 13,528.
  CHECK_THAT(gib(30'000, 16'384), WithinAbs(6.66, .005));
  CHECK_THAT(gib(13'528, 16'384), WithinAbs(5.44, .005));
  // vllm#51454: 149.1 GiB hold 20.43 requests of 1,048,576 tokens.
  CHECK(flash.blocks_at_most(1'048'576, 8192) == 7450);
  CHECK_THAT(149.1 / gib(1'048'576, 8192), WithinAbs(20.43, .01));
  // Of a short request that decodes: entries, two windows, tokens whose entry is open.
  CHECK(flash.blocks_in_step(1019, 1020) == 4 + 2 * 3 + 2 + 17);
}

TEST_CASE("blocks of latent attention beside states are of whole 64 tokens under vLLM") {
  ParallelPlan tp8;
  tp8.tp = 8;
  const KvLayout k3 = kv_layout(zoo("kimi_k3"), tp8, {}, {.pages_as_states = true});
  CHECK(k3.block_tokens % 64 == 0);
}

TEST_CASE(
    "the kind with fewest layers sets the size of a KV group, the last group of a kind is padded") {
  const auto groups = [](int full, int windowed) {
    MoeModel model = zoo("gpt_oss_20b");
    const Mixer& kind = *model.layers.front().mixer;
    const LayerSpec slides{kind.in_layer({.window = 1024})}, whole{kind.in_layer({})};
    model.layers.assign(static_cast<std::size_t>(windowed), slides);
    model.layers.insert(model.layers.end(), static_cast<std::size_t>(full), whole);
    return kv_layout(model, {}, {});
  };
  // Gemma 3 27B: 52 sliding and 10 full layers are 6 + 1 groups of 10, and not 31 of 2.
  const KvLayout gemma = groups(10, 52);
  CHECK(gemma.groups.size() == 7);
  CHECK(gemma.groups.front().layers == 10);
  CHECK(gemma.block == Bytes(16 * 10 * 2048));
  CHECK(gemma.blocks_in_step(0, 1600) == 7 * 100);
  // Nearly as many of each: one group of 13 and one of 12, padded to 13.
  const KvLayout near = groups(13, 12);
  CHECK(near.groups.size() == 2);
  CHECK(near.groups.front().layers == 13);
  // 1.5 times as many are no longer near: 20 and 30 are groups of 20, the last one of 10.
  CHECK(groups(20, 30).groups.size() == 3);
  CHECK(groups(20, 29).groups.size() == 2);
}

TEST_CASE("an expert's bytes are three matrices in its precision") {
  // DeepSeek-V3: 3 x 7168 x 2048 = 44.04 M; Qwen3-30B: 3 x 2048 x 768 = 4.72 M.
  CHECK(expert_bytes(zoo("deepseek_v3"), {}, {.experts = Precision::fp8}) == Bytes(44'040'192));
  CHECK(expert_bytes(zoo("qwen3_30b_a3b"), {}, {}) == Bytes(9'437'184));
  // Two GPUs share each expert when ep is half the GPUs.
  CHECK(expert_bytes(zoo("qwen3_30b_a3b"), {.dp = 1, .tp = 4, .ep = 2}, {}) == Bytes(4'718'592));
}

TEST_CASE("experts and the rest together weigh what all parameters do") {
  for (const Published& row : published()) {
    CAPTURE(row.file);
    const MoeModel model = zoo(row.file);
    const Bytes experts = expert_bytes(model, {}, {}) * model.experts * model.moe_layers();
    CHECK_THAT((experts + non_expert_bytes(model, {}, {})).value(),
               WithinRel(2 * count_parameters(model).total, 1e-12));
  }
}

TEST_CASE("tensor parallelism slices weights, but not MLA's down projections, gates and norms") {
  const MoeModel qwen = zoo("qwen3_30b_a3b");
  // 48 layers of gate 2048 x 128 and norms 2 x 2048, and the final norm, in bf16.
  const double kept = 2 * (48 * (2048.0 * 128 + 2 * 2048) + 2048);
  const double whole = non_expert_bytes(qwen, {}, {}).value();
  CHECK_THAT(non_expert_bytes(qwen, {.tp = 2, .ep = 2}, {}).value(),
             WithinRel((whole - kept) / 2 + kept, 1e-12));

  const MoeModel deepseek = zoo("deepseek_v3");
  // W_dq and W_dkv: 7168 x (1536 + 512 + 64) in each of 61 layers.
  const double down = 2 * 61 * 7168.0 * 2112;
  const double gates = 2 * (58 * 7168.0 * 256 + 61 * 2 * 7168.0 + 7168);
  const double all = non_expert_bytes(deepseek, {}, {}).value();
  CHECK_THAT(non_expert_bytes(deepseek, {.tp = 8, .ep = 8}, {}).value(),
             WithinRel((all - down - gates) / 8 + down + gates, 1e-12));
}

// ---- attention's work ----

struct BruteForce {
  double keys_read = 0;
  double pairs = 0;
};

BruteForce brute_force(const SequenceWork& sequence, const Sight& sight) {
  BruteForce result;
  std::set<int> seen;
  for (int query = sequence.context_tokens; query < sequence.context_tokens + sequence.new_tokens;
       ++query) {
    for (int key = 0; key <= query; ++key) {
      const bool visible = sight.window == 0 ? true
                           : sight.chunked   ? key / sight.window == query / sight.window
                                             : query - key < sight.window;
      if (!visible) continue;
      result.pairs += 1;
      seen.insert(key);
    }
  }
  result.keys_read = static_cast<double>(seen.size());
  return result;
}

TEST_CASE("query-key pairs equal a count by hand, for every window, chunk and context") {
  for (const Sight sight :
       {Sight{}, Sight{.window = 1}, Sight{.window = 7}, Sight{.window = 16},
        Sight{.window = 1, .chunked = true}, Sight{.window = 7, .chunked = true},
        Sight{.window = 16, .chunked = true}}) {
    for (const std::int32_t context : {0, 1, 5, 6, 7, 8, 15, 16, 17, 33}) {
      for (const std::int32_t tokens : {1, 2, 3, 6, 7, 8, 20, 40}) {
        CAPTURE(sight.window, sight.chunked, context, tokens);
        const SequenceWork sequence{tokens, context};
        const AttentionWork work = attention_work(std::span(&sequence, 1), sight);
        const BruteForce expected = brute_force(sequence, sight);
        CHECK(work.sequences == 1);
        if (tokens == 1) {
          CHECK(work.decode_sequences == 1);
          CHECK(work.decode_kv_tokens == expected.keys_read);
          CHECK(work.prefill_tokens == 0);
        } else {
          CHECK(work.prefill_tokens == tokens);
          CHECK(work.prefill_kv_tokens == expected.keys_read);
          CHECK(work.prefill_pairs == expected.pairs);
          CHECK(work.decode_sequences == 0);
        }
      }
    }
  }
}

TEST_CASE("a prompt in chunks has the pairs of the prompt at once, and a step sums its sequences") {
  // 1 + 2 + ... + 100 = 5050.
  const std::vector<SequenceWork> whole{{100, 0}};
  const std::vector<SequenceWork> chunks{{30, 0}, {30, 30}, {40, 60}};
  CHECK(attention_work(whole, {}).prefill_pairs == 5050);
  CHECK(attention_work(chunks, {}).prefill_pairs == 5050);
  // Decodes whose sum is known cost what they do one by one, whatever they see.
  const std::vector<SequenceWork> decodes{{1, 10}, {1, 300}, {1, 0}};
  for (const Sight& sight : {Sight{}, Sight{.window = 100}}) {
    const AttentionWork each = attention_work(decodes, sight);
    const AttentionWork sum = attention_work(RankSequences(decodes, 310), sight);
    CHECK(sum.decode_kv_tokens == each.decode_kv_tokens);
    CHECK(sum.decode_pairs == each.decode_pairs);
    CHECK(sum.decode_context == each.decode_context);
    CHECK(sum.sequences == each.sequences);
  }
  const std::vector<SequenceWork> mixed{{100, 0}, {1, 9}, {1, 19}, {0, 50}};
  const AttentionWork work = attention_work(mixed, {});
  CHECK(work.sequences == 3);
  CHECK(work.decode_kv_tokens == 30);
  CHECK(work.prefill_pairs == 5050);
}

TEST_CASE("a window saves nothing until the context outgrows it") {
  const Sight full;
  const Sight window{.window = 128};
  const auto keys = [](std::int32_t context, const Sight& sight) {
    const SequenceWork sequence{1, context};
    return attention_work(std::span(&sequence, 1), sight).decode_kv_tokens;
  };
  CHECK(keys(127, window) == keys(127, full));
  CHECK(keys(128, window) == 128);
  CHECK(keys(128, full) == 129);
  CHECK(keys(100'000, window) == 128);
}

TEST_CASE("pairs stay exact at a context of a million tokens") {
  const std::vector<SequenceWork> sequence{{1'000'000, 0}};
  CHECK(attention_work(sequence, {}).prefill_pairs == 500'000'500'000.0);
}

// ---- operations ----

TEST_CASE("GQA decode reads the KV cache once and multiplies it by every query head") {
  // Qwen3-30B: 100 sequences of 1000 keys. KV 2 x 4 x 128 x 2 B = 2048 B per key; queries and
  // outputs 100 x 2 x 4096 x 2 B; flops 4 x 32 x 128 per key.
  const auto ops = attention(zoo("qwen3_30b_a3b"), {}, std::vector<SequenceWork>(100, {1, 999}));
  const Cost& decode = find(ops, "attention_decode").cost;
  CHECK(decode.work.hbm == Bytes(100'000 * 2048.0 + 100 * 2 * 4096 * 2));
  CHECK(decode.work.flops == Flops(100'000 * 4 * 4096.0));
  // fp8 keys and values are half the bytes.
  const auto narrow = attention(zoo("qwen3_30b_a3b"), {}, std::vector<SequenceWork>(100, {1, 999}),
                                {.kv_cache = Precision::fp8});
  CHECK(find(narrow, "attention_decode").cost.work.hbm ==
        Bytes(100'000 * 1024.0 + 100 * 2 * 4096 * 2));
}

TEST_CASE("GQA prefill pays for causal pairs only") {
  // 1000 tokens after 1000: pairs = 2000*2001/2 - 1000*1001/2 = 1,500,500.
  const auto ops = attention(zoo("qwen3_30b_a3b"), {}, {{1000, 1000}});
  const Cost& prefill = find(ops, "attention_prefill").cost;
  CHECK(prefill.work.flops == Flops(4 * 4096.0 * 1'500'500));
  CHECK(prefill.work.hbm == Bytes(2000 * 2048.0 + 1000 * 2 * 4096 * 2));
}

TEST_CASE("MLA decode shares one read of the latent among all heads") {
  // DeepSeek-V3, 10 sequences of 5000 keys: latent (512 + 64) x 2 B per key; per key and head
  // 2 x (576 + 512) flops; queries of 576 and outputs of 512 per head.
  const auto ops = attention(zoo("deepseek_v3"), {}, std::vector<SequenceWork>(10, {1, 4999}));
  const Cost& decode = find(ops, "attention_decode").cost;
  CHECK(decode.work.hbm == Bytes(50'000 * 1152.0 + 10 * 128 * 1088 * 2));
  CHECK(decode.work.flops == Flops(50'000 * 128 * 2 * 1088.0));
  // tp 8 leaves 16 heads, but the whole latent.
  const auto sliced =
      attention(zoo("deepseek_v3"), {.tp = 8, .ep = 8}, std::vector<SequenceWork>(10, {1, 4999}));
  CHECK(find(sliced, "attention_decode").cost.work.hbm ==
        Bytes(50'000 * 1152.0 + 10 * 16 * 1088 * 2));
}

TEST_CASE("MLA prefill expands the latent of its whole context") {
  // 500 tokens after 500: kv_b over 1000 tokens, pairs 1000*1001/2 - 500*501/2 = 375,250, per pair
  // and head 2 x (192 + 128) flops.
  const auto ops = attention(zoo("deepseek_v3"), {}, {{500, 500}});
  CHECK(find(ops, "kv_b_proj").cost.work.flops >= Flops(2.0 * 1000 * 128 * 256 * 512));
  CHECK(find(ops, "attention_prefill").cost.work.flops == Flops(375'250 * 128 * 2 * 320.0));
}

TEST_CASE("tensor parallelism over two GPUs halves the bytes of the projections") {
  const MoeModel model = zoo("qwen3_235b_a22b");
  const auto whole = attention(model, {}, {{1, 100}});
  const auto half = attention(model, {.tp = 2, .ep = 2}, {{1, 100}});
  for (const std::string_view name : {"qkv_proj", "o_proj"}) {
    // One token's activations are the 0.1 % that does not halve.
    CHECK_THAT(find(half, name).cost.work.hbm / find(whole, name).cost.work.hbm,
               WithinRel(0.5, 0.002));
  }
}

TEST_CASE("attention's projections read each attention parameter once") {
  for (const std::string name : {"qwen3_30b_a3b", "deepseek_v3", "deepseek_v2_lite"}) {
    CAPTURE(name);
    const MoeModel model = zoo(name);
    double bytes = 0;
    for (const Operation& op : attention(model, {}, {{1, 0}}))
      if (op.name != "norm_rope" && op.name != "attention_decode")
        bytes += op.cost.work.hbm.value();
    CHECK_THAT(bytes, WithinRel(2 * parameters(model, 0), 0.01));
  }
}

TEST_CASE("a windowed layer costs what a full one does below the window, and less beyond") {
  const MoeModel model = zoo("gpt_oss_20b");
  const auto time = [&](std::size_t layer, std::int32_t context) {
    const auto operations = attention(model, {}, {{1, context}}, {}, layer);
    return find(operations, "attention_decode").cost.time;
  };
  CHECK(time(0, 100) == time(1, 100));
  CHECK(time(0, 1000) < time(1, 1000));
  CHECK(time(0, 1000) == time(0, 10'000));
}

TEST_CASE("a dense FFN reads its three matrices, sliced by tp") {
  const MoeModel model = zoo("deepseek_v3");
  std::vector<Operation> out;
  dense_ffn_operations({model, {.tp = 2, .ep = 2}, {.ffn = Precision::fp8}, plain_gpu()}, 1,
                       model.dense_width, Part::dense_ffn, out);
  double bytes = 0;
  for (const Operation& op : out) {
    CHECK(op.part == Part::dense_ffn);
    bytes += op.cost.work.hbm.value();
  }
  CHECK_THAT(bytes, WithinRel(3.0 * 7168 * 18432 / 2, 0.002));
}

TEST_CASE("the LM head works on sampled tokens only, the embedding on all") {
  const MoeModel model = zoo("mixtral_8x7b");
  std::vector<Operation> out;
  head_operations({model, {}, {}, plain_gpu()}, 512, 1, out);
  CHECK(find(out, "embedding").cost.work.hbm == Bytes(512 * 2 * 4096 * 2.0));
  CHECK_THAT(find(out, "lm_head").cost.work.hbm.value(), WithinRel(4096 * 32000 * 2.0, 0.001));
  out.clear();
  head_operations({model, {}, {}, plain_gpu()}, 512, 0, out);
  CHECK(std::none_of(out.begin(), out.end(),
                     [](const Operation& op) { return op.name == "lm_head"; }));
}

TEST_CASE("gate and permute move what their tokens need") {
  const MoeModel model = zoo("deepseek_v3");
  std::vector<Operation> out;
  gate_operations({model, {}, {}, plain_gpu()}, 10, out);
  // 256 fp32 scores in, 8 ids and weights out.
  CHECK(find(out, "top_k").cost.work.hbm == Bytes(10 * (256 * 4 + 8 * 8.0)));
  out.clear();
  permute_operations({model, {}, {.activations = Precision::fp8}, plain_gpu()}, 80, "pack", out);
  CHECK(find(out, "pack").cost.work.hbm == Bytes(80 * 2 * 7168.0));
}

TEST_CASE("no tokens are no operations") {
  const MoeModel model = zoo("deepseek_v3");
  std::vector<Operation> out;
  const ParallelPlan plan;
  const PrecisionPlan precision;
  const GpuSpec gpu = plain_gpu();
  const ModelShard shard{model, plan, precision, gpu};
  const Mixer& mixer = *model.layers.front().mixer;
  mixer.input(shard.mixers(), 0, out);
  mixer.absorption(shard.mixers(), 0, out);
  mixer.core(shard.mixers(), {}, out);
  mixer.output(shard.mixers(), 0, out);
  dense_ffn_operations(shard, 0, model.dense_width, Part::dense_ffn, out);
  dense_ffn_operations(shard, 8, 0, Part::shared_experts, out);
  gate_operations(shard, 0, out);
  permute_operations(shard, 0, "pack", out);
  head_operations(shard, 0, 0, out);
  CHECK(out.empty());
}

TEST_CASE("more tokens never take less time") {
  const MoeModel model = zoo("deepseek_v3");
  Rng rng(7, "monotone attention");
  for (int trial = 0; trial < 50; ++trial) {
    const auto total = [&](std::int32_t tokens, std::int32_t context) {
      Seconds time{};
      for (const Operation& op : attention(model, {}, {{tokens, context}})) time += op.cost.time;
      return time;
    };
    const auto tokens = static_cast<std::int32_t>(2 + rng.below(500));
    const auto context = static_cast<std::int32_t>(rng.below(5000));
    CHECK(total(tokens, context) <= total(tokens + 1, context));
    CHECK(total(tokens, context) <= total(tokens, context + 1));
  }
}

// ---- plans ----

TEST_CASE("a precision plan names experts and attention; the rest is bf16 unless said") {
  const PrecisionPlan plan = read_precision(config(R"({"experts": "mxfp4", "attention": "fp8"})"));
  CHECK(plan.experts == Precision::mxfp4);
  CHECK(plan.attention == Precision::fp8);
  CHECK(plan.kv_cache == Precision::bf16);
  CHECK(plan.activations == Precision::bf16);
  CHECK_THAT(config_error([] { read_precision(config(R"({"experts": "fp8"})")); }),
             Contains("\"attention\" is missing"));
}

TEST_CASE("a parallel plan that the model cannot be cut into is refused with the reason") {
  const MoeModel qwen = zoo("qwen3_30b_a3b");
  const auto error_of = [&](const std::string& text) {
    return config_error([&] { read_parallel(config(text), qwen); });
  };
  const ParallelPlan plan = read_parallel(config(R"({"dp": 2, "tp": 4, "ep": 4, "pp": 1})"), qwen);
  CHECK(plan.gpus() == 8);
  CHECK(plan.moe_tp() == 2);
  CHECK(read_parallel(config(R"({"dp": 8})"), qwen).ep == 8);
  CHECK(read_parallel(config(R"({"dp": 2, "tp": 4, "ep": 4, "pp": 2})"), qwen).gpus() == 16);
  CHECK_THAT(error_of(R"({"pp": 49})"), Contains("pp 49 is more than the model's 48 layers"));
  CHECK_THAT(error_of(R"({"dp": 8, "ep": 3})"), Contains("ep 3 does not divide dp * tp = 8"));
  CHECK(read_parallel(config(R"({"dp": 256, "ep": 256})"), qwen).ep == 256);  // copies fill them
  CHECK_THAT(error_of(R"({"dp": 256, "ep": 128, "decode_ep": 256})"),
             Contains("more than the model's 128 experts"));
  CHECK_THAT(error_of(R"({"tp": 3, "ep": 3})"),
             Contains("tp 3 does not divide the model's 32 query heads"));
}

TEST_CASE("kernels of a step without a graph are those of its parts") {
  const auto count = [](const char* name, const ParallelPlan& plan, const PrecisionPlan& precision,
                        const Fusions& fusions) {
    return kernel_launches(zoo(name), plan, precision, fusions);
  };
  const PrecisionPlan bf16{};
  // Two norms, five of attention, three of the FFN.
  CHECK(count("llama_3_3_70b", {1, 1, 1}, bf16, {}) == 80 * 10);
  // Two all-reduces, and a quantisation before each of four products.
  PrecisionPlan fp8{Precision::fp8, Precision::fp8, Precision::fp8, Precision::fp8, Precision::fp8};
  CHECK(count("llama_3_3_70b", {1, 8, 1}, fp8, {}) == 80 * 16);
  CHECK(count("llama_3_3_70b", {1, 8, 1}, fp8, {true, true, true}) == 80 * 9);
  // Scales of blocks are known only with the input; without an all-reduce norms are alone.
  fp8.activations = Precision::fp8_block;
  CHECK(count("llama_3_3_70b", {1, 8, 1}, fp8, {true, true, true}) == 80 * 13);
  CHECK(count("llama_3_3_70b", {1, 1, 1}, bf16, {.norm = true}) == 80 * 10);
  // Nine of an expert layer for three of a dense one; packing, dispatch, combine and unpacking
  // where attention ranks are several.
  CHECK(count("gpt_oss_120b", {1, 1, 1}, bf16, {}) == 36 * 16);
  CHECK(count("gpt_oss_120b", {4, 1, 4}, bf16, {}) == 36 * 20);
  // MLA takes five more than GQA, shared experts four.
  CHECK(count("deepseek_v3", {1, 1, 1}, bf16, {}) == 61 * 12 + 3 * 3 + 58 * (9 + 4));
  // Sparse attention and linear attention launch many more.
  CHECK(count("deepseek_v3_2", {1, 1, 1}, bf16, {}) ==
        count("deepseek_v3", {1, 1, 1}, bf16, {}) + 61 * 8);
  CHECK(count("qwen3_5_397b_a17b", {1, 1, 1}, bf16, {}) == 15 * 7 + 45 * 16 + 60 * 13);
}

}  // namespace
}  // namespace moesim::test_models
