// SPDX-License-Identifier: Apache-2.0
// Parameters and KV bytes of every model, worked by hand from its config.json: the arithmetic
// stands in the table, with the file's numbers, beside what the model's reader counts.
#include <algorithm>
#include <filesystem>
#include <set>

#include "models/memory.hpp"
#include "models/moe_model.hpp"
#include "tests/support.hpp"

namespace moesim {
namespace {

using Catch::Matchers::Contains;
using namespace test;

// ---- the arithmetic, by the papers; h is the hidden size ----

// Queries and outputs of q heads, keys and values of kv heads, each of d.
constexpr double gqa(double h, double q, double kv, double d) { return 2 * h * (q + kv) * d; }
// DeepSeek-V2, section 2.1: queries by way of a rank (0: directly), the latent and the rotary key,
// keys and values out of the latent, the output.
constexpr double mla(double h, double heads, double rank, double latent, double nope, double rope,
                     double v) {
  const double query = heads * (nope + rope);
  return (rank > 0 ? h * rank + rank * query : h * query) + h * (latent + rope) +
         latent * heads * (nope + v) + heads * v * h;
}
// Queries of n heads of d out of the compressed ones, a key of d and a weight for each head.
constexpr double indexer(double h, double rank, double n, double d) {
  return rank * n * d + h * (d + n);
}
// DeepSeek-V4: queries and the output by way of ranks, the output's in groups; a latent of 512;
// keys and gates of what is compressed in windows of 128 tokens, or in overlapping ones of 4, where
// an indexer of 64 heads of 128 compresses keys of its own.
constexpr double windowed(double h, double heads, double rank, double groups) {
  return h * rank + rank * heads * 512 + h * 512 + heads * 512 * 1024 + groups * 1024 * h;
}
constexpr double hca(double h) { return 2 * h * 512; }
constexpr double csa(double h, double rank) {
  return 2 * h * 1024 + 2 * h * 256 + rank * 64 * 128 + h * 64;
}
// Hyper-connections before and after attention and FFN: 24 numbers out of 4 streams.
constexpr double streams(double h) { return 2 * 24 * 4 * h; }
// Bytes of a token of so many layers of either kind: an entry for 4 tokens with an index key, one
// for 128.
constexpr double compressed(double entry, double csa_layers, double hca_layers) {
  return csa_layers * (entry + 132) / 4 + hca_layers * entry / 128;
}
// Gate, up and down; up and down alone.
constexpr double gated(double h, double w) { return 3 * h * w; }
constexpr double plain(double h, double w) { return 2 * h * w; }
// Gated delta net: queries, keys, values, the output's gate, decay and rate of each value head; a
// convolution of 4 tokens; the output.
constexpr double delta_net(double h, double keys, double values, double heads) {
  return h * (2 * keys + 2 * values + 2 * heads) + 4 * (2 * keys + values) + values * h;
}
// Mamba-2: x and z, B and C of each group, a step of each head; convolution of 4; the output.
constexpr double mamba2(double h, double heads, double dim, double groups, double state) {
  const double inner = heads * dim, bc = 2 * groups * state;
  return h * (2 * inner + bc + heads) + 4 * (inner + bc) + inner * h;
}
// Kimi Delta Attention: queries, keys, values, the output's gate and the output, all of d; a decay
// by way of a head's dimension, a rate for each head, three convolutions of 4.
constexpr double kda(double h, double heads, double dim) {
  const double d = heads * dim;
  return 5 * h * d + dim * (h + d) + h * heads + 3 * 4 * d;
}
constexpr double norms(double h) { return 2 * h; }

// Bytes of a number in bf16; of the latent with its rotary key; of an index key with its scale.
constexpr double bf16 = 2;
constexpr double latent = (512 + 64) * bf16;
constexpr double index_key = 128 + 4;

struct Model {
  std::vector<std::string> files;  // of the zoo, or folders of ../shared/data/models
  double layers;                   // all layers but routed experts, and the final norm
  double expert;                   // one routed expert
  double moe_layers, experts, per_token;
  double table;  // the embedding; the LM head is as large
  bool tied;
  double kv_bytes;  // that a token adds in bf16, over all layers, windows or not
};

double total(const Model& m) {
  return m.layers + m.moe_layers * m.experts * m.expert + (m.tied ? 1 : 2) * m.table;
}
// Layers and LM head.
double active(const Model& m) { return m.layers + m.moe_layers * m.per_token * m.expert + m.table; }

const std::vector<Model>& models() {
  static const std::vector<Model> table{
      {{"arctic", "Snowflake--snowflake-arctic-instruct"},  // a dense FFN beside the experts
       35 * (gqa(7168, 56, 8, 128) + norms(7168) + gated(7168, 7168) + 7168 * 128) + 7168,
       gated(7168, 4864),
       35,
       128,
       2,
       7168. * 32000,
       false,
       35 * 2 * 8 * 128 * bf16},
      {{"deepseek_v2_lite"},
       27 * (mla(2048, 16, 0, 512, 128, 64, 128) + norms(2048)) + gated(2048, 10944) +
           26 * (gated(2048, 2 * 1408) + 2048 * 64) + 2048,
       gated(2048, 1408),
       26,
       64,
       6,
       2048. * 102400,
       false,
       27 * latent},
      {{"deepseek_v3", "deepseek-ai--DeepSeek-R1"},
       61 * (mla(7168, 128, 1536, 512, 128, 64, 128) + norms(7168)) + 3 * gated(7168, 18432) +
           58 * (gated(7168, 2048) + 7168 * 256) + 7168,
       gated(7168, 2048),
       58,
       256,
       8,
       7168. * 129280,
       false,
       61 * latent},
      {{"deepseek_v3_2", "deepseek-ai--DeepSeek-V3.2"},
       61 * (mla(7168, 128, 1536, 512, 128, 64, 128) + indexer(7168, 1536, 64, 128) + norms(7168)) +
           3 * gated(7168, 18432) + 58 * (gated(7168, 2048) + 7168 * 256) + 7168,
       gated(7168, 2048),
       58,
       256,
       8,
       7168. * 129280,
       false,
       61 * (latent + index_key)},
      // 2 layers with a window alone, 21 CSA, 20 HCA.
      {{"deepseek_v4_flash", "deepseek-ai--DeepSeek-V4-Flash",
        "sgl-project--DeepSeek-V4-Flash-FP8"},
       43 * (windowed(4096, 64, 1024, 8) + streams(4096) + norms(4096) + gated(4096, 2048) +
             4096 * 256) +
           21 * csa(4096, 1024) + 20 * hca(4096) + 4096,
       gated(4096, 2048),
       43,
       256,
       6,
       4096. * 129280,
       false,
       compressed(512 * bf16, 21, 20)},
      {{"deepseek_v4_pro"},
       61 * (windowed(7168, 128, 1536, 16) + streams(7168) + norms(7168) + gated(7168, 3072) +
             7168 * 384) +
           30 * csa(7168, 1536) + 31 * hca(7168) + 7168,
       gated(7168, 3072),
       61,
       384,
       6,
       7168. * 129280,
       false,
       compressed(512 * bf16, 30, 31)},
      {{"glm_4_5_air", "zai-org--GLM-4.5-Air"},
       46 * (gqa(4096, 96, 8, 128) + norms(4096)) + gated(4096, 10944) +
           45 * (gated(4096, 1408) + 4096 * 128) + 4096,
       gated(4096, 1408),
       45,
       128,
       8,
       4096. * 151552,
       false,
       46 * 2 * 8 * 128 * bf16},
      {{"glm_4_6"},
       92 * (gqa(5120, 96, 8, 128) + norms(5120)) + 3 * gated(5120, 12288) +
           89 * (gated(5120, 1536) + 5120 * 160) + 5120,
       gated(5120, 1536),
       89,
       160,
       8,
       5120. * 151552,
       false,
       92 * 2 * 8 * 128 * bf16},
      {{"glm_5", "nvidia--GLM-5-NVFP4", "zai-org--GLM-5.1"},
       78 * (mla(6144, 64, 2048, 512, 192, 64, 256) + indexer(6144, 2048, 32, 128) + norms(6144)) +
           3 * gated(6144, 12288) + 75 * (gated(6144, 2048) + 6144 * 256) + 6144,
       gated(6144, 2048),
       75,
       256,
       8,
       6144. * 154880,
       false,
       78 * (latent + index_key)},
      // GLM-5 with an indexer in 21 layers.
      {{"glm_5_2"},
       78 * (mla(6144, 64, 2048, 512, 192, 64, 256) + norms(6144)) +
           21 * indexer(6144, 2048, 32, 128) + 3 * gated(6144, 12288) +
           75 * (gated(6144, 2048) + 6144 * 256) + 6144,
       gated(6144, 2048),
       75,
       256,
       8,
       6144. * 154880,
       false,
       78 * latent + 21 * index_key},
      {{"gpt_oss_120b", "openai--gpt-oss-120b"},
       36 * (gqa(2880, 64, 8, 64) + norms(2880) + 2880 * 128) + 2880,
       gated(2880, 2880),
       36,
       128,
       4,
       2880. * 201088,
       false,
       36 * 2 * 8 * 64 * bf16},
      {{"gpt_oss_20b"},
       24 * (gqa(2880, 64, 8, 64) + norms(2880) + 2880 * 32) + 2880,
       gated(2880, 2880),
       24,
       32,
       4,
       2880. * 201088,
       false,
       24 * 2 * 8 * 64 * bf16},
      {{"kimi_k2", "kimi_k2_5", "moonshotai--Kimi-K2-Instruct", "moonshotai--Kimi-K2.5",
        "nvidia--Kimi-K2.5-NVFP4"},
       61 * (mla(7168, 64, 1536, 512, 128, 64, 128) + norms(7168)) + gated(7168, 18432) +
           60 * (gated(7168, 2048) + 7168 * 384) + 7168,
       gated(7168, 2048),
       60,
       384,
       8,
       7168. * 163840,
       false,
       61 * latent},
      {{"llama_3_1_8b"},
       32 * (gqa(4096, 32, 8, 128) + norms(4096) + gated(4096, 14336)) + 4096,
       0,
       0,
       0,
       0,
       4096. * 128256,
       false,
       32 * 2 * 8 * 128 * bf16},
      {{"llama_3_3_70b"},
       80 * (gqa(8192, 64, 8, 128) + norms(8192) + gated(8192, 28672)) + 8192,
       0,
       0,
       0,
       0,
       8192. * 128256,
       false,
       80 * 2 * 8 * 128 * bf16},
      {{"llama_4_maverick", "meta-llama--Llama-4-Maverick-17B-128E-Instruct"},
       48 * (gqa(5120, 40, 8, 128) + norms(5120)) + 24 * gated(5120, 16384) +
           24 * (gated(5120, 8192) + 5120 * 128) + 5120,
       gated(5120, 8192),
       24,
       128,
       1,
       5120. * 202048,
       false,
       48 * 2 * 8 * 128 * bf16},
      {{"llama_4_scout"},
       48 * (gqa(5120, 40, 8, 128) + norms(5120) + gated(5120, 8192) + 5120 * 16) + 5120,
       gated(5120, 8192),
       48,
       16,
       1,
       5120. * 202048,
       false,
       48 * 2 * 8 * 128 * bf16},
      {{"minimax_m2_5", "MiniMaxAI--MiniMax-M2.5"},
       62 * (gqa(3072, 48, 8, 128) + norms(3072) + 3072 * 256) + 3072,
       gated(3072, 1536),
       62,
       256,
       8,
       3072. * 200064,
       false,
       62 * 2 * 8 * 128 * bf16},
      {{"mixtral_8x22b", "mistralai--Mixtral-8x22B-v0.1"},
       56 * (gqa(6144, 48, 8, 128) + norms(6144) + 6144 * 8) + 6144,
       gated(6144, 16384),
       56,
       8,
       2,
       6144. * 32000,
       false,
       56 * 2 * 8 * 128 * bf16},
      {{"mixtral_8x7b"},
       32 * (gqa(4096, 32, 8, 128) + norms(4096) + 4096 * 8) + 4096,
       gated(4096, 14336),
       32,
       8,
       2,
       4096. * 32000,
       false,
       32 * 2 * 8 * 128 * bf16},
      {{"olmoe_1b_7b", "allenai--OLMoE-1B-7B-0924"},
       16 * (gqa(2048, 16, 16, 128) + norms(2048) + 2048 * 64) + 2048,
       gated(2048, 1024),
       16,
       64,
       8,
       2048. * 50304,
       false,
       16 * 2 * 16 * 128 * bf16},
      {{"qwen3_235b_a22b", "Qwen--Qwen3-235B-A22B", "Qwen--Qwen3-235B-A22B-FP8",
        "Qwen--Qwen3-VL-235B-A22B-Instruct"},
       94 * (gqa(4096, 64, 4, 128) + norms(4096) + 4096 * 128) + 4096,
       gated(4096, 1536),
       94,
       128,
       8,
       4096. * 151936,
       false,
       94 * 2 * 4 * 128 * bf16},
      {{"qwen3_30b_a3b"},
       48 * (gqa(2048, 32, 4, 128) + norms(2048) + 2048 * 128) + 2048,
       gated(2048, 768),
       48,
       128,
       8,
       2048. * 151936,
       false,
       48 * 2 * 4 * 128 * bf16},
      {{"qwen3_32b"},
       64 * (gqa(5120, 64, 8, 128) + norms(5120) + gated(5120, 25600)) + 5120,
       0,
       0,
       0,
       0,
       5120. * 151936,
       false,
       64 * 2 * 8 * 128 * bf16},
      {{"qwen3_coder_480b"},
       62 * (gqa(6144, 96, 8, 128) + norms(6144) + 6144 * 160) + 6144,
       gated(6144, 2560),
       62,
       160,
       8,
       6144. * 151936,
       false,
       62 * 2 * 8 * 128 * bf16},
      // A gate of the output is a third projection of the queries' size.
      {{"qwen3_5_397b_a17b"},
       15 * (gqa(4096, 32, 2, 256) + 4096 * 32 * 256) + 45 * delta_net(4096, 2048, 8192, 64) +
           60 * (norms(4096) + gated(4096, 1024) + 4096 * 512) + 4096,
       gated(4096, 1024),
       60,
       512,
       10,
       4096. * 248320,
       false,
       15 * 2 * 2 * 256 * bf16},
      {{"Qwen--Qwen3.5-122B-A10B", "nvidia--Qwen3.5-122B-A10B-NVFP4"},
       12 * (gqa(3072, 32, 2, 256) + 3072 * 32 * 256) + 36 * delta_net(3072, 2048, 8192, 64) +
           48 * (norms(3072) + gated(3072, 1024) + 3072 * 256) + 3072,
       gated(3072, 1024),
       48,
       256,
       8,
       3072. * 248320,
       false,
       12 * 2 * 2 * 256 * bf16},
      {{"qwen3_next_80b_a3b", "Qwen--Qwen3-Next-80B-A3B-Instruct"},
       12 * (gqa(2048, 16, 2, 256) + 2048 * 16 * 256) + 36 * delta_net(2048, 2048, 4096, 32) +
           48 * (norms(2048) + gated(2048, 512) + 2048 * 512) + 2048,
       gated(2048, 512),
       48,
       512,
       10,
       2048. * 151936,
       false,
       12 * 2 * 2 * 256 * bf16},
      // 57 layers with 4 index heads and one index key of 128, kept in bf16.
      {{"MiniMaxAI--MiniMax-M3", "nvidia--MiniMax-M3-NVFP4"},
       60 * (gqa(6144, 64, 4, 128) + norms(6144)) + 57 * 6144 * (4 + 1) * 128 +
           3 * gated(6144, 12288) + 57 * (gated(6144, 3072) + 6144 * 128) + 6144,
       gated(6144, 3072),
       57,
       128,
       4,
       6144. * 200064,
       false,
       60 * 2 * 4 * 128 * bf16 + 57 * 128 * bf16},
      // 64 query heads of 192, values of 128; 4 KV heads in 9 layers, 8 in 39 with a window.
      {{"XiaomiMiMo--MiMo-V2-Flash"},
       48 * (4096 * 64 * (192 + 128) + norms(4096)) + 4096 * (9 * 4 + 39 * 8) * (192 + 128) +
           gated(4096, 16384) + 47 * 4096 * 256 + 4096,
       gated(4096, 2048),
       47,
       256,
       8,
       4096. * 152576,
       false,
       (9 * 4 + 39 * 8) * (192 + 128) * bf16},
      // Mamba of 8192 channels, state 16, step rank 256 in 28 of 32 layers.
      {{"ai21labs--AI21-Jamba-1.5-Mini"},
       4 * gqa(4096, 32, 8, 128) +
           28 * (4096. * 2 * 8192 + 8192 * (4 + 256 + 2 * 16 + 256 + 16) + 8192. * 4096) +
           32 * norms(4096) + 16 * gated(4096, 14336) + 16 * 4096 * 16 + 4096,
       gated(4096, 14336),
       16,
       16,
       2,
       4096. * 65536,
       false,
       4 * 2 * 8 * 128 * bf16},
      {{"baidu--ERNIE-4.5-21B-A3B-PT"},
       28 * (gqa(2560, 20, 4, 128) + norms(2560)) + gated(2560, 12288) +
           27 * (gated(2560, 2 * 1536) + 2560 * 64) + 2560,
       gated(2560, 1536),
       27,
       64,
       6,
       2560. * 103424,
       true,
       28 * 2 * 4 * 128 * bf16},
      {{"databricks--dbrx-instruct"},
       40 * (gqa(6144, 48, 8, 128) + norms(6144) + 6144 * 16) + 6144,
       gated(6144, 10752),
       40,
       16,
       4,
       6144. * 100352,
       false,
       40 * 2 * 8 * 128 * bf16},
      // 25 layers with 8 KV heads of 256 and a window, 5 with 2 of 512 whose values are the keys,
      // cached as both; a dense FFN beside the experts.
      {{"google--gemma-4-26B-A4B", "nvidia--Gemma-4-26B-A4B-NVFP4"},
       25 * gqa(2816, 16, 8, 256) + 5 * 2816 * (2 * 16 + 2) * 512 +
           30 * (norms(2816) + gated(2816, 2112) + 2816 * 128) + 2816,
       gated(2816, 704),
       30,
       128,
       8,
       2816. * 262144,
       true,
       25 * 2 * 8 * 256 * bf16 + 5 * 2 * 2 * 512 * bf16},
      {{"ibm-granite--granite-3.1-3b-a800m-instruct"},
       32 * (gqa(1536, 24, 8, 64) + norms(1536) + 1536 * 40) + 1536,
       gated(1536, 512),
       32,
       40,
       8,
       1536. * 49155,
       true,
       32 * 2 * 8 * 64 * bf16},
      {{"inclusionAI--Ling-flash-2.0"},
       32 * (gqa(4096, 32, 4, 128) + norms(4096)) + gated(4096, 9216) +
           31 * (gated(4096, 1024) + 4096 * 256) + 4096,
       gated(4096, 1024),
       31,
       256,
       8,
       4096. * 157184,
       false,
       32 * 2 * 4 * 128 * bf16},
      {{"microsoft--Phi-3.5-MoE-instruct"},
       32 * (gqa(4096, 32, 8, 128) + norms(4096) + 4096 * 16) + 4096,
       gated(4096, 6400),
       32,
       16,
       2,
       4096. * 32064,
       false,
       32 * 2 * 8 * 128 * bf16},
      // 69 layers of KDA, 24 of MLA with a gate of the output; experts see 3584 of 7168.
      {{"kimi_k3", "moonshotai--Kimi-K3"},
       69 * kda(7168, 96, 128) + 24 * (mla(7168, 96, 1536, 512, 128, 64, 128) + 7168 * 96 * 128) +
           93 * norms(7168) + gated(7168, 33792) +
           92 * (gated(7168, 2 * 3072) + 7168 * 896 + 2. * 7168 * 3584) + 7168,
       gated(3584, 3072),
       92,
       896,
       16,
       7168. * 163840,
       false,
       24 * latent},
      // 23 Mamba-2, 23 of experts without a gate, 6 of attention, each with one norm.
      {{"nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"},
       23 * mamba2(2688, 64, 64, 8, 128) + 6 * gqa(2688, 32, 2, 128) + 52 * 2688 +
           23 * (plain(2688, 3712) + 2688 * 128) + 2688,
       plain(2688, 1856),
       23,
       128,
       6,
       2688. * 131072,
       false,
       6 * 2 * 2 * 128 * bf16},
      {{"rednote--dots.llm1.inst"},
       62 * (gqa(4096, 32, 32, 128) + norms(4096)) + gated(4096, 10944) +
           61 * (gated(4096, 2 * 1408) + 4096 * 128) + 4096,
       gated(4096, 1408),
       61,
       128,
       6,
       4096. * 152064,
       false,
       62 * 2 * 32 * 128 * bf16},
      // Queries by way of 2,048 numbers, one key and one value for all heads.
      {{"step3"},
       61 * (7168. * 2048 + 2048. * 64 * 256 + 2. * 7168 * 256 + 64. * 256 * 7168 + norms(7168)) +
           5 * gated(7168, 18432) + 56 * (gated(7168, 5120) + 7168 * 48) + 7168,
       gated(7168, 5120),
       56,
       48,
       3,
       7168. * 128815,
       false,
       61 * 2 * 256 * bf16},
      {{"stepfun-ai--Step-3.7-Flash", "stepfun-ai--Step-3.7-Flash-FP8"},
       45 * (gqa(4096, 64, 8, 128) + norms(4096)) + 3 * gated(4096, 11264) +
           42 * (gated(4096, 1280) + 4096 * 288) + 4096,
       gated(4096, 1280),
       42,
       288,
       8,
       4096. * 128896,
       false,
       45 * 2 * 8 * 128 * bf16},
      {{"tencent--Hunyuan-A13B-Instruct"},
       32 * (gqa(4096, 32, 8, 128) + norms(4096) + gated(4096, 3072) + 4096 * 64) + 4096,
       gated(4096, 3072),
       32,
       64,
       8,
       4096. * 128167,
       true,
       32 * 2 * 8 * 128 * bf16}};
  return table;
}

std::filesystem::path zoo_folder() { return source_dir() / "models" / "zoo"; }
std::filesystem::path shared_folder() { return shared_dir() / "data" / "models"; }

std::filesystem::path file_of(const std::string& name) {
  const std::filesystem::path zoo = zoo_folder() / (name + ".json");
  return std::filesystem::exists(zoo) ? zoo : shared_folder() / name / "config.json";
}

// Left out of a count are numbers of a head or a channel, as a norm's within a head: 1e-5 at most.
// Nemotron's experts count as gated ones of two thirds their width, rounded up to eights: .3 % at
// most.
void check(const Model& by_hand, const MoeModel& model, double tolerance = 1e-5) {
  CHECK_THAT(count_parameters(model).total, WithinRel(total(by_hand), tolerance));
  CHECK_THAT(count_parameters(model).active, WithinRel(active(by_hand), 10 * tolerance));
  CHECK_THAT(kv_bytes_per_token(model, {}, {}).value(), WithinRel(by_hand.kv_bytes, 1e-12));
}

TEST_CASE("every model has the parameters and KV bytes that a pencil finds in its config.json") {
  bool skipped = false;
  for (const Model& row : models()) {
    for (const std::string& name : row.files) {
      CAPTURE(name);
      if (!std::filesystem::exists(file_of(name))) {
        skipped = true;
        CHECK_FALSE(has_shared());
        continue;
      }
      const bool rounded = name.find("Nemotron") != std::string::npos;
      check(row, read_model(ConfigNode::from_file(file_of(name))), rounded ? 3e-3 : 1e-5);
    }
  }
  if (skipped) WARN("skipped: ../shared is absent, and with it most config.json");
}

TEST_CASE("the table by hand names every model of the zoo and of the shared config.json") {
  std::set<std::string> listed, there;
  for (const Model& row : models()) listed.insert(row.files.begin(), row.files.end());
  for (const auto& file : std::filesystem::directory_iterator(zoo_folder()))
    there.insert(file.path().stem().string());
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    for (const std::string& name : there) CHECK(listed.contains(name));
    return;
  }
  for (const auto& folder : std::filesystem::directory_iterator(shared_folder()))
    if (folder.is_directory()) there.insert(folder.path().filename().string());
  CHECK(listed == there);
}

TEST_CASE("what is published of some of them is what the pencil finds") {
  const auto row = [](const std::string& name) {
    return *std::ranges::find_if(models(), [&](const Model& m) { return m.files.front() == name; });
  };
  // Kimi-K3: 104 B active, as its card says; 2.78 T.
  CHECK_THAT(active(row("kimi_k3")), WithinRel(104.18e9, 1e-4));
  CHECK_THAT(total(row("kimi_k3")), WithinRel(2779.48e9, 1e-4));
  CHECK(row("kimi_k3").kv_bytes == 27'648);
  CHECK(row("deepseek_v3_2").kv_bytes == 78'324);
  CHECK(row("glm_5").kv_bytes == 100'152);
  // DeepSeek-V4 without its MTP layer: 284.332 B and 1,572.997 B, of which 13.27 B and 48.85 B are
  // active; entries in fp8 with bf16 positions and scales take 584 bytes.
  CHECK_THAT(total(row("deepseek_v4_flash")), WithinRel(284.332e9, 1e-5));
  CHECK_THAT(total(row("deepseek_v4_pro")), WithinRel(1'572.997e9, 1e-5));
  CHECK_THAT(active(row("deepseek_v4_flash")), WithinRel(13.27e9, 1e-3));
  CHECK_THAT(active(row("deepseek_v4_pro")), WithinRel(48.85e9, 1e-3));
  CHECK(compressed(584, 21, 20) == 3'850.25);
  CHECK_THAT(compressed(584, 30, 31), WithinAbs(5'511.4, .05));
}

// ---- models of which no file comes along ----

TEST_CASE("GLM-5.2 has an indexer in 21 of 78 layers, however its file says it") {
  Json json =
      Json::parse(R"({"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
    "first_k_dense_replace": 3, "hidden_size": 6144, "index_head_dim": 128, "index_n_heads": 32,
    "index_topk": 2048, "intermediate_size": 12288, "kv_lora_rank": 512,
    "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 78, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1, "q_lora_rank": 2048, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "topk_group": 1, "v_head_dim": 256, "vocab_size": 154880})");
  json["index_topk_freq"] = 4;
  json["index_skip_topk_offset"] = 3;
  // All of GLM-5, with 57 indexers less.
  Model row = *std::ranges::find_if(models(), [](const Model& m) { return m.files[0] == "glm_5"; });
  row.layers -= 57 * indexer(6144, 2048, 32, 128);
  row.kv_bytes = 78 * latent + 21 * index_key;
  const MoeModel by_frequency = read_model(config(json.dump()));
  check(row, by_frequency);
  CHECK_THAT(total(row), WithinRel(743.38e9, 1e-5));
  CHECK(row.kv_bytes == 92'628);
  // In fp8 a token's latent has 512 numbers, 4 scales of fp32 and 64 numbers in bf16.
  CHECK(kv_bytes_per_token(by_frequency, {}, {.kv_cache = Precision::fp8}) ==
        Bytes(78 * (512 + 4 * 4 + 64 * 2) + 21 * 132));
  CHECK(kv_layout(by_frequency, {}, {}).block == Bytes(16 * 92'628));
  CHECK(by_frequency.max_positions == 1'048'576);

  Json named = json;
  named.erase("index_topk_freq");
  named.erase("index_skip_topk_offset");
  Json& types = named["indexer_types"] = Json::array();
  for (int layer = 0; layer < 78; ++layer)
    types.push_back(layer < 3 || layer % 4 == 2 ? "full" : "shared");
  named["layer_types"] = std::vector<std::string>(78, "deepseek_sparse_attention");
  CHECK(read_model(config(named.dump())).layers == by_frequency.layers);
  CHECK(read_model(ConfigNode::from_file(file_of("glm_5_2"))).layers == by_frequency.layers);
  types[7] = "half";
  CHECK_THAT(config_error([&] { read_model(config(named.dump())); }),
             Contains("/indexer_types/7: unknown indexer; expected a full or a shared one"));
  named.erase("indexer_types");
  std::string letters;
  for (const LayerSpec& layer : by_frequency.layers)
    letters += layer.mixer->sight().indexed ? 'F' : 'S';
  named["index_topk_pattern"] = letters;
  CHECK(read_model(config(named.dump())).layers == by_frequency.layers);
  // No layer can take the choice of one before it that there is not.
  named["index_topk_pattern"] = std::string(78, 'S');
  CHECK_THAT(config_error([&] { read_model(config(named.dump())); }), Contains("has no indexer"));
}

// Nemotron-3 Super and Ultra: M, E and * blocks, as transformers 5 lists them.
Json nemotron(int mamba, int experts, int attention) {
  Json json = Json::parse(R"({"model_type": "nemotron_h", "num_hidden_layers": null,
    "head_dim": 128, "num_key_value_heads": 2, "n_groups": 8, "ssm_state_size": 128,
    "mamba_head_dim": 64, "conv_kernel": 4, "n_routed_experts": 512, "num_experts_per_tok": 22,
    "n_shared_experts": 1, "vocab_size": 131072, "intermediate_size": 2688})");
  Json& blocks = json["layers_block_type"] = Json::array();
  for (int i = 0; i < std::max({mamba, experts, attention}); ++i) {
    if (i < attention) blocks.push_back("attention");
    if (i < mamba) blocks.push_back("mamba");
    if (i < experts) blocks.push_back("moe");
  }
  return json;
}

TEST_CASE("Nemotron-3 Super and Ultra are read from the list of their blocks") {
  Json super = nemotron(40, 40, 8);
  super.merge_patch({{"hidden_size", 4096},
                     {"num_attention_heads", 32},
                     {"mamba_num_heads", 128},
                     {"moe_intermediate_size", 2688},
                     {"moe_latent_size", 1024},
                     {"moe_shared_expert_intermediate_size", 5376}});
  const Model super_row{{},
                        40 * mamba2(4096, 128, 64, 8, 128) + 8 * gqa(4096, 32, 2, 128) + 88 * 4096 +
                            40 * (plain(4096, 5376) + 4096 * 512 + 2. * 4096 * 1024) + 4096,
                        plain(1024, 2688),
                        40,
                        512,
                        22,
                        4096. * 131072,
                        false,
                        8 * 2 * 2 * 128 * bf16};
  CHECK_THAT(total(super_row), WithinRel(120.67e9, 1e-4));
  CHECK_THAT(active(super_row), WithinRel(12.23e9, 1e-3));
  check(super_row, read_model(config(super.dump())), 1e-3);

  Json ultra = nemotron(48, 48, 12);
  ultra.merge_patch({{"hidden_size", 8192},
                     {"num_attention_heads", 64},
                     {"mamba_num_heads", 256},
                     {"moe_intermediate_size", 5120},
                     {"moe_latent_size", 2048},
                     {"moe_shared_expert_intermediate_size", 10240}});
  const Model ultra_row{{},
                        48 * mamba2(8192, 256, 64, 8, 128) + 12 * gqa(8192, 64, 2, 128) +
                            108 * 8192 + 48 * (plain(8192, 10240) + 8192 * 512 + 2. * 8192 * 2048) +
                            8192,
                        plain(2048, 5120),
                        48,
                        512,
                        22,
                        8192. * 131072,
                        false,
                        12 * 2 * 2 * 128 * bf16};
  CHECK_THAT(total(ultra_row), WithinRel(549.31e9, 1e-4));
  CHECK_THAT(active(ultra_row), WithinRel(54.98e9, 1e-3));
  check(ultra_row, read_model(config(ultra.dump())), 1e-3);

  ultra["layers_block_type"][3] = "conv";
  CHECK_THAT(config_error([&] { read_model(config(ultra.dump())); }),
             Contains("/layers_block_type/3: a layer of type \"conv\""));
}

TEST_CASE("Gemma 4 without experts is a dense model") {
  // 31B: five layers in six have a window; those that see all have heads of their own.
  Json json =
      Json::parse(R"({"model_type": "gemma4_text", "hidden_size": 5376, "vocab_size": 262144,
    "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
    "num_global_key_value_heads": 4, "global_head_dim": 512, "attention_k_eq_v": true,
    "intermediate_size": 21504, "sliding_window": 1024, "enable_moe_block": false,
    "tie_word_embeddings": true, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0})");
  Json& types = json["layer_types"] = Json::array();
  for (int layer = 0; layer < 60; ++layer)
    types.push_back(layer % 6 == 5 ? "full_attention" : "sliding_attention");
  const Model row{{},
                  50 * gqa(5376, 32, 16, 256) + 10 * 5376 * (2 * 32 + 4) * 512 +
                      60 * (norms(5376) + gated(5376, 21504)) + 5376,
                  0,
                  0,
                  0,
                  0,
                  5376. * 262144,
                  true,
                  50 * 2 * 16 * 256 * bf16 + 10 * 2 * 4 * 512 * bf16};
  CHECK_THAT(total(row), WithinRel(30.70e9, 1e-3));
  const MoeModel model = read_model(config(json.dump()));
  check(row, model);
  CHECK(model.moe_layers() == 0);
  json["hidden_size_per_layer_input"] = 256;
  CHECK_THAT(config_error([&] { read_model(config(json.dump())); }),
             Contains("/hidden_size_per_layer_input"));
}

}  // namespace
}  // namespace moesim
