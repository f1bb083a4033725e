// SPDX-License-Identifier: Apache-2.0
// Does every engine's command hold flags that the engine has, and no others?
#include <map>
#include <set>
#include <sstream>

#include "tests/support.hpp"
#include "tools/cli/launch.hpp"

namespace moesim {
namespace {

using Words = std::set<std::string>;

// What the engines' parsers know of what is printed. vLLM: vllm/engine/arg_utils.py (99d7eb5) and
// vllm bench serve; SGLang: python/sglang/srt/server_args.py (0.5) and bench_serving.py;
// TensorRT-LLM: tensorrt_llm/commands/serve.py (00209af) and serve/scripts/benchmark_serving.py.
const std::map<std::string, Words> flags_of{
    {"vllm",
     {"--tensor-parallel-size",
      "--data-parallel-size",
      "--pipeline-parallel-size",
      "--enable-expert-parallel",
      "--all2all-backend",
      "--enable-eplb",
      "--eplb-config",
      "--max-num-seqs",
      "--max-num-batched-tokens",
      "--max-model-len",
      "--gpu-memory-utilization",
      "--kv-cache-dtype",
      "--no-enable-prefix-caching",
      "--speculative-config",
      "--enable-dbo",
      "--kv-transfer-config",
      "--model",
      "--dataset-name",
      "--random-input-len",
      "--random-output-len",
      "--random-range-ratio",
      "--ignore-eos",
      "--request-rate",
      "--max-concurrency",
      "--num-prompts"}},
    {"sglang",
     {"--model-path",
      "--tp-size",
      "--dp-size",
      "--enable-dp-attention",
      "--pp-size",
      "--ep-size",
      "--moe-a2a-backend",
      "--deepep-mode",
      "--ep-num-redundant-experts",
      "--ep-dispatch-algorithm",
      "--enable-eplb",
      "--init-expert-location",
      "--max-running-requests",
      "--chunked-prefill-size",
      "--enable-mixed-chunk",
      "--context-length",
      "--mem-fraction-static",
      "--kv-cache-dtype",
      "--disable-radix-cache",
      "--speculative-algorithm",
      "--speculative-num-steps",
      "--speculative-eagle-topk",
      "--speculative-num-draft-tokens",
      "--enable-two-batch-overlap",
      "--disaggregation-mode",
      "--backend",
      "--model",
      "--dataset-name",
      "--random-input-len",
      "--random-output-len",
      "--random-range-ratio",
      "--request-rate",
      "--max-concurrency",
      "--num-prompts"}},
    {"trtllm",
     {"--backend", "--tp_size", "--ep_size", "--pp_size", "--max_batch_size", "--max_num_tokens",
      "--max_seq_len", "--kv_cache_free_gpu_memory_fraction", "--extra_llm_api_options", "--model",
      "--dataset-name", "--random-ids", "--random-input-len", "--random-output-len",
      "--random-range-ratio", "--ignore-eos", "--request-rate", "--max-concurrency",
      "--num-prompts"}}};

// Keys of llm_args.py in the options that trtllm-serve reads.
const Words trtllm_options{"enable_attention_dp", "enable_chunked_prefill", "kv_cache_config",
                           "moe_config", "speculative_config"};

// Deployments that together use all that a command can say.
std::vector<Json> deployments() {
  const Json whole = Json::parse(R"({"model": "glm_4_5_air", "instances": 2,
    "parallel": {"dp": 4, "tp": 2, "ep": 8, "pp": 2},
    "precision": {"experts": "fp8", "attention": "fp8", "kv_cache": "fp8"},
    "dispatch": {"prefill": "all_to_all", "decode": "low_latency"},
    "placement": {"type": "eplb", "replication": 1.25},
    "scheduling": {"type": "chunked_prefill", "max_num_seqs": 64, "max_num_batched_tokens": 2048},
    "kv_cache": {"gpu_memory_utilization": 0.9, "free_gpu_memory_fraction": 0.9},
    "speculative": {"num_speculative_tokens": 2}, "overlap": "two_batch",
    "workload": {"arrivals": {"type": "poisson", "rate": "10 /s"}, "requests": 100,
                 "lengths": {"type": "fixed", "prompt": 100, "output": 20}}})");
  Json placed = whole;
  placed["placement"] = {{"type", "from_file"}, {"file", "placement.json"}};
  placed["workload"]["arrivals"] = {{"type", "closed_loop"}, {"concurrency", 8}};
  Json apart = whole;
  apart["pools"] = {{"prefill", {{"instances", 1}}}, {"decode", {{"instances", 2}}}};
  return {whole, placed, apart};
}

// Words of a text that begin with two dashes.
Words flags_in(const std::string& text) {
  Words flags;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (word.rfind("--", 0) == 0) flags.insert(word);
  return flags;
}

TEST_CASE("commands hold the flags that their engines have, and every one of them is printed") {
  for (const auto& [engine, known] : flags_of) {
    CAPTURE(engine);
    Words printed;
    for (const Json& deployment : deployments())
      printed.merge(flags_in(launch_text(engine, deployment)));
    CHECK(printed == known);
  }
}

TEST_CASE("the options of TensorRT-LLM are keys that it has") {
  Words printed;
  for (const Json& deployment : deployments()) {
    std::istringstream text(launch_text("trtllm", deployment));
    bool inside = false;
    for (std::string line; std::getline(text, line);) {
      if (line == "YAML") inside = false;
      if (inside) printed.insert(line.substr(0, line.find(':')));
      if (line.find("<<'YAML'") != std::string::npos) inside = true;
    }
  }
  CHECK(printed == trtllm_options);
}

TEST_CASE("two batches overlap where DeepEP is chosen; without it no engine starts so") {
  Json gathered = deployments().front();
  gathered["dispatch"] = {{"prefill", "all_gather"}, {"decode", "all_gather"}};
  for (const char* engine : {"vllm", "sglang"}) {
    const std::string text = launch_text(engine, gathered);
    CHECK(flags_in(text).count("--enable-dbo") == 0);
    CHECK(flags_in(text).count("--enable-two-batch-overlap") == 0);
    CHECK_THAT(text, Catch::Matchers::Contains("/overlap: \"two_batch\""));
  }
}

}  // namespace
}  // namespace moesim
