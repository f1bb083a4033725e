// SPDX-License-Identifier: Apache-2.0
// Does every engine's command hold flags that the engine has, and no others?
#include <map>
#include <set>
#include <sstream>

#include "tests/support.hpp"
#include "tools/cli/launch.hpp"

namespace moesim::test_launch {
namespace {

using Words = std::set<std::string>;

// What the engines' parsers know of what is printed, and where it was seen.
// vLLM: vllm/engine/arg_utils.py (99d7eb5) and vllm bench serve; the names of --all2all-backend and
// the key of --eplb-config in vllm/config/parallel.py (00193b8, newer); --nnodes with --headless
// in its documentation. SGLang: python/sglang/srt/server_args.py (excerpts of 0.5) and
// bench_serving.py;
// --chunked-prefill-size and --max-running-requests are divided by the attention ranks there, and
// --init-expert-location is a .json with physical_to_logical_map (srt/eplb/expert_location.py).
// TensorRT-LLM: tensorrt_llm/commands/serve.py (00209af, after 1.2: --config is another name of
// --extra_llm_api_options; 0.18.2 has --tp_size, --kv_cache_free_gpu_memory_fraction too) and
// serve/scripts/benchmark_serving.py. Several nodes: its documentation of trtllm-serve, by srun.
const std::map<std::string, Words> flags_of{{"vllm",
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
                                              "--data-parallel-size-local",
                                              "--data-parallel-address",
                                              "--data-parallel-rpc-port",
                                              "--data-parallel-start-rank",
                                              "--nnodes",
                                              "--node-rank",
                                              "--master-addr",
                                              "--headless",
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
                                              "--nnodes",
                                              "--node-rank",
                                              "--dist-init-addr",
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
                                             {"--backend",
                                              "--tp_size",
                                              "--ep_size",
                                              "--pp_size",
                                              "--max_batch_size",
                                              "--max_num_tokens",
                                              "--max_seq_len",
                                              "--kv_cache_free_gpu_memory_fraction",
                                              "--extra_llm_api_options",
                                              "--model",
                                              "--dataset-name",
                                              "--random-ids",
                                              "--random-input-len",
                                              "--random-output-len",
                                              "--random-range-ratio",
                                              "--ignore-eos",
                                              "--request-rate",
                                              "--max-concurrency",
                                              "--num-prompts",
                                              "--nodes",
                                              "--ntasks",
                                              "--ntasks-per-node",
                                              "--mpi=pmix"}}};

// Keys of llm_args.py in the options that trtllm-serve reads. From 1.3.0rc16 on max_draft_len is
// preferred to speculative_config's num_nextn_predict_layers, which 1.0 to 1.2 need.
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
  Json wide = whole;  // over nodes, as ranks and as one rank
  wide["cluster"] = "h200x16";
  wide["parallel"] = {{"dp", 8}, {"tp", 2}, {"ep", 16}};
  Json deep = wide;
  deep["parallel"] = {{"dp", 1}, {"tp", 8}, {"ep", 8}, {"pp", 2}};
  return {whole, placed, apart, wide, deep};
}

std::string launch(const std::string& engine, const Json& config) {
  return launch_text(engine, config, "plan.json");
}

// Words that begin with two dashes, of the commands and what they are told to add, not of what is
// said of them.
Words flags_in(const std::string& text) {
  Words flags;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" cannot be told ") != std::string::npos) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;)
      if (word.rfind("--", 0) == 0) flags.insert(word);
  }
  return flags;
}

TEST_CASE("commands hold the flags that their engines have, and every one of them is printed") {
  for (const auto& [engine, known] : flags_of) {
    CAPTURE(engine);
    Words printed;
    for (const Json& deployment : deployments())
      printed.merge(flags_in(launch(engine, deployment)));
    CHECK(printed == known);
  }
}

TEST_CASE("the options of TensorRT-LLM are keys that it has") {
  Words printed;
  for (const Json& deployment : deployments()) {
    std::istringstream text(launch("trtllm", deployment));
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
    const std::string text = launch(engine, gathered);
    CHECK(flags_in(text).count("--enable-dbo") == 0);
    CHECK(flags_in(text).count("--enable-two-batch-overlap") == 0);
    CHECK_THAT(text, Catch::Matchers::Contains("/overlap: \"two_batch\""));
  }
}

