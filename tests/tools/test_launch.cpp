// SPDX-License-Identifier: Apache-2.0
// Does every engine's command hold flags that the engine has, and no others?
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "hardware/quoting.hpp"
#include "tests/support.hpp"
#include "tools/cli/launch.hpp"

namespace moesim::test_launch {
namespace {

using Catch::Matchers::Contains;
using Words = std::set<std::string>;

Words words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// What the engines' parsers know of what is printed, and where it was seen, November 2026.
// vLLM: vllm/engine/arg_utils.py (09155ae), vllm/config/parallel.py (00193b8), benchmarks/serve.py
// (009e6d4), fused_moe/all2all_utils.py (02bd2a4); vllm-project/router, src/main.rs (03e9af5).
// SGLang: srt/arg_groups (fields/parallel 0481724, schedule 144437f, disagg f489bf9) and its hooks:
// --chunked-prefill-size and --max-running-requests are divided by the attention ranks;
// --init-expert-location is a .json with physical_to_logical_map (srt/eplb/expert_location.py);
// sglang_router's router_args.py (05e589a). TensorRT-LLM: commands/serve.py (0ad591f) and
// llmapi/llm_args.py (0004396), after 1.3; serve/scripts/benchmark_serving.py (0228a71). Several
// nodes: its documentation of trtllm-serve, by srun.
const std::map<std::string, Words> flags_of{
    {"vllm",
     words(R"(--port --host --policy --worker-urls --vllm-pd-disaggregation --prefill --decode
              --tensor-parallel-size --data-parallel-size --pipeline-parallel-size
              --prefill-context-parallel-size --decode-context-parallel-size --dcp-comm-backend
              --enable-expert-parallel --all2all-backend --moe-backend --enable-eplb --eplb-config
              --max-num-seqs --max-num-batched-tokens --prefill-schedule-interval --scheduling-policy
              --long-prefill-token-threshold --no-scheduler-reserve-full-isl --block-size
              --max-cudagraph-capture-size --burstiness --max-model-len --gpu-memory-utilization --kv-cache-dtype --no-enable-prefix-caching
              --speculative-config --enable-dbo --kv-transfer-config --data-parallel-size-local
              --data-parallel-address --data-parallel-rpc-port --data-parallel-start-rank --nnodes
              --node-rank --master-addr --headless --model --dataset-name --random-input-len
              --random-output-len --random-range-ratio --ignore-eos --request-rate --max-concurrency
              --num-prompts)")},
    {"sglang", words(R"(--port --host --policy --worker-urls --pd-disaggregation --prefill --decode
              --disaggregation-transfer-backend --disaggregation-bootstrap-port --model-path --tp-size
              --dp-size --enable-dp-attention --pp-size --enable-prefill-cp --cp-strategy
              --attn-cp-size --dcp-size --ep-size --moe-a2a-backend --deepep-mode
              --ep-num-redundant-experts --ep-dispatch-algorithm --enable-eplb --max-running-requests
              --chunked-prefill-size --enable-mixed-chunk --enable-prefill-delayer
              --prefill-delayer-max-delay-passes --prefill-delayer-token-usage-low-watermark
              --prefill-delayer-queue-min-ratio --prefill-delayer-max-delay-ms
              --prefill-decode-interval --enable-priority-scheduling
              --schedule-low-priority-values-first --context-length --mem-fraction-static
              --kv-cache-dtype --page-size --cuda-graph-max-bs --disable-radix-cache --speculative-algorithm --speculative-num-steps
              --speculative-eagle-topk --speculative-num-draft-tokens --enable-two-batch-overlap
              --enable-deepep-waterfill --disaggregation-mode --nnodes --node-rank --dist-init-addr
              --backend --model --dataset-name --random-input-len --random-output-len
              --random-range-ratio --request-rate --max-concurrency --num-prompts)")},
    {"trtllm",
     words(
         R"(--port --host --backend --tp_size --ep_size --pp_size --max_batch_size --max_num_tokens
              --max_seq_len --extra_llm_api_options --model
              --dataset-name --random-ids --random-input-len --random-output-len --random-range-ratio
              --ignore-eos --request-rate --burstiness --max-concurrency --num-prompts --nodes --ntasks
              --ntasks-per-node --mpi=pmix)")},
};

// Keys of llm_args.py in the options that trtllm-serve reads.
const Words trtllm_options = words(
    "enable_attention_dp enable_chunked_prefill kv_cache_config moe_config "
    "scheduler_config speculative_config cache_transceiver_config "
    "disable_overlap_scheduler attention_dp_config batch_wait_timeout_iters cuda_graph_config");

const Json base = Json::parse(R"({"model": "glm_4_5_air", "cluster": "h200x16", "instances": 2,
    "parallel": {"dp": 4, "tp": 2, "ep": 8},
    "precision": {"experts": "fp8", "attention": "fp8", "kv_cache": "fp8"},
    "dispatch": {"prefill": "all_to_all", "decode": "low_latency"},
    "token_routing": {"prefill": "even", "decode": "even"},
    "placement": {"type": "eplb", "replication": 1.25},
    "scheduling": {"type": "chunked_prefill", "max_num_seqs": 64, "max_num_batched_tokens": 2048},
    "workload": {"arrivals": {"type": "poisson", "rate": "10 /s"}, "requests": 100,
                 "lengths": {"type": "fixed", "prompt": 100, "output": 20},
                 "gating": {"type": "uniform", "requests": 4}}})");

Json with(const Json& changes) {
  Json changed = base;
  changed.merge_patch(changes);
  return changed;
}

const Json speculative{{"num_speculative_tokens", 2}, {"acceptance_rate", 0.5}};
const Json four_gpus{{"dp", 2}, {"tp", 2}, {"ep", 4}};
const Json eight_gpus{{"dp", 4}, {"tp", 2}, {"ep", 8}};
const Json sixteen_gpus{{"dp", 8}, {"tp", 2}, {"ep", 16}};
const Json ranks_alone{{"dp", 8}, {"tp", 1}, {"ep", 8}};
const Json shared_cache{{"dp", 1}, {"tp", 8}, {"ep", 8}, {"dcp", 8}, {"dcp_merge", "all_to_all"}};
const Json stages{{"dp", 1}, {"tp", 8}, {"ep", 8}, {"pp", 2}};

const Json in_one_kernel{{"model", "deepseek_v4_pro"},
                         {"cluster", "b200x8"},
                         {"instances", 1},
                         {"precision", nullptr},
                         {"dispatch", {{"prefill", "mega_moe"}, {"decode", "mega_moe"}}}};

// Deployments that together use all that a command can say.
// Prompts that two groups of GPUs share.
Json shared_prompts() {
  Json set = with({{"instances", nullptr}, {"parallel", nullptr}, {"pools", Json::object()}});
  set["pools"]["prefill"]["parallel"] = {{"dp", 1}, {"tp", 4}, {"ep", 4}, {"pcp", 2}};
  set["pools"]["decode"]["parallel"] = four_gpus;
  return set;
}

std::vector<Json> deployments() {
  return {
      with({{"prefill_alignment", {{"type", "vllm_interval"}, {"prefill_schedule_interval", 4}}}}),
      with({{"prefill_alignment",
             {{"type", "sglang_delayer"},
              {"max_delay_passes", 20},
              {"token_usage_low_watermark", .3},
              {"queue_min_ratio", .5},
              {"max_delay", "350 ms"},
              {"prefill_decode_interval", 8}}}}),
      with({{"prefill_alignment",
             {{"type", "trtllm_balance"},
              {"batch_wait_timeout_iters", 60},
              {"enable_balance", true}}}}),
      with({{"prefill_alignment", {{"type", "trtllm_balance"}, {"batch_wait_timeout_iters", 20}}}}),
      shared_prompts(),
      with({{"kv_cache", {{"block_size", 64}}},
            {"cuda_graph", {{"sizes", "vllm"}, {"max", 64}}},
            {"scheduling", {{"long_prefill_token_threshold", 512}, {"reserve_full_prompt", false}}},
            {"workload", {{"arrivals", {{"type", "gamma"}, {"burstiness", 0.5}}}}}}),
      with({{"speculative", speculative}, {"overlap", "two_batch"}, {"model", "glm_4_5_air"}}),
      with({{"engine", {{"name", "sglang"}}},
            {"workload",
             {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 8}, {"rate", nullptr}}}}}}),
      with({{"engine", {{"name", "trtllm"}}}}),
      with({{"scheduling", {{"type", "priority"}}}}),
      with({{"parallel", four_gpus},
            {"instances", nullptr},
            {"pools", {{"prefill", {{"instances", 1}}}, {"decode", {{"instances", 2}}}}}}),
      with({{"parallel", shared_cache}, {"model", "deepseek_v3"}}),
      with({{"parallel", ranks_alone}, {"shared_expert", "waterfill"}}),
      with(in_one_kernel),
      with({{"parallel", sixteen_gpus}, {"instances", 1}}),  // over nodes, as ranks ...
      with({{"parallel", stages}, {"instances", 1}})};       // ... and as one rank
}

// Each note in one line.
std::string launch(const std::string& engine, const Json& config,
                   const std::filesystem::path& file = "plan.json") {
  std::string text = launch_text(engine, read_spec(ConfigNode(config, file)));
  constexpr std::string_view goes_on = "\n#   ";
  for (auto at = text.find(goes_on); at != text.npos; at = text.find(goes_on))
    text.replace(at, goes_on.size(), " ");
  return text;
}

// Words that begin with two dashes, of the commands and what they are told to add, not of what is
// said of them.
Words flags_in(const std::string& text) {
  Words flags;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# not in these commands")) continue;
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

TEST_CASE("every flag of every engine says where it was seen") {
  for (const ServingEngine& engine : serving_engines()) {
    for (const Flag& flag : engine.launch.flags) {
      CAPTURE(engine.name, flag.name);
      CHECK(flag.name.starts_with("--"));
      CHECK_FALSE(flag.seen.empty());
    }
    CHECK(flags_of.count(std::string(engine.name)) == 1);
  }
}

TEST_CASE("a dispatch that an engine has no flag for is a note, and others are none") {
  const Json own =
      with({{"dispatch", {{"prefill", "ids_all_gather"}, {"decode", "ids_all_gather"}}}});
  for (const ServingEngine& engine : serving_engines()) {
    CAPTURE(engine.name);
    for (const char* phase : {"prefill", "decode"})
      CHECK_THAT(launch(std::string(engine.name), own),
                 Contains(fmt::format("/dispatch/{}: \"ids_all_gather\"; {} has no flag", phase,
                                      engine.title)));
    for (const std::string_view name : engine.launch.dispatches) {
      if (name == "mega_moe") continue;  // not of this GPU's experts: see below
      const Json known = with({{"dispatch", {{"prefill", name}, {"decode", name}}}});
      CHECK_THAT(launch(std::string(engine.name), known), !Contains("has no flag for"));
    }
  }
  const Json whole = with({{"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 1}}},
                           {"placement", "linear"},
                           {"dispatch", {{"prefill", "ids_all_gather"}}}});
  CHECK_THAT(launch("vllm", whole), !Contains("has no flag for"));
}

TEST_CASE("a model without a layer that drafts is not told to draft by one") {
  const auto vllm = [](const char* model) {
    return launch("vllm", with({{"speculative", speculative}, {"model", model}}));
  };
  CHECK_THAT(vllm("glm_4_5_air"), Contains("--speculative-config") && !Contains("(MTP)"));
  CHECK_THAT(vllm("qwen3_30b_a3b"), !Contains("--speculative-config") && Contains("(MTP)"));
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

TEST_CASE("prompts that are held back: the engine's own flags, or a note") {
  const auto aligned = [](const Json& alignment) {
    return with({{"prefill_alignment", alignment}});
  };
  const Json interval = aligned({{"type", "vllm_interval"}, {"prefill_schedule_interval", 4}});
  CHECK_THAT(launch("vllm", interval), Contains("--prefill-schedule-interval 4"));
  CHECK_THAT(launch("sglang", interval), Contains("/prefill_alignment: \"vllm_interval\""));
  const Json delayer =
      aligned({{"type", "sglang_delayer"}, {"queue_min_ratio", .5}, {"max_delay", "350 ms"}});
  CHECK_THAT(launch("sglang", delayer), Contains("--enable-prefill-delayer") &&
                                            Contains("--prefill-delayer-queue-min-ratio 0.5") &&
                                            Contains("--prefill-delayer-max-delay-ms 350") &&
                                            !Contains("--prefill-decode-interval"));
  const Json rounds = aligned({{"type", "sglang_decode_interval"}, {"prefill_decode_interval", 8}});
  CHECK_THAT(launch("sglang", rounds), Contains("--prefill-decode-interval 8"));
  const Json balance = aligned(
      {{"type", "trtllm_balance"}, {"batch_wait_timeout_iters", 60}, {"enable_balance", true}});
  CHECK_THAT(launch("trtllm", balance),
             Contains("attention_dp_config: {enable_balance: true, timeout_iters: 60}"));
  CHECK_THAT(launch("vllm", balance), Contains("/prefill_alignment: \"trtllm_balance\""));
}

TEST_CASE("a benchmark draws the lengths that were simulated") {
  const Json uniform = with(
      {{"workload",
        {{"lengths", {{"type", "uniform"}, {"prompt", 1000}, {"output", 500}, {"least", 0.6}}}}}});
  // Of 600 to 1,000 tokens and 300 to 500: 800 and 400, a quarter less or more.
  for (const char* engine : {"vllm", "trtllm"}) {
    CHECK_THAT(launch(engine, uniform), Contains("--random-input-len 800"));
    CHECK_THAT(launch(engine, uniform), Contains("--random-output-len 400"));
    CHECK_THAT(launch(engine, uniform), Contains("--random-range-ratio 0.25"));
  }
  CHECK_THAT(launch("sglang", uniform), Contains("--random-input-len 1000"));
  CHECK_THAT(launch("sglang", uniform), Contains("--random-output-len 500"));
  CHECK_THAT(launch("sglang", uniform), Contains("--random-range-ratio 0.6"));
}

TEST_CASE("TensorRT-LLM is told to evict where requests were; other engines always do") {
  const auto policy = [](const char* name) {
    return with({{"scheduling", {{"capacity_scheduler_policy", name}}}});
  };
  const char* evicts = "scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}";
  CHECK_THAT(launch("trtllm", policy("max_utilization")), Contains(evicts));
  CHECK_THAT(launch("trtllm", policy("guaranteed_no_evict")), !Contains("scheduler_config"));
  for (const char* engine : {"vllm", "sglang"}) {
    CHECK_THAT(launch(engine, policy("guaranteed_no_evict")), Contains("TensorRT-LLM alone"));
    CHECK_THAT(launch(engine, policy("max_utilization")), !Contains("TensorRT-LLM alone"));
  }
}

TEST_CASE("KV caches have the precision and the blocks that were simulated, or it is noted") {
  const auto stored = [](const char* precision) {
    return with({{"precision", {{"kv_cache", precision}}}, {"kv_cache", {{"block_size", 64}}}});
  };
  CHECK_THAT(launch("vllm", stored("nvfp4")),
             Contains("--kv-cache-dtype nvfp4 ") && Contains("--block-size 64"));
  CHECK_THAT(launch("sglang", stored("nvfp4")),
             Contains("--kv-cache-dtype fp4_e2m1 ") && Contains("--page-size 64"));
  CHECK_THAT(launch("trtllm", stored("nvfp4")),
             Contains("kv_cache_config: {enable_block_reuse: false, dtype: nvfp4, "
                      "tokens_per_block: 64}"));
  CHECK_THAT(launch("vllm", stored("int8")), Contains("--kv-cache-dtype int8_per_token_head"));
  for (const char* engine : {"sglang", "trtllm"}) {
    CHECK_THAT(launch(engine, stored("int8")), Contains("/precision/kv_cache: \"int8\"; "));
    CHECK_THAT(launch(engine, stored("bf16")), !Contains("dtype") && !Contains("/kv_cache: \"bf"));
    CHECK_THAT(launch(engine, base), !Contains("tokens_per_block"));
  }
}

TEST_CASE("SGLang's radix cache is off unless states of a sequence are kept for it") {
  const auto flags = [](const char* model, int slots) {
    return launch("sglang", with({{"model", model},
                                  {"precision", {{"experts", "fp8"}}},
                                  {"kv_cache", {{"state_slots", slots}}}}));
  };
  const auto off = Contains("--disable-radix-cache");
  CHECK_THAT(flags("qwen3_next_80b_a3b", 5), !off);
  CHECK_THAT(flags("qwen3_next_80b_a3b", 1), off);
  CHECK_THAT(flags("qwen3_30b_a3b", 5), off);  // keeps no states
}

TEST_CASE("a benchmark's gaps have the shape that was simulated, or it is noted") {
  const auto gaps = [](Json arrivals) {
    arrivals["rate"] = "0.0002 /s";
    return with({{"workload", {{"arrivals", arrivals}}}});
  };
  for (const char* engine : {"vllm", "trtllm"}) {
    CHECK_THAT(launch(engine, gaps({{"type", "gamma"}, {"cv", 0.5}})),
               Contains("--request-rate 0.0002") && Contains("--burstiness 4"));
    CHECK_THAT(launch(engine, gaps({{"type", "constant"}})), Contains("--burstiness 1e+06"));
    CHECK_THAT(launch(engine, gaps({{"type", "poisson"}})), !Contains("burstiness"));
  }
  CHECK_THAT(launch("sglang", gaps({{"type", "constant"}})), Contains("/workload/arrivals: gaps"));
  CHECK_THAT(launch("sglang", gaps({{"type", "poisson"}})), !Contains("/workload/arrivals"));
}

TEST_CASE("keys that no flag says are noted with their values, and usual values are not") {
  const std::vector<std::pair<Json, const char*>> asked{
      {{{"expert_buffers", {{"tokens_per_rank", 256}}}}, "/expert_buffers: {"},
      {{{"api_server", {{"tokenizer_workers", 4}}}}, "/api_server/tokenizer_workers: 4"},
      {{{"workload", {{"timeout", "5 s"}}}}, "/workload/timeout: \"5 s\""},
      {{{"precision", {{"state", "bf16"}}}}, "/precision/state: \"bf16\""}};
  for (const auto& [keys, noted] : asked) {
    CHECK_THAT(launch("vllm", with(keys)), Contains(noted) && Contains("no flag here says this"));
    CHECK_THAT(launch("vllm", with({{"api_server", {{"tokenizer_workers", 1}}}})),
               !Contains("no flag here says this"));
  }
  const Json one = with({{"instances", 1}, {"request_routing", "random"}});
  CHECK_THAT(launch("vllm", one), Contains("/request_routing: \"random\""));
  CHECK_THAT(launch("trtllm", with({{"overlap", "two_batch"}})), Contains("/overlap: \"two_batch"));
}

TEST_CASE("the longest request of a command is the experiment's key, or that of the load") {
  CHECK_THAT(launch("vllm", base), Contains("--max-model-len 152 "));
  CHECK_THAT(launch("vllm", with({{"max_model_len", 4096}})),
             Contains("--max-model-len 4096 ") && !Contains("requests of more than"));
}

TEST_CASE("two batches overlap where DeepEP is chosen; without it no engine starts so") {
  const Json gathered = with({{"overlap", "two_batch"},
                              {"dispatch", {{"prefill", "all_gather"}, {"decode", "all_gather"}}}});
  for (const char* engine : {"vllm", "sglang"}) {
    const std::string text = launch(engine, gathered);
    CHECK(flags_in(text).count("--enable-dbo") == 0);
    CHECK(flags_in(text).count("--enable-two-batch-overlap") == 0);
    CHECK_THAT(text, Contains("/overlap: \"two_batch\""));
  }
}

TEST_CASE("waterfill is a flag of SGLang with DeepEP, and a note elsewhere") {
  Json filled = with({{"parallel", ranks_alone}, {"shared_expert", "waterfill"}});
  CHECK(flags_in(launch("sglang", filled)).count("--enable-deepep-waterfill") == 1);
  CHECK_THAT(launch("vllm", filled), Contains("/shared_expert: \"waterfill\""));
  filled["dispatch"] = {{"prefill", "all_gather"}, {"decode", "all_gather"}};
  CHECK(flags_in(launch("sglang", filled)).count("--enable-deepep-waterfill") == 0);
}

TEST_CASE("attention and experts apart: commands of attention's GPUs, and what starts the others") {
  const Json apart =
      with({{"instances", 1}, {"parallel", {{"dp", 4}, {"tp", 2}, {"ep", 4}, {"ffn_gpus", 4}}}});
  const std::string text = launch("vllm", apart);
  CHECK_THAT(text, Contains("# 8 GPUs on node 0\n") && Contains("--data-parallel-size 4") &&
                       Contains("# not in these commands: /parallel/ffn_gpus: 4; vLLM needs the "
                                "afd-plugin"));
  CHECK_THAT(launch("sglang", apart),
             Contains("/parallel/ffn_gpus: 4; SGLang has no attention-FFN disaggregation"));
  const Json copies =
      with({{"instances", 1},
            {"parallel", {{"dp", 4}, {"tp", 2}, {"ep", 8}, {"moe_sequence_parallel", false}}}});
  CHECK_THAT(launch("vllm", copies),
             Contains("/parallel/moe_sequence_parallel: false; vLLM has no"));
  Json two_kinds = apart;
  two_kinds["ffn_cluster"] = two_kinds["cluster"];
  CHECK_THAT(launch("vllm", two_kinds), Contains("# not in these commands: /ffn_cluster: "));
  CHECK_THAT(launch("sglang", apart), Contains("--tp-size 8 "));
  CHECK_THAT(launch("vllm", base), !Contains("ffn_gpus"));
}

TEST_CASE("prompts shared by tokens: each engine's flags, of which vLLM's tp is a group's") {
  Json set = shared_prompts();
  CHECK_THAT(launch("vllm", set),
             Contains("--tensor-parallel-size 2") && Contains("--prefill-context-parallel-size 2"));
  CHECK_THAT(launch("sglang", set),
             Contains("--tp-size 4") &&
                 Contains("--enable-prefill-cp --cp-strategy zigzag --attn-cp-size 2"));
  CHECK_THAT(launch("trtllm", set), Contains("/parallel/pcp: 2"));
  set["pool_roles"] = "thresholds";
  set["pools"]["prefill"]["parallel"] = four_gpus;
  CHECK_THAT(launch("sglang", set), Contains("/pool_roles: servers keep the roles") &&
                                        Contains("--enable-pd-role-switch"));
  CHECK_THAT(launch("trtllm", set), Contains("TensorRT-LLM has no flag to change them"));
  Json cut = with({{"parallel", four_gpus}});
  cut["parallel"]["decode_ep"] = 1;
  CHECK_THAT(launch("vllm", cut), Contains("/parallel/decode_ep: 1; no engine cuts experts"));
}

TEST_CASE("a KV cache shared by tokens: each engine's flag, or what it has in its place") {
  const auto shared = [](const char* merge) {
    return with(
        {{"instances", 1},
         {"model", "deepseek_v3"},
         {"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 8}, {"dcp", 2}, {"dcp_merge", merge}}}});
  };
  const std::string text = launch("vllm", shared("reduce_scatter"));
  CHECK_THAT(text, Contains("--decode-context-parallel-size 2") && !Contains("--dcp-comm-backend"));
  CHECK_THAT(launch("vllm", shared("all_to_all")), Contains("--dcp-comm-backend a2a"));
  CHECK_THAT(launch("sglang", shared("all_to_all")),
             Contains("--dcp-size 2") && !Contains("/parallel/dcp_merge"));
  CHECK_THAT(launch("sglang", shared("reduce_scatter")), Contains("/parallel/dcp_merge"));
  CHECK_THAT(launch("trtllm", shared("all_to_all")),
             Contains("/parallel/dcp: 2") && Contains("Helix"));
  for (const char* engine : {"vllm", "sglang", "trtllm"})
    CHECK_THAT(launch(engine, base), !Contains("dcp") && !Contains("context-parallel"));
}

TEST_CASE("a group that one node does not hold is started on each of its nodes") {
  const Json wide = with({{"parallel", sixteen_gpus}, {"instances", 1}});
  CHECK_THAT(launch("vllm", wide),
             Contains("NODE0=node0 NODE1=node1") && Contains("# 16 GPUs on nodes 0 to 1") &&
                 Contains("--data-parallel-size 8 ") && Contains("--data-parallel-size-local 4") &&
                 Contains("--data-parallel-address $NODE0") &&
                 Contains("--headless --data-parallel-start-rank $((RANK * 4))"));
  CHECK_THAT(launch("sglang", wide), Contains("--nnodes 2 --node-rank $RANK"));
  CHECK_THAT(launch("trtllm", wide),
             Contains("srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --mpi=pmix"));
  CHECK_THAT(launch("vllm", with({{"parallel", stages}, {"instances", 1}})),
             Contains("--nnodes 2 --node-rank $RANK"));
  for (const auto& [engine, flags] : flags_of) {
    const std::string text = launch(engine, with({{"parallel", eight_gpus}, {"instances", 1}}));
    CHECK_THAT(text, !Contains("RANK") && !Contains("srun") && !Contains("CUDA_VISIBLE_DEVICES"));
  }
}

TEST_CASE("groups that share a node have GPUs and ports of their own, and a router before them") {
  const Json two = with({{"parallel", four_gpus}, {"instances", 2}});
  for (const char* engine : {"vllm", "sglang", "trtllm"}) {
    CAPTURE(engine);
    CHECK_THAT(launch(engine, two),
               Contains("CUDA_VISIBLE_DEVICES=0,1,2,3 ") && Contains("--port 8100") &&
                   Contains("CUDA_VISIBLE_DEVICES=4,5,6,7 ") && Contains("--port 8200"));
  }
  CHECK_THAT(launch("vllm", two), Contains("vllm-router --policy round_robin --worker-urls "
                                           "http://$NODE0:8100 http://$NODE0:8200"));
  CHECK_THAT(launch("sglang", two), Contains("python3 -m sglang_router.launch_router"));
  CHECK_THAT(launch("trtllm", two), Contains("TensorRT-LLM has no router"));
  // The load goes to the router, which stands where a single server would.
  CHECK_THAT(launch("vllm", two), Contains("--host $NODE0 --port 8000 --dataset-name random"));
}

TEST_CASE("a fleet's commands are as many as can be read") {
  const Json fleet =
      with({{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
            {"model", "olmoe_1b_7b"},
            {"precision", {{"experts", "bf16"}, {"attention", "bf16"}, {"kv_cache", "bf16"}}},
            {"placement", {{"type", "linear"}, {"replication", 1}}},
            {"instances", 100},
            {"cluster", "h100x2400"}});
  Json large = fleet;
  large["cluster"] =
      ConfigNode::from_file(test::source_dir() / "hardware/clusters/h200x16.json").json();
  large["cluster"]["nodes"] = 20;
  large["cluster"]["gpu"] = "h200";
  const std::string text = launch("vllm", large);
  CHECK_THAT(text, Contains("# and 84 more servers of this kind"));
  CHECK(std::count(text.begin(), text.end(), '\n') <= 80);
}

TEST_CASE("what HBM holds for agents, and replies that decode ranks write, are named beside") {
  Json set = with({{"parallel", four_gpus},
                   {"instances", nullptr},
                   {"kv_cache", {{"prefix_caching", true}}},
                   {"workload", {{"sessions", "chat"}, {"lengths", nullptr}}},
                   {"kv_transfer", {{"decode_offload", true}}},
                   {"pools", {{"prefill", {{"instances", 1}}}, {"decode", {{"instances", 1}}}}}});
  set["pools"]["prefill"]["kv_cache"] = {{"prefix_caching", true},
                                         {"retention", {{"type", "ttl"}, {"ttl", "5 s"}}},
                                         {"prefetch_lead", "1 s"},
                                         {"tiers", {{{"capacity", "1 TB"}, {"per", "cluster"}}}}};
  CHECK_THAT(launch("sglang", set), Contains("--disaggregation-decode-enable-offload-kvcache") &&
                                        Contains("/kv_cache/retention: no engine") &&
                                        Contains("/kv_cache/prefetch_lead: no engine"));
  CHECK_THAT(launch("vllm", set), Contains("decode_offload: vLLM has no flag for this"));
}

TEST_CASE(
    "pools are joined: ports, hosts and the channel of each worker, and who shares requests") {
  const Json pools =
      with({{"parallel", four_gpus},
            {"instances", nullptr},
            {"pools", {{"prefill", {{"instances", 2}}}, {"decode", {{"instances", 1}}}}}});
  CHECK_THAT(launch("vllm", pools),
             Contains("VLLM_NIXL_SIDE_CHANNEL_HOST=$NODE0 VLLM_NIXL_SIDE_CHANNEL_PORT=9100") &&
                 Contains("VLLM_NIXL_SIDE_CHANNEL_HOST=$NODE1 VLLM_NIXL_SIDE_CHANNEL_PORT=9300") &&
                 Contains("--vllm-pd-disaggregation") && Contains("--prefill http://$NODE0:8100") &&
                 Contains("--prefill http://$NODE0:8200") &&
                 Contains("--decode http://$NODE1:8300"));
  CHECK_THAT(launch("sglang", pools),
             Contains("--disaggregation-mode prefill --disaggregation-transfer-backend nixl") &&
                 Contains("--disaggregation-bootstrap-port 8190") &&
                 Contains("--prefill http://$NODE0:8100 8190"));
  const std::string trtllm = launch("trtllm", pools);
  CHECK_THAT(
      trtllm,
      Contains("cat >options-prefill.yaml") && Contains("cat >options-decode.yaml") &&
          Contains("--extra_llm_api_options options-prefill.yaml") &&
          Contains("--extra_llm_api_options options-decode.yaml") &&
          Contains("cache_transceiver_config: {backend: DEFAULT}") &&
          Contains("trtllm-serve disaggregated -c disaggregated.yaml") &&
          Contains("num_instances: 2\n  urls:\n    - \"$NODE0:8100\"\n    - \"$NODE0:8200\""));
}

TEST_CASE("vLLM hands KV caches of a pipeline over by the connector that takes its stages") {
  Json pools = with({{"parallel", four_gpus},
                     {"instances", nullptr},
                     {"pools", {{"prefill", {{"instances", 2}}}, {"decode", {{"instances", 1}}}}}});
  CHECK_THAT(launch("vllm", pools), Contains("\"NixlConnector\"") && !Contains("NixlPush"));
  const Json two_stages{{"dp", 1}, {"tp", 2}, {"ep", 2}, {"pp", 2}};
  pools["pools"]["prefill"]["parallel"] = two_stages;
  CHECK_THAT(launch("vllm", pools),
             Contains("NixlPushConnector (after July 2026)") && !Contains("\"NixlConnector\"") &&
                 !Contains("vllm-router --policy") && Contains("disagg_proxy_pushconnector"));
  pools["pools"]["decode"]["parallel"] = two_stages;
  CHECK_THAT(launch("vllm", pools), Contains("not in these commands: /pools/decode/parallel/pp"));
}

TEST_CASE("weights are those of HuggingFace in the precision of the experiment, else it is said") {
  CHECK_THAT(launch("vllm", base), Contains("vllm serve zai-org/GLM-4.5-Air-FP8 "));
  CHECK_THAT(launch("vllm", with({{"precision", {{"experts", "nvfp4"}, {"attention", "bf16"}}}})),
             Contains("use a name or path of nvfp4 weights instead of zai-org/GLM-4.5-Air"));
  const std::filesystem::path there = test::source_dir() / "configs" / "plan.json";
  CHECK_THAT(launch("sglang", with({{"model", "../models/zoo/glm_4_5_air.json"}}), there),
             Contains("--model-path zai-org/GLM-4.5-Air-FP8 ") &&
                 Contains("--ep-num-redundant-experts 32"));
}

TEST_CASE("no balancer is turned on without copies, nor for MXFP4 on vLLM") {
  const Json single = with({{"placement", {{"replication", 1}}}});
  CHECK(flags_in(launch("vllm", single)).count("--enable-eplb") == 0);
  CHECK(flags_in(launch("sglang", single)).count("--enable-eplb") == 0);
  CHECK_THAT(launch("trtllm", single), !Contains("moe_config"));
  CHECK_THAT(launch("vllm", single), Contains("no balancer is turned on"));
  const std::string mxfp4 = launch(
      "vllm",
      with({{"model", "gpt_oss_120b"},
            {"precision", {{"experts", "mxfp4"}, {"attention", "bf16"}, {"kv_cache", "bf16"}}}}));
  CHECK(flags_in(mxfp4).count("--enable-eplb") == 0);
  CHECK_THAT(mxfp4, Contains("vLLM has no EPLB for experts in MXFP4"));
}

TEST_CASE("TensorRT-LLM balances experts on kernels that it still has") {
  const auto backend = [](const char* precision, const char* cluster) {
    return launch("trtllm", with({{"cluster", cluster}, {"precision", {{"experts", precision}}}}));
  };
  CHECK_THAT(backend("fp8_block", "h200x16"), Contains("moe_config: {backend: CUTLASS, load_bal"));
  CHECK_THAT(backend("fp8_block", "b200_nvl16"),
             Contains("moe_config: {backend: DEEPGEMM, load_bal"));
  CHECK_THAT(backend("nvfp4", "b200_nvl16"), Contains("moe_config: {backend: CUTEDSL, load_bal"));
}

TEST_CASE(
    "one-sided exchanges have a backend in vLLM and SGLang; TensorRT-LLM chooses them itself") {
  const Json config = with({{"dispatch", {{"prefill", "one_sided"}, {"decode", "one_sided"}}}});
  CHECK_THAT(launch("vllm", config), Contains("--all2all-backend flashinfer_nvlink_one_sided"));
  CHECK_THAT(launch("sglang", config),
             Contains("--moe-a2a-backend flashinfer") && !Contains("--moe-a2a-backend deepep"));
  CHECK_THAT(launch("trtllm", config), !Contains("a2a"));
}

TEST_CASE("MegaMoE is asked of each engine in its own words") {
  const Json config = with(in_one_kernel);
  CHECK_THAT(launch("vllm", config), Contains("--moe-backend deep_gemm_mega_moe"));
  CHECK_THAT(launch("sglang", config), Contains("SGLANG_OPT_USE_DEEPGEMM_MEGA_MOE=1") &&
                                           Contains("--moe-a2a-backend deepep"));
  CHECK_THAT(launch("trtllm", config), Contains("moe_config: {backend: MEGAMOE_DEEPGEMM"));
}

// DeepEP's kernels assert that a rank brings no more rows than their buffers hold.
TEST_CASE("low-latency kernels get buffers for the rows of a decode step, or are not asked") {
  const auto direct = [](int sequences) {
    return with({{"dispatch", {{"prefill", "low_latency"}, {"decode", "low_latency"}}},
                 {"scheduling", {{"max_num_seqs", sequences}, {"max_num_batched_tokens", 4096}}}});
  };
  CHECK_THAT(launch("vllm", direct(64)), Contains("deepep_low_latency") &&
                                             Contains("--max-num-batched-tokens 256") &&
                                             Contains("/scheduling/max_num_batched_tokens: 4096"));
  CHECK_THAT(launch("vllm", direct(512)), Contains("--max-num-batched-tokens 512"));
  CHECK_THAT(launch("vllm", direct(1024)), Contains("deepep_high_throughput") &&
                                               Contains("--max-num-batched-tokens 4096") &&
                                               Contains("/dispatch/decode: \"low_latency\""));
  // SGLang's own buffers hold 128 rows. One server for both phases has the mode that takes prompts.
  CHECK_THAT(launch("sglang", direct(64)), Contains("--deepep-mode auto") && !Contains("MAX_DISP"));
  CHECK_THAT(launch("sglang", direct(256)),
             Contains("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 python3"));
  CHECK_THAT(launch("sglang", direct(2048)),
             Contains("TOKENS_PER_RANK=1024 NVSHMEM_QP_DEPTH=2050 ") &&
                 Contains("/scheduling/max_num_seqs: 2048"));
  CHECK(flags_in(launch("sglang", direct(64))).count("--enable-eplb") == 0);
  CHECK_THAT(launch("sglang", direct(64)), Contains("SGLang's EPLB does not go with"));
}

TEST_CASE("a share of memory is told to the engine whose meaning it has") {
  CHECK(flags_in(launch("vllm", base)).count("--gpu-memory-utilization") == 1);
  CHECK(flags_in(launch("sglang", base)).count("--mem-fraction-static") == 0);
  const Json sglang = with({{"engine", {{"name", "sglang"}}}});
  CHECK_THAT(launch("sglang", sglang), Contains("--mem-fraction-static 0.833"));
  CHECK(flags_in(launch("vllm", sglang)).count("--gpu-memory-utilization") == 0);
}

TEST_CASE("a dense model starts without experts spread over GPUs") {
  Json dense =
      with({{"model", "llama_3_1_8b"},
            {"instances", 1},
            {"placement", nullptr},
            {"precision", {{"experts", "bf16"}, {"attention", "bf16"}, {"kv_cache", "bf16"}}},
            {"dispatch", {{"prefill", "all_gather"}, {"decode", "all_gather"}}}});
  dense["parallel"] = {{"dp", 1}, {"tp", 4}};
  CHECK(flags_in(launch("vllm", dense)).count("--enable-expert-parallel") == 0);
  CHECK(flags_in(launch("sglang", dense)).count("--ep-size") == 0);
}

TEST_CASE("an experiment timed with another engine's kernels is said to be") {
  const Json timed = with({{"engine", {{"name", "vllm"}}}});
  CHECK_THAT(launch("sglang", timed), Contains("# predicted for vllm, not for sglang"));
  CHECK_THAT(launch("vllm", timed), !Contains("# predicted for"));
}

TEST_CASE("a name that a shell or a terminal would obey is one word, or refused") {
  CHECK(shell_word("a b") == "'a b'");
  CHECK(shell_word("$(touch x)") == "'$(touch x)'");
  CHECK(shell_word("it's") == R"('it'\''s')");
  CHECK(shell_word("=ls") == "'=ls'");
  CHECK(shell_word("") == "''");
  CHECK(shell_path("-rf") == "./-rf");
  CHECK(shell_word("Qwen/Qwen3-30B-A3B") == "Qwen/Qwen3-30B-A3B");
  CHECK(yaml_text("a: b # \"c\"") == R"("a: b # \"c\"")");
  for (const char* hidden : {"a\nb", "a\x1b[2Jb", "a\x7f",
                             "a\xc2\x9b"
                             "b",
                             "a\xe2\x80\xae"
                             "b",
                             "a\xff"}) {
    CAPTURE(hidden);
    CHECK_THROWS_AS(shell_word(hidden), ConfigError);
    CHECK_THROWS_AS(yaml_text(hidden), ConfigError);
    CHECK(!has_hidden_characters(visible(hidden), "\n"));
  }
  CHECK(visible("a\x1b[2J\n\tb") == "a\\u001b[2J\n\tb");
}

TEST_CASE("engines are told to go by priorities, and none is told of deadlines") {
  const Json by_priority = with({{"scheduling", {{"type", "priority"}}}});
  CHECK_THAT(launch("vllm", by_priority), Contains("--scheduling-policy priority"));
  CHECK_THAT(launch("sglang", by_priority),
             Contains("--enable-priority-scheduling --schedule-low-priority-values-first") &&
                 Contains("--enable-mixed-chunk"));
  CHECK(flags_in(launch("vllm", base)).count("--scheduling-policy") == 0);
  for (const char* type : {"earliest_deadline", "expert_groups"}) {
    const Json due = with({{"scheduling", {{"type", type}}}, {"slo", {{"ttft", "1 s"}}}});
    for (const char* engine : {"vllm", "sglang", "trtllm"})
      CHECK_THAT(launch(engine, due), Contains("# not in these commands: /scheduling: \"") &&
                                          Contains("no engine goes by deadlines"));
  }
}

}  // namespace
}  // namespace moesim::test_launch
