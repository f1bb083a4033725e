// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "traces/gating/synthetic.hpp"

namespace moesim {

/// Terms of synthetic routing that have the known statistics of a model. A trace of 4 workloads of
/// 64 requests has them in the mean over layers (trace_statistics.hpp).
/// tests/traces/test_presets.cpp holds how many experts a batch activates, test_gating.cpp the
/// other statistics.
struct GatingPreset {
  std::string_view name;
  std::string_view family;  ///< the models that the statistics are of
  std::string_view source;  ///< the statistics, and who published them
  GatingTerms terms;
};

/// Rows of presets. The comment above each row says what a published figure does not fix.
inline constexpr std::array gating_presets{
    // Pooled max/mean 2.62, variation .71, top-12.5 % share .28, least popular .04 of the mean; one
    // workload 4.1 and 1.0. Overlap at lag 1 .44, lag 128 .324, same request .315, different
    // requests .19. The next layer's experts are predicted in .62. The spread of a decode batch of
    // 8 over layers is 8.3. 512 prompt tokens of one request of gpt-oss-120b activate 72 to 95 of
    // 128 experts in its first eight layers (ggml-org/llama.cpp#15346); the preset 88.
    GatingPreset{"gpt_oss",
                 "gpt-oss",
                 "decode of gpt-oss-20b, 703 requests of 11 benchmarks, recorded "
                 "(AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting@72b368f)",
                 {.coldness = 1.3,
                  .workload_sigma = 0.2,
                  .request_sigma = 0.1,
                  .topics = 14,
                  .topics_per_request = 5,
                  .topic_skew = 1.1,
                  .topic_sigma = 3.15,
                  .topic_stay = 0.38}},
    // Max/mean 2.73, variation .51, top-12.5 % share .25; overlap at lag 1 .279, same request .167,
    // different .118; the next layer's experts foretold .58; spread of a decode batch of 8 over
    // layers 11.4.
    GatingPreset{"deepseek_v2_lite",
                 "DeepSeek-V2",
                 "213 whole sequences of 4 workloads on DeepSeek-V2-Lite, recorded "
                 "(deepseek-ai/ESFT@579a771)",
                 {.popularity_sigma = 0.4,
                  .workload_sigma = 0.12,
                  .topics = 26,
                  .topics_per_request = 10,
                  .topic_skew = 0.7,
                  .topic_sigma = 3.0,
                  .topic_stay = 0.3}},
    // 58 layers: hottest expert 6.1 times the mean (median layer; 3.2 to 13.3), top-32 share .313
    // (.249 to .497). Not published, and taken between the two above: what requests and workloads
    // share, and reuse. GPQA is one workload: several would activate more experts.
    GatingPreset{"deepseek_r1",
                 "DeepSeek-V3 and R1",
                 "DeepSeek-R1 on GPQA, one workload: statistics of its layers "
                 "(johanna-rock/moe-balance@700358b)",
                 {.popularity_sigma = 0.57,
                  .popularity_spread = 0.25,
                  .spikes = 2,
                  .spike_height = 1.6,
                  .workload_sigma = 0.5,
                  .request_sigma = 0.4,
                  .reuse = 0.1}},
    // EP32, 4,096 tokens a step: busiest rank 2.56 times the mean, hottest expert 11.9 times. Two
    // figures, two constants: popularity_sigma and spike_height; the others are deepseek_r1's. One
    // workload: what its requests share is popularity. The slot figure with EPLB (2.8) had been
    // seen when two spikes were chosen: that the preset meets it is a check, no blind prediction.
    GatingPreset{"deepseek_r1_translation",
                 "DeepSeek-V3 and R1",
                 "DeepSeek-R1 on a translation set, one workload, without EPLB "
                 "(TensorRT-LLM tech blog 4, table 1)",
                 {.popularity_sigma = 0.84,
                  .popularity_spread = 0.25,
                  .spikes = 2,
                  .spike_height = 2.36,
                  .request_sigma = 0.4,
                  .reuse = 0.1}},
    // Up to 16 sequences of one benchmark, the mean over layers and steps: Qwen3-30B-A3B activates
    // 43.0 to 53.5 of 128 experts, Qwen3-235B-A22B 51.6 to 56.0 (tables 4 and 10; batches shrink
    // towards the end of a run). Not published: batches of several benchmarks. They are taken to
    // activate more by what recorded models do, 1.07 (DeepSeek-V2-Lite) to 1.13 times (OLMoE).
    // Topics and how long they stay are as in the recorded models.
    GatingPreset{"qwen3",
                 "Qwen3",
                 "Qwen3-30B-A3B and Qwen3-235B-A22B on four benchmarks "
                 "(arXiv:2511.02237, tables 4 and 10), taken as workloads of a mixture",
                 {.popularity_sigma = 0.2,
                  .coldness = 1.5,
                  .request_sigma = 0.2,
                  .topics = 32,
                  .topics_per_request = 5,
                  .topic_skew = 2.0,
                  .topic_sigma = 2.2,
                  .topic_stay = 0.38}},
    // All sequences decode in step from the start of their answers: of 128 experts 60 active with
    // 64 tokens, 83 with 1024; there max/mean 12.7, variation 2.1, top-12.5 % share .71. Each batch
    // is of one layer and one iteration, chosen as usual ones. Not published: the split between
    // layer and workload, request and reuse.
    GatingPreset{"qwen3_one_workload",
                 "Qwen3",
                 "two batches of Qwen3-30B-A3B on HH-RLHF, one workload whose requests decode in "
                 "step (arXiv:2511.07776, section 5.1; stanford-ppl/step_artifact@8d045b1)",
                 {.popularity_sigma = 0.6,
                  .popularity_spread = 0.15,
                  .coldness = 4.8,
                  .workload_sigma = 1.2,
                  .request_sigma = 0.5,
                  .reuse = 0.15}},
    // All pooled: max/mean 8.63, variation 1.35, top-12.5 % share .47; one workload 8.5
    // to 9.9, 1.36
    // to 1.59; adjacent tokens of a request share .41 of their experts. Not published: what tokens
    // of one request share beyond that.
    GatingPreset{"gemma4",
                 "Gemma 4",
                 "counts of 21,858 tokens of 4 workloads on Gemma-4-26B-A4B "
                 "(crankysmh47/Expertflow@b6b5f45)",
                 {.popularity_sigma = 1.1,
                  .coldness = 1.1,
                  .workload_sigma = 0.6,
                  .request_sigma = 0.3,
                  .reuse = 0.3}},
    // Domains pooled: max/mean 2.67, variation .47, top-12.5 % share .25; one domain 2.7 to 7.2,
    // .41
    // to 1.16. Not published: what requests share, and reuse.
    GatingPreset{
        "olmoe",
        "OLMoE",
        "counts of 6 domains on OLMoE-1B-7B, 205k tokens each, in layers 0, 7 and 15 "
        "(allenai/OLMoE@357454f)",
        {.popularity_sigma = 0.25, .workload_sigma = 0.9, .request_sigma = 0.3, .reuse = 0.1}},
    // Domains pooled: max/mean 1.13, variation .10; one domain 1.11 to 1.29, .10 to .15. Not
    // published: what requests share; reuse by the repeated choices of arXiv:2401.04088, table 5.
    GatingPreset{
        "mixtral",
        "Mixtral",
        "counts of 5 domains on Mixtral-8x7B, 205k tokens each, in layers 0, 7 and 15 "
        "(allenai/OLMoE@357454f)",
        {.popularity_sigma = 0.08, .workload_sigma = 0.12, .request_sigma = 0.1, .reuse = 0.1}},
    // Prompts of random tokens, as load generators send them: deepseek_v2_lite without anything
    // that requests of one workload share.
    GatingPreset{"random_prompts",
                 "none",
                 "no fit: deepseek_v2_lite without what requests of one workload share",
                 {.popularity_sigma = 0.4,
                  .topics = 26,
                  .topics_per_request = 10,
                  .topic_sigma = 3.0,
                  .topic_stay = 0.3}},
};

/// For models of whose family nothing is published. Of the recorded families its batches activate
/// neither the most experts beside uniform routing (Mixtral, OLMoE, DeepSeek-V2-Lite) nor the
/// fewest (gpt-oss, Qwen3, Gemma 4).
inline constexpr std::string_view preset_of_other_families = "deepseek_r1";

struct PresetOfModel {
  const GatingPreset& preset;
  bool of_another_family = false;
};
/// The preset that a model names, or the one of other families. Throws ConfigError if there is none
/// of that name.
PresetOfModel preset_of(const MoeModel&);

}  // namespace moesim