TEST_CASE("a group that one node does not hold is started on each of its nodes") {
  using Catch::Matchers::Contains;
  Json config = deployments().front();
  config["cluster"] = "h200x16";
  config["parallel"] = {{"dp", 8}, {"tp", 2}, {"ep", 16}};
  const std::string ranks = launch("vllm", config);
  CHECK_THAT(ranks, Contains("# on each of 2 nodes: RANK is 0 to 1") &&
                        Contains("--data-parallel-size 8 ") &&
                        Contains("--data-parallel-size-local 4 --data-parallel-address $HEAD") &&
                        Contains("--headless --data-parallel-start-rank $((RANK * 4))"));
  CHECK_THAT(launch("sglang", config), Contains("--nnodes 2 --node-rank $RANK"));
  CHECK_THAT(launch("trtllm", config),
             Contains("srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --mpi=pmix"));
  config["parallel"] = {{"dp", 1}, {"tp", 8}, {"ep", 8}, {"pp", 2}};
  CHECK_THAT(launch("vllm", config), Contains("--nnodes 2 --node-rank $RANK"));
  // One node, and half of one, as before.
  config["parallel"] = {{"dp", 4}, {"tp", 2}, {"ep", 8}};
  for (const auto& [engine, flags] : flags_of) {
    const std::string text = launch(engine, config);
    CHECK_THAT(text, !Contains("RANK") && !Contains("srun"));
  }
}

TEST_CASE("vLLM hands KV caches of a pipeline over by the connector that takes its stages") {
  using Catch::Matchers::Contains;
  Json config = deployments().front();
  config["parallel"] = {{"dp", 4}, {"tp", 2}, {"ep", 8}};
  config["pools"] = {{"prefill", {{"instances", 2}}}, {"decode", {{"instances", 1}}}};
  CHECK_THAT(launch("vllm", config), Contains("\"NixlConnector\"") && !Contains("NixlPush"));
  config["pools"]["prefill"]["parallel"] = {{"dp", 1}, {"tp", 2}, {"ep", 2}, {"pp", 2}};
  CHECK_THAT(launch("vllm", config),
             Contains("NixlPushConnector (after June 2026)") && !Contains("\"NixlConnector\""));
  config["pools"]["decode"]["parallel"] = {{"dp", 1}, {"tp", 2}, {"ep", 2}, {"pp", 2}};
  CHECK_THAT(launch("vllm", config), Contains("cannot be told /pools/decode/parallel/pp"));
}

TEST_CASE("a model beside the config is found there, and copies of its experts are told") {
  using Catch::Matchers::Contains;
  Json config = deployments().front();
  config["model"] = "../models/zoo/glm_4_5_air.json";
  const std::filesystem::path there = test::source_dir() / "configs" / "plan.json";
  CHECK_THAT(launch_text("sglang", config, there), Contains("--ep-num-redundant-experts 32"));
  CHECK_THAT(launch_text("trtllm", config, there), Contains("num_slots: 160"));
  const std::string elsewhere = launch_text("trtllm", config, "/nowhere/plan.json");
  CHECK_THAT(elsewhere, !Contains("num_slots") && Contains("is not found from here"));
}

TEST_CASE("an experiment timed with another engine's kernels is said to be") {
  Json config = deployments().front();
  config["engine"] = {{"name", "vllm"}};
  CHECK_THAT(launch("sglang", config), Catch::Matchers::Contains("are those of vllm"));
  CHECK_THAT(launch("vllm", config), !Catch::Matchers::Contains("are those of"));
}

TEST_CASE("a placement file in a form that the engine does not read is said") {
  using Catch::Matchers::Contains;
  Json config = deployments()[1];
  CHECK_THAT(launch("sglang", config), !Contains("moesim place"));
  CHECK_THAT(launch("trtllm", config),
             Contains("moesim place --placement placement.json --format trtllm"));
  config["placement"]["file"] = "placement.yaml";
  CHECK_THAT(launch("trtllm", config), !Contains("moesim place"));
  CHECK_THAT(launch("sglang", config), Contains("--format sglang"));
}

}  // namespace
}  // namespace moesim::test_launch
