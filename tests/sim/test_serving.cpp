// SPDX-License-Identifier: Apache-2.0
// Does an engine's preset fill what a config leaves out, does the benchmark's client see what it
// should, and do anchors correct what they were fitted on?
#include <fstream>
#include <numbers>
#include <set>
#include <tuple>

#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "models/launches.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/anchor.hpp"
#include "sim/experiment/engine.hpp"
#include "tests/step_parts.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/bench/anchors.hpp"
#include "tools/bench/serving_deployment.hpp"
#include "tools/bench/validation.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim::test_serving {
namespace {

using Catch::Matchers::Contains;
using test::load;
using test::load_tiny;
using test::refused;
using test::serve;
using test::tiny_experiment;
using test::WithinAbs;
using test::WithinRel;

// ---- presets ----

Json filled(Json config) {
  return with_preset(ConfigNode(std::move(config), test::source_dir() / "tests" / "tiny.json"))
      .json();
}

Json with_engine_named(const Json& engine, const Json& set = Json::object()) {
  Json json = tiny_experiment(set);
  json.erase("scheduling");
  json.erase("dispatch");
  json.erase("token_routing");
  json["engine"] = engine;
  return json;
}

// Qwen3-Next on four GPUs.
Experiment with_states(const Json& engine, int asked, const Json& changes = Json::object()) {
  Json set = {
      {"model", "qwen3_next_80b_a3b"},
      {"precision", {{"experts", "fp8"}}},
      {"engine", engine},
      {"parallel", {{"dp", 1}, {"tp", 4}, {"ep", 4}}},
      {"placement", {{"replication", 1}}},
      {"kv_cache", {{"gpu_memory_utilization", .5}}},
      {"scheduling",
       {{"type", "prefill_first"}, {"max_num_batched_tokens", 8192}, {"max_num_seqs", asked}}},
      {"workload", {{"gating", {{"requests", 8}}}}}};
  set.merge_patch(changes);
  return load(tiny_experiment(set));
}

const Json one_state{{"kv_cache", {{"state_slots", 1}}}};

TEST_CASE("SGLang without a radix cache runs as many sequences as have room for their states") {
  const Experiment few = with_states("sglang", 4, one_state),
                   many = with_states("sglang", 2000, one_state);
  CHECK(few.decode().scheduler->max_num_seqs() == 4);
  CHECK(remarks_of(few).empty());
  const Deployment& e = many.decode();
  const std::int32_t seats = e.scheduler->max_num_seqs();
  const double state = state_bytes(e.model, e.parallel, e.precision).value();
  // States have .9 of what tokens have, less what exchanging more sequences would take.
  const double tokens = e.memory.kv.value();
  CHECK(seats < 2000);
  CHECK(seats * state <= .9 / 1.9 * (tokens + seats * state));
  CHECK(seats * state > .98 * .9 / 1.9 * (tokens + seats * state));
  REQUIRE(remarks_of(many).size() == 1);
  CHECK_THAT(remarks_of(many).front(), Contains("so max_num_seqs is " + std::to_string(seats)));
}

TEST_CASE("SGLang's radix cache holds several states for each sequence") {
  // sglang#38846: 9 requests where 47 states have room, five for each.
  const Experiment alone = with_states("sglang", 2000, one_state),
                   cached = with_states("sglang", 2000);
  const std::int32_t states = alone.decode().scheduler->max_num_seqs();
  CHECK(cached.decode().kv_cache.paging.state_slots == 5);
  CHECK(cached.decode().scheduler->max_num_seqs() == states / 5);
  CHECK_THAT(remarks_of(cached).front(), Contains("each holds 5 for the prefix cache"));
  // The pool is as large for few sequences: tokens have 1 / 1.9 of the rest.
  const auto tokens = [](const Experiment& e) { return e.decode().memory.kv.value(); };
  const Experiment few = with_states("sglang", 4);
  const Deployment& e = few.decode();
  const double state = state_bytes(e.model, e.parallel, e.precision).value();
  const double rest = tokens(with_states("sglang", 4, one_state)) + 4 * state;
  CHECK(tokens(few) >= rest / 1.9);
  CHECK(tokens(few) < rest / 1.9 + state);
  const Json older{{"name", "sglang"}, {"version", "0.5.9"}};
  CHECK(with_states(older, 2000).decode().scheduler->max_num_seqs() == states / 3);
}

TEST_CASE("vLLM does not start with more sequences than blocks for their states") {
  // vllm#49064: "max_num_seqs (1024) exceeds available Mamba cache blocks (969)".
  const auto too_many = [](int asked, double share) {
    const Experiment e = with_states("vllm", asked,
                                     {{"precision", {{"experts", "bf16"}}},
                                      {"kv_cache", {{"gpu_memory_utilization", share}}},
                                      {"scheduling", {{"max_num_batched_tokens", 2048}}}});
    const bool said = std::ranges::any_of(remarks_of(e), [](const std::string& remark) {
      return remark.find("blocks can hold a state: vLLM does not start") != remark.npos;
    });
    CHECK(said == (asked > e.decode().memory.kv_blocks));
    return said;
  };
  CHECK_FALSE(too_many(64, .9));
  CHECK(too_many(2048, .6));
}

TEST_CASE("a layer that drafts adds its KV cache to the few layers that have any") {
  // 12 of Qwen3-Next's 48 layers attend. Qwen3.6-35B-A3B with drafts logs 2,982 blocks of 11 pages
  // in 66.58 GiB, 10 of its 40 layers attend.
  for (const char* engine : {"vllm", "sglang"}) {
    const auto block = [&](const Json& changes) {
      return with_states(engine, 4, changes).decode().kv_layout.block.value();
    };
    const double plain = block(Json::object());
    CHECK_THAT(block({{"speculative", {{"num_speculative_tokens", 2}, {"acceptance_length", 2}}}}),
               WithinRel(plain * 13 / 12, 1e-12));
  }
}

TEST_CASE("copies let more GPUs hold experts than there are experts") {
  const Json wide{{"parallel", {{"dp", 32}, {"tp", 1}, {"ep", 32}}},
                  {"cluster", "../hardware/clusters/h100x32.json"},
                  {"workload", {{"arrivals", {{"concurrency", 64}}}}}};
  Json json = tiny_experiment(wide);  // 16 experts
  CHECK_THAT(refused(json), Contains("give a \"replication\" of at least 2"));
  json["placement"]["replication"] = 2;
  const Report report = run(load(json));
  CHECK(report.document()["metrics"]["completed"] == 120);
}

TEST_CASE("a preset fills what a config leaves out, and nothing else") {
  const Json plain = tiny_experiment({});
  CHECK(filled(plain) == plain);
  Json own = with_engine_named({{"name", "vllm"}});
  own["scheduling"] = {{"max_num_seqs", 7}};
  own["kv_cache"] = {{"gpu_memory_utilization", 0.5}};
  const Json json = filled(own);
  CHECK(json["scheduling"]["type"] == "chunked_prefill");
  CHECK(json["scheduling"]["max_num_seqs"] == 7);
  CHECK(json["scheduling"]["max_num_batched_tokens"] == 8192);
  CHECK(json["kv_cache"]["gpu_memory_utilization"] == 0.5);
  CHECK(json["workload"] == own["workload"]);
  // Another policy than the preset's keeps its own options.
  own["scheduling"] = {{"type", "prefill_first"}, {"max_num_seqs", 7}};
  CHECK(filled(own)["scheduling"] == own["scheduling"]);
}

TEST_CASE("a share of memory that a config gives holds, whichever key the preset has for it") {
  const auto with_share = [](const char* engine, const Json& share) {
    return with_engine_named({{"name", engine}}, {{"kv_cache", share}});
  };
  const Json half{{"gpu_memory_utilization", 0.5}}, rest{{"free_gpu_memory_fraction", 0.5}};
  for (const char* engine : {"vllm", "sglang", "trtllm"}) {
    CAPTURE(engine);
    CHECK(!filled(with_share(engine, half))["kv_cache"].contains("free_gpu_memory_fraction"));
    CHECK(!filled(with_share(engine, rest))["kv_cache"].contains("gpu_memory_utilization"));
    const MemoryBudget memory = test::load(with_share(engine, half)).decode().memory;
    CHECK_THAT(memory.usable / memory.capacity, WithinRel(0.5, 1e-12));
    Json both = half;
    both.update(rest);
    CHECK_THAT(test::refused(with_share(engine, both)),
               Catch::Matchers::Contains("/kv_cache/gpu_memory_utilization: \"free_gpu_memory"));
  }
}

TEST_CASE("engines choose settings by the sizes of GPU and group, as their sources do") {
  struct Row {
    const char *engine, *gpu, *model;
    int dp, tp;
    double share;
    int tokens, graphs;
  };
  // Shares: 1 - (512 + 1.5 x tokens + 2 x graphs + 128 x GPUs) / MiB, 10 GiB at least, by hand.
  constexpr const char *small = "qwen3_30b_a3b", *kimi = "kimi_k2_5";
  for (const Row& row : {Row{"sglang", "h100", small, 1, 8, .818, 8192, 512},
                         Row{"sglang", "h100", small, 1, 2, .834, 8192, 256},
                         Row{"sglang", "h200", small, 1, 8, .897, 8192, 512},
                         Row{"sglang", "h200", small, 8, 1, .769, 1024, 512},
                         Row{"sglang", "h200", small, 32, 2, .767, 256, 128},
                         Row{"sglang", "h200", "llama_3_3_70b", 4, 2, .906, 8192, 256},
                         Row{"sglang", "b200", small, 1, 8, .852, 16384, 512},
                         Row{"sglang", "l40s", small, 1, 1, .851, 4096, 32},
                         Row{"sglang", "mi355x", small, 1, 8, .908, 16384, 512},
                         Row{"sglang", "mi355x", kimi, 1, 8, .826, 16384, 512},
                         Row{"vllm", "h100", small, 1, 8, .92, 8192, 512},
                         Row{"vllm", "rtx_pro_6000", small, 1, 8, .92, 8192, 512},
                         Row{"vllm", "l40s", small, 1, 8, .92, 2048, 512},
                         Row{"vllm", "a100_80g", small, 1, 8, .92, 2048, 512}}) {
    CAPTURE(row.engine, row.gpu, row.model);
    Json config = with_engine_named({{"name", row.engine}});
    config["model"] = row.model;
    config["cluster"] = {{"gpu", row.gpu}, {"gpus_per_node", 8}};
    config["parallel"] = {{"dp", row.dp}, {"tp", row.tp}};
    const Json json = filled(config);
    CHECK_THAT(json["kv_cache"]["gpu_memory_utilization"].get<double>(),
               Catch::Matchers::WithinAbs(row.share, 1e-3));
    CHECK(json["scheduling"]["max_num_batched_tokens"] == row.tokens);
    CHECK(json["cuda_graph"]["max"] == row.graphs);
    // What is given holds.
    config["kv_cache"]["gpu_memory_utilization"] = .5;
    CHECK(filled(config)["kv_cache"]["gpu_memory_utilization"] == .5);
  }
}

TEST_CASE("a preset's settings for a model are found under its owner's name, too") {
  for (const char* folder : {"Tiny-Next", "an-owner--Tiny-Next", "models--an-owner--Tiny-Next"}) {
    CAPTURE(folder);
    Json model =
        ConfigNode::from_file(test::source_dir() / "models/zoo/qwen3_next_80b_a3b.json").json();
    model["name"] = std::string(folder).replace(std::string(folder).find("Tiny"), 4, "Qwen3");
    Json config = with_engine_named({{"name", "vllm"}});
    config["model"] = model;
    CHECK(filled(config)["precision"]["state"] == "bf16");
  }
}

TEST_CASE("GPUs without FP4 arithmetic multiply nvfp4 weights in bf16, and it is said") {
  const auto at = [](const char* cluster) {
    Json json = with_engine_named({{"name", "vllm"}});
    json["cluster"] =
        (test::source_dir() / "hardware/clusters" / (std::string(cluster) + ".json")).string();
    json["precision"] = {{"experts", "nvfp4"}, {"attention", "bf16"}};
    return test::load(json);
  };
  const auto said = [](const Experiment& e) {
    return std::ranges::any_of(remarks_of(e), [](const std::string& remark) {
      return remark.find("does not multiply nvfp4") != std::string::npos;
    });
  };
  CHECK(at("h100x8").decode().precision.activations == Precision::bf16);
  CHECK(said(at("h100x8")));
  CHECK(at("b200x8").decode().precision.activations == Precision::nvfp4);
  CHECK_FALSE(said(at("b200x8")));
}

TEST_CASE("a preset fills what is left out at any concurrency") {
  const Json many = filled(with_engine_named(
      {{"name", "vllm"}}, {{"workload", {{"arrivals", {{"concurrency", 1'000'000'000}}}}}}));
  CHECK(many.contains("scheduling"));
}

TEST_CASE("an experiment with an engine runs, and its resolved config runs the same") {
  for (const char* name : {"vllm", "sglang", "trtllm"}) {
    CAPTURE(name);
    const Json json = with_engine_named({{"name", name}, {"version", "1.0"}});
    TraceLibrary traces;
    const auto path = test::source_dir() / "tests" / "tiny.json";
    const Experiment first = load_experiment(ConfigNode(json, path), traces);
    CHECK(first.decode().engine == std::string(name) + " 1.0");
    const Experiment again = load_experiment(ConfigNode(first.config, path), traces);
    CHECK(again.config == first.config);
    CHECK(run(first).document()["metrics"] == run(again).document()["metrics"]);
  }
}

TEST_CASE("a release is read with and without the v of its tag, and nothing else is one") {
  const auto engine = [](const char* version) {
    return test::load(with_engine_named({{"name", "vllm"}, {"version", version}})).decode().engine;
  };
  CHECK(engine("v0.19.0") == engine("0.19.0"));
  for (const char* version : {"latest", "v", "main"})
    CHECK_THAT(test::refused(with_engine_named({{"name", "vllm"}, {"version", version}})),
               Catch::Matchers::Contains("is no release"));
}

TEST_CASE("prefixes that an engine would cache by default, and the experiment does not, are said") {
  const test::TemporaryFile file("requests.jsonl",
                                 R"({"input_length": 20, "output_length": 30, "hash_ids": [1]})");
  const Json recorded{{"type", "trace"}, {"file", file.path().string()}};
  const auto said = [](Json json, const Json& lengths) {
    json["workload"]["lengths"] = lengths;
    return std::ranges::any_of(remarks_of(test::load(json)), [](const std::string& remark) {
      return remark.find("prompts share prefixes") != std::string::npos;
    });
  };
  const auto caching = [](const Json& value) {
    return with_engine_named({{"name", "vllm"}}, {{"kv_cache", {{"prefix_caching", value}}}});
  };
  const Json plain = tiny_experiment(Json::object())["workload"]["lengths"];
  CHECK(said(with_engine_named({{"name", "vllm"}}), recorded));
  CHECK_FALSE(said(caching(true), recorded));
  CHECK_FALSE(said(caching(false), recorded));  // who says so means it
  CHECK_FALSE(said(with_engine_named({{"name", "vllm"}}), plain));
  CHECK_FALSE(said(tiny_experiment(Json::object()), recorded));
}

TEST_CASE("rules of a recipe follow the workload, its date and the GPU") {
  const auto scheduling = [](const char* name, const char* date, const char* cluster,
                             const char* model, const char* experts) {
    Json json = with_engine_named(
        {{"name", name}, {"version", "0.19.0"}, {"recipe", "inferencex"}, {"date", date}});
    json["cluster"] = std::string("../hardware/clusters/") + cluster;
    json["model"] = std::string("../models/zoo/") + model;
    json["precision"]["experts"] = experts;
    json["workload"]["lengths"] = {{"type", "uniform"}, {"prompt", 1024}, {"output", 1024}};
    json["workload"]["arrivals"]["concurrency"] = 32;
    return filled(json)["scheduling"];
  };
  const char* b200 = "b200x8.json";
  CHECK(scheduling("vllm", "2026-04-21", b200, "minimax_m2_5.json",
                   "fp8_block")["max_num_batched_tokens"] == 2048);
  // One prompt a step, then at least 8,192 tokens from 2026-01-21 on.
  CHECK(scheduling("trtllm", "2025-12-15", b200, "deepseek_v3.json",
                   "nvfp4")["max_num_batched_tokens"] == 1152);
  CHECK(scheduling("trtllm", "2026-02-03", b200, "deepseek_v3.json",
                   "nvfp4")["max_num_batched_tokens"] == 8192);
  CHECK(scheduling("sglang", "2026-03-03", b200, "qwen3_5_397b_a17b.json",
                   "fp8_block")["max_num_seqs"] == 128);
}

TEST_CASE("a limit of all attention ranks is shared out among them") {
  // SGLang runs 256 requests of DeepSeek-V4 where a command gives no --max-running-requests.
  for (const int dp : {1, 4}) {
    Json json = with_engine_named({{"name", "sglang"}});
    json["model"] = "../models/zoo/deepseek_v4_flash.json";
    json["parallel"] = {{"dp", dp}, {"tp", 4 / dp}, {"ep", 1}};
    CHECK(filled(json)["scheduling"]["max_num_seqs"] == 256 / dp);
  }
}

TEST_CASE("settings may hold up to some lengths and parallelism") {
  const auto named = [&](const char* engine, const char* model, int output, int tp) {
    Json json = with_engine_named({{"name", engine}, {"recipe", "inferencex"}});
    json["cluster"] = "../hardware/clusters/b200x8.json";
    json["model"] = std::string("../models/zoo/") + model;
    json["parallel"] = {{"dp", 1}, {"tp", tp}, {"ep", 1}};
    json["workload"]["lengths"] = {{"type", "uniform"}, {"prompt", 1024}, {"output", output}};
    return filled(json);
  };
  const auto waits = [&](int output, int tp) {
    const Json aligned = named("trtllm", "llama_3_3_70b.json", output, tp)["prefill_alignment"];
    return aligned.is_object() ? aligned.value("batch_wait_timeout_iters", 0) : 0;
  };
  CHECK(waits(1024, 4) == 20);
  CHECK(waits(8192, 4) == 0);
  CHECK(waits(1024, 8) == 0);
}

TEST_CASE("SGLang's prompts have graphs from 0.5.10 on, but for DeepSeek's models") {
  const auto launch = [](const char* version, const char* model) {
    Json json = with_engine_named({{"name", "sglang"}, {"recipe", "inferencex"}});
    if (*version) json["engine"]["version"] = version;
    json["cluster"] = "../hardware/clusters/b200x8.json";
    json["model"] = std::string("../models/zoo/") + model;
    return filled(json)["charges"].value("eager_launch", "none");
  };
  CHECK(launch("0.5.9", "glm_5.json") == "85 us");
  CHECK(launch("0.5.10.post1", "glm_5.json") == "none");
  CHECK(launch("", "glm_5.json") == "none");
  CHECK(launch("0.5.10.post1", "deepseek_v3.json") == "45 us");
}

TEST_CASE("a recipe names the kernel of its expert layers, where tables have several") {
  const auto kernel = [](const char* name, const char* version, const char* experts) {
    Json json = with_engine_named({{"name", name}, {"version", version}, {"recipe", "inferencex"}});
    json["cluster"] = "../hardware/clusters/b200x8.json";
    json["model"] = "../models/zoo/minimax_m2_5.json";
    json["precision"]["experts"] = experts;
    return filled(json)["engine"].value("expert_kernel", "");
  };
  CHECK(kernel("vllm", "0.19.0", "fp8_block") == "trtllm_moe");
  CHECK(kernel("vllm", "0.17.0", "fp8_block") == "fused_moe");
  CHECK(kernel("vllm", "0.19.0", "nvfp4") == "flashinfer_trtllm");
  CHECK(kernel("trtllm", "1.1.0", "fp8_block") == "deepgemm");
}

TEST_CASE("a table that takes longer for four bits than for sixteen does not price an engine") {
  const GpuSpec h200 =
      read_gpu(ConfigNode::from_file(test::source_dir() / "hardware" / "gpus" / "h200.json"));
  // Two engines run the same Marlin kernel for int4 weights; vLLM was measured at three times
  // SGLang's time, and at 1.8 times its own in bf16.
  const GroupedGemmShape kimi{
      7168, 256, Precision::int4, Precision::bf16, ExpertKernel::grouped_gemm, 256, 8};
  const auto time = [&](const GpuSpec& gpu) {
    const GroupedGemm layer(kimi, gpu);
    const std::vector<std::int32_t> tokens(128, 2);
    return layer.cost(layer.rows(tokens), 32).time;
  };
  CHECK(time(with_engine(h200, {"vllm", "0.19.0"})) == time(with_engine(h200, {"sglang", ""})));
}

TEST_CASE("kernels of all engines side by side: the fastest of those measured near") {
  const GpuSpec h200 =
      read_gpu(ConfigNode::from_file(test::source_dir() / "hardware" / "gpus" / "h200.json"));
  const GpuSpec own = with_engine(h200, {"vllm", "0.19.0"});
  const GpuSpec any = with_engine(h200, {"vllm", "0.19.0"}, {{"engines", "any"}});
  const auto time = [](const GpuSpec& gpu, Precision weights, int width) {
    const GroupedGemmShape shape{
        7168, double(width), weights, Precision::bf16, ExpertKernel::grouped_gemm, 256, 8};
    const GroupedGemm layer(shape, gpu);
    const std::vector<std::int32_t> tokens(128, 2);
    return layer.cost(layer.rows(tokens), 32).time;
  };
  int faster = 0;
  for (const Precision weights : {Precision::bf16, Precision::fp8_block, Precision::int4}) {
    for (const int width : {256, 512, 2048}) {
      CHECK(time(any, weights, width) <= time(own, weights, width) * (1 + 1e-12));
      faster += time(any, weights, width) < .99 * time(own, weights, width);
    }
  }
  CHECK(faster > 0);
}

TEST_CASE("times of tables hold what was measured with them") {
  const MoeModel model = read_model(
      ConfigNode::from_file(test::source_dir() / "models" / "zoo" / "minimax_m2_5.json"));
  const GpuSpec bare =
      read_gpu(ConfigNode::from_file(test::source_dir() / "hardware" / "gpus" / "h200.json"));
  const PrecisionPlan fp8{.experts = Precision::fp8_block,
                          .attention = Precision::fp8_block,
                          .activations = Precision::fp8_block,
                          .ffn = Precision::fp8_block};
  const auto has = [&](const GpuSpec& gpu, std::string_view name) {
    std::vector<Operation> ops;
    model.layers.front().mixer->input({model.hidden, {.tp = 4}, fp8, gpu}, 32, ops);
    gate_operations({model, {}, fp8, gpu}, 32, ops);
    return std::ranges::any_of(ops, [&](const Operation& op) { return op.name == name; });
  };
  const GpuSpec measured = with_engine(bare, {"vllm", "0.19.0"});
  for (const char* inside : {"quantise", "kv_cache_write", "top_k"}) {
    CAPTURE(inside);
    CHECK(has(bare, inside));
    CHECK_FALSE(has(measured, inside));
  }
  CHECK(has(measured, "qk_norm"));
}

TEST_CASE("presets are well formed, and every setting names its source") {
  for (const ServingEngine& engine : serving_engines()) {
    CAPTURE(engine.name);
    const Json preset = Json::parse(engine.preset);
    CHECK(preset["name"] == engine.name);
    for (const Json& setting : preset["settings"]) {
      CAPTURE(setting.dump());
      CHECK_FALSE(setting.at("source").get<std::string>().empty());
      CHECK_FALSE(setting.at("set").empty());
    }
  }
  CHECK(find_engine("nobody's") == nullptr);
}

TEST_CASE("an unknown engine is refused with the names there are") {
  const Json json = with_engine_named({{"name", "vlm"}});
  CHECK_THAT(test::refused(json),
             Catch::Matchers::Contains("/engine/name") && Catch::Matchers::Contains("vllm"));
}

// ---- the client and the engine's front ----

TEST_CASE("staggered clients begin with shares of their outputs, and go on with whole ones") {
  const auto outputs = [](const Json& more) {
    Json arrivals = {{"type", "closed_loop"}, {"concurrency", 4}, {"staggered", true}};
    arrivals.update(more);
    const Experiment e =
        load_tiny({{"workload",
                    {{"arrivals", arrivals},
                     {"lengths", {{"type", "fixed"}, {"prompt", 8}, {"output", 20}}},
                     {"requests", 6}}}});
    const auto source = e.decode().workload.make(1, 1);
    std::vector<std::int32_t> lengths;
    for (int i = 0; i < 6; ++i) {
      if (i >= 4) source->completed(i - 4, Outcome::finished, Time{});
      lengths.push_back(source->next().value().request.output_tokens);
    }
    return lengths;
  };
  using Outputs = std::vector<std::int32_t>;
  CHECK(outputs(Json::object()) == Outputs{5, 10, 15, 20, 20, 20});
  CHECK(outputs({{"clients_in_step", 2}}) == Outputs{10, 10, 20, 20, 20, 20});
  // The last clients may be fewer.
  CHECK(outputs({{"clients_in_step", 3}}) == Outputs{15, 15, 15, 20, 20, 20});
  CHECK_THAT(test::config_error([&] {
               outputs({{"staggered", false}, {"clients_in_step", 2}});
             }),
             Catch::Matchers::Contains("clients_in_step: needs \"staggered\": true"));
}

TEST_CASE("lengths of the benchmark's client lie evenly between a share and the whole") {
  const Experiment e = load_tiny({{"workload",
                                   {{"lengths",
                                     {{"type", "uniform"},
                                      {"prompt", 100},
                                      {"output", 50},
                                      {"least", 0.8},
                                      {"$x", nullptr}}}}}});
  Rng rng(1, "test");
  std::set<std::int32_t> prompts, outputs;
  double sum = 0;
  constexpr int draws = 4000;
  for (int i = 0; i < draws; ++i) {
    const Request r = e.decode().workload.lengths->request(i, rng);
    prompts.insert(r.prompt_tokens);
    outputs.insert(r.output_tokens);
    sum += r.prompt_tokens;
  }
  CHECK(*prompts.begin() == 80);
  CHECK(*prompts.rbegin() == 100);
  CHECK(prompts.size() == 21);
  CHECK(*outputs.begin() == 40);
  CHECK(*outputs.rbegin() == 50);
  CHECK_THAT(sum / draws, WithinAbs(90, 0.5));
}

TEST_CASE("what the API server takes is in the time to the first token alone") {
  const auto metrics = [](const Json& set) { return serve(load_tiny(set)).document()["metrics"]; };
  // One request at a time: nothing else shifts.
  const Json alone{{"workload", {{"arrivals", {{"concurrency", 1}}}, {"requests", 8}}}};
  Json later = alone;
  later["api_server"] = {{"latency", "30 ms"}};
  const Experiment e = load_tiny(alone);
  const double launches =
      kernel_launches(e.decode().model, e.decode().parallel, e.decode().precision, {});
  Json by_launch = alone;
  by_launch["api_server"] = {{"latency_per_launch", fmt::format("{:.9f} ms", 30 / launches)}};
  const auto a = metrics(alone), b = metrics(later);
  CHECK_THAT(b["mean_ttft_ms"].get<double>() - a["mean_ttft_ms"].get<double>(),
             WithinAbs(30, 1e-2));
  CHECK_THAT(metrics(by_launch)["mean_ttft_ms"].get<double>(),
             WithinRel(b["mean_ttft_ms"].get<double>(), 1e-6));
  CHECK_THAT(b["mean_tpot_ms"].get<double>(), WithinRel(a["mean_tpot_ms"].get<double>(), 1e-3));
}

TEST_CASE("prompts are tokenized one after the other, by each worker one at a time") {
  const auto received = [](int workers, const char* per_request = "0 us") {
    const auto served =
        serve(load_tiny({{"workload",
                          {{"arrivals", {{"concurrency", 4}}},
                           {"lengths", {{"type", "fixed"}, {"prompt", 100}, {"output", 20}}},
                           {"requests", 4}}},
                         {"parallel", {{"dp", 1}, {"tp", 4}}},
                         {"placement", {{"type", "linear"}, {"replication", 1}}},
                         {"api_server",
                          {{"tokenization", "1 ms"},
                           {"per_request", per_request},
                           {"tokenizer_workers", workers},
                           {"latency", "7 ms"}}}}));
    std::vector<double> ms;
    for (const RequestRecord& request : served.requests) {
      CHECK(request.arrival == Time{});
      CHECK(request.begun >= request.received);
      ms.push_back(to_seconds(request.received - request.arrival).count() * 1e3);
    }
    return ms;
  };
  using Catch::Matchers::Approx;
  CHECK_THAT(received(1), Approx(std::vector<double>{107, 207, 307, 407}));
  CHECK_THAT(received(2), Approx(std::vector<double>{107, 107, 207, 207}));
  CHECK_THAT(received(3), Approx(std::vector<double>{107, 107, 107, 207}));
  CHECK_THAT(received(2, "30 ms"), Approx(std::vector<double>{130, 130, 260, 260}));
}

TEST_CASE(
    "a client of a closed loop sends when it has its last token, however long tokenizing is") {
  const auto served =
      serve(load_tiny({{"workload", {{"arrivals", {{"concurrency", 4}}}, {"requests", 40}}},
                       {"api_server", {{"tokenization", "1 ms"}, {"latency", "7 ms"}}}}));
  std::vector<Time> sent, done;
  for (const RequestRecord& request : served.requests) {
    sent.push_back(request.arrival);
    done.push_back(request.last_token);
  }
  std::ranges::sort(sent), std::ranges::sort(done);
  CHECK(std::equal(sent.begin() + 4, sent.end(), done.begin()));
}

TEST_CASE("ingress, queue and prefill are what a first token takes") {
  const auto metrics =
      serve(load_tiny({{"workload", {{"arrivals", {{"concurrency", 8}}}, {"requests", 80}}},
                       {"scheduling", {{"max_num_seqs", 2}}},
                       {"api_server", {{"tokenization", "10 us"}, {"latency", "1 ms"}}}}))
          .document()["metrics"];
  const auto ms = [&](const char* name) { return metrics[name].get<double>(); };
  CHECK(ms("mean_ingress_ms") > 1);
  CHECK(ms("mean_queue_ms") > 0);
  CHECK_THAT(ms("mean_ingress_ms") + ms("mean_queue_ms") + ms("mean_prefill_ms"),
             WithinRel(ms("mean_ttft_ms"), 1e-9));
}

TEST_CASE("a client that is shown tokens in chunks sees the first when it is whole") {
  const Json alone{{"workload", {{"arrivals", {{"concurrency", 1}}}, {"requests", 8}}}};
  Json chunked = alone;
  chunked["api_server"] = {{"first_chunk", 10}};
  const auto plain = serve(load_tiny(alone)), shown = serve(load_tiny(chunked));
  REQUIRE(plain.requests.size() == shown.requests.size());
  for (std::size_t i = 0; i < plain.requests.size(); ++i) {
    const RequestRecord &a = plain.requests[i], &b = shown.requests[i];
    CHECK(a.last_token == b.last_token);
    const double step = double((a.last_token - a.first_token).count()) / 29;
    CHECK_THAT(double((b.first_token - a.first_token).count()), WithinRel(9 * step, 0.02));
  }
}

TEST_CASE("an engine that looks for requests now and then lets them wait, but not when idle") {
  const Json busy{{"workload", {{"arrivals", {{"concurrency", 4}}}, {"requests", 40}}},
                  {"parallel", {{"dp", 1}, {"tp", 4}}},
                  {"placement", {{"type", "linear"}, {"replication", 1}}}};
  Json polled = busy;
  polled["api_server"] = {{"receive_interval", 10}};
  const double now = serve(load_tiny(busy)).document()["metrics"]["mean_ttft_ms"];
  const double later = serve(load_tiny(polled)).document()["metrics"]["mean_ttft_ms"];
  CHECK(later > now);
  Json idle = polled;
  idle["workload"]["arrivals"]["concurrency"] = 1;
  Json idle_now = busy;
  idle_now["workload"]["arrivals"]["concurrency"] = 1;
  CHECK(serve(load_tiny(idle)).document()["metrics"]["mean_ttft_ms"] ==
        serve(load_tiny(idle_now)).document()["metrics"]["mean_ttft_ms"]);
}

TEST_CASE("requests wait for others to go together, no longer than they are told to") {
  const auto waits = [](int concurrency, const Json& server, int dp) {
    Json set{{"workload",
              {{"arrivals", {{"concurrency", concurrency}}},
               {"lengths", {{"type", "uniform"}, {"prompt", 8}, {"output", 100}}},
               {"requests", 80}}},
             {"parallel", {{"dp", dp}, {"tp", 4 / dp}}},
             {"placement", {{"type", "linear"}, {"replication", 1}}},
             {"prefill_alignment", server}};
    return serve(load_tiny(set)).document()["metrics"]["mean_ttft_ms"].get<double>();
  };
  constexpr const char* balance = "trtllm_balance";
  const Json none{{"type", "none"}}, five{{"type", balance}, {"batch_wait_timeout_iters", 5}},
      fifty{{"type", balance}, {"batch_wait_timeout_iters", 50}},
      balanced{{"type", balance}, {"batch_wait_timeout_iters", 50}, {"enable_balance", true}};
  CHECK(waits(4, five, 1) > waits(4, none, 1));
  CHECK(waits(4, fifty, 1) > waits(4, five, 1));
  // Every rank has a request as soon as the only one has, and where none runs nothing waits.
  CHECK(waits(4, balanced, 1) == waits(4, none, 1));
  CHECK(waits(1, fifty, 1) == waits(1, none, 1));
  CHECK(waits(16, balanced, 4) > waits(16, none, 4));
  CHECK(waits(16, balanced, 4) <= waits(16, fifty, 4));
}

// Of the tiny model, so long that all launches of a step take 30 ms.
Json slow_launches() {
  const Experiment e = load_tiny(Json::object());
  const double launches =
      kernel_launches(e.decode().model, e.decode().parallel, e.decode().precision, {});
  return {{"eager_launch", fmt::format("{:.12f} ms", 30 / launches)}};
}

TEST_CASE("gaps, sequences and eager launches add what they say to a step") {
  const auto step = [](const Json& charges, const StepContent& content) {
    const Experiment e = load_tiny({{"charges", charges}});
    return explain_step(e, content).cost.total.count();
  };
  const StepContent decode = decode_step(4, 100), prefill = prefill_step(16);
  const double bare = step(Json::object(), decode);
  const double gaps = step({{"per_layer", "5 us"}}, decode);
  CHECK_THAT(gaps - bare, WithinRel(3 * 5e-6, 1e-6));
  const double sequences = step({{"per_sequence", "2 us"}}, decode);
  CHECK_THAT(sequences - bare, WithinRel(4 * 2e-6, 1e-6));
  CHECK_THAT(step(slow_launches(), prefill), WithinRel(30e-3, 1e-6));
  CHECK(step({{"eager_launch", "0.001 ns"}}, prefill) == step({}, prefill));
}

TEST_CASE("ranks wait for the last host, once in a graph and in each layer without one") {
  // Order statistics of the normal distribution: Godwin 1949; 2, 3 and 4 in closed form.
  CHECK(mean_of_largest(1) == 0);
  CHECK_THAT(mean_of_largest(2), WithinRel(1 / std::sqrt(std::numbers::pi), 1e-6));
  CHECK_THAT(mean_of_largest(3), WithinRel(1.5 / std::sqrt(std::numbers::pi), 1e-6));
  CHECK_THAT(mean_of_largest(10), WithinRel(1.5387527308, 1e-6));
  CHECK_THAT(mean_of_largest(72), WithinRel(2.3873, 1e-2));
  const auto step = [](const char* jitter, const StepContent& content, int largest) {
    const Experiment e = load_tiny({{"charges", {{"rank_jitter", jitter}}},
                                    {"cuda_graph", {{"sizes", "vllm"}, {"max", largest}}}});
    return explain_step(e, content).cost.total.count();
  };
  const Experiment e = load_tiny(Json::object());
  const double wait = 10e-6 * mean_of_largest(e.decode().parallel.stage_gpus());
  const StepContent decode = decode_step(4, 100);
  const auto more = [&](const StepContent& content, int largest) {
    return step("10 us", content, largest) - step("0 us", content, largest);
  };
  CHECK_THAT(more(decode, 64), WithinRel(wait, 1e-6));
  CHECK_THAT(more(decode, 1), WithinRel(3 * wait, 1e-6));
  CHECK_THAT(more(prefill_step(16), 64), WithinRel(3 * wait, 1e-6));
}

TEST_CASE("a decode that a captured graph holds pays no eager launches") {
  const auto step = [](int largest) {
    const Experiment e = load_tiny(
        {{"charges", slow_launches()}, {"cuda_graph", {{"sizes", "vllm"}, {"max", largest}}}});
    return explain_step(e, decode_step(4, 100)).cost.total.count();
  };
  CHECK(step(4) < 5e-3);
  CHECK_THAT(step(2), WithinRel(30e-3, 1e-6));
}

TEST_CASE("sizes of graphs of one's own take the place of an engine's") {
  for (const char* engine : {"vllm", "sglang", "trtllm"}) {
    const Experiment e = load_tiny({{"engine", engine}, {"cuda_graph", {{"sizes", {8, 2}}}}});
    CHECK(e.decode().graph_sizes == std::vector<std::int32_t>{2, 8});
  }
}

TEST_CASE("rows that pad a captured graph pass the experts too") {
  const auto experts = [](const Json& graphs) {
    const Experiment e = load_tiny(graphs);
    return test::seconds_of(explain_step(e, decode_step(8, 100)).cost, Part::experts);
  };
  const auto graph = [](int size) { return Json{{"cuda_graph", {{"sizes", {size}}}}}; };
  const double plain = experts(Json::object());
  CHECK(experts(graph(8)) == plain);
  CHECK(experts(graph(9)) >= plain);
  // Twice the rows, twice the time, where arithmetic binds.
  CHECK_THAT(experts(graph(1 << 15)), WithinRel(2 * experts(graph(1 << 14)), .1));
  CHECK(experts(graph(1 << 14)) > 2 * plain);
}

TEST_CASE("engines capture the batch sizes that they do") {
  const auto sizes = [](const char* rule, int largest) {
    return load_tiny({{"cuda_graph", {{"sizes", rule}, {"max", largest}}}}).decode().graph_sizes;
  };
  const auto vllm = sizes("vllm", 512);
  CHECK(std::vector(vllm.begin(), vllm.begin() + 5) == std::vector<std::int32_t>{1, 2, 4, 8, 16});
  CHECK(std::count(vllm.begin(), vllm.end(), 248) == 1);
  CHECK(std::count(vllm.begin(), vllm.end(), 264) == 0);
  CHECK(vllm.back() == 512);
  CHECK(sizes("sglang", 20) == std::vector<std::int32_t>{1, 2, 4, 8, 12, 16, 20});
  CHECK(sizes("trtllm", 300) == std::vector<std::int32_t>{1,  2,   4,   8,   16,  24,  32,
                                                          40, 48,  56,  64,  72,  80,  88,
                                                          96, 104, 112, 120, 128, 256, 300});
}

// ---- anchors ----

TEST_CASE("one run gives a factor, three give slopes, and both return what they were made of") {
  const AnchorFit one = fit_anchor(std::vector<AnchorRun>{{{16, 1024, 1024}, 12, 10}});
  CHECK_THAT(one.at({16, 1024, 1024}), WithinRel(1.2, 1e-9));
  CHECK_THAT(one.at({64, 8192, 1024}), WithinRel(1.2, 1e-9));
  std::vector<AnchorRun> runs;
  for (const double c : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0})
    runs.push_back({{c, 1024, 1024}, 10 * std::pow(c, 0.1), 10});
  const AnchorFit fit = fit_anchor(runs);
  CHECK(fit.runs == 10);
  // Ridge takes the slope a little towards 0.
  CHECK(fit.slope.concurrency < 0.1);
  CHECK_THAT(fit.slope.concurrency, WithinRel(0.1, 0.05));
  CHECK_THAT(fit.slope.prompt, WithinAbs(0, 1e-12));
  CHECK(fit.leave_one_out < 0.02);
}

TEST_CASE("the slope of three runs is that of ridge regression of strength 2") {
  std::vector<AnchorRun> runs;
  for (const double c : {1.0, 8.0, 64.0})
    runs.push_back({{c, 1024, 1024}, 10 * std::pow(c, 0.1), 10});
  const double squares = 2 * std::pow(std::log(8.0), 2);
  CHECK_THAT(fit_anchor(runs).slope.concurrency, WithinRel(0.1 * squares / (squares + 2), 1e-9));
}

TEST_CASE("an anchor is read as it was written, and its errors name the place") {
  Anchor anchor{.deployment = "H100 here", .tpot = {}, .ttft = {}};
  anchor.tpot = {.factor = 1.25, .center = {8, 1000, 500}, .slope = {0.1, 0, -0.2}, .runs = 3};
  const Anchor read = read_anchor(test::config(to_json(anchor).dump()));
  CHECK(read.deployment == anchor.deployment);
  CHECK(read.tpot.at({16, 2000, 300}) == anchor.tpot.at({16, 2000, 300}));
  CHECK(read.ttft.runs == 0);
  CHECK_THAT(test::config_error([] { read_anchor(test::config(R"({"tpot": {}})")); }),
             Catch::Matchers::Contains("deployment"));
}

TEST_CASE("what an engine fuses costs no kernel of its own, and no faster product than the GPU's") {
  const MoeModel model = read_model(
      ConfigNode::from_file(test::source_dir() / "models" / "zoo" / "llama_3_3_70b.json"));
  const GpuSpec h200 =
      read_gpu(ConfigNode::from_file(test::source_dir() / "hardware" / "gpus" / "h200.json"));
  const auto operations = [&](const KernelChoice& choice, Precision precision, int tp) {
    const GpuSpec gpu = with_engine(h200, {"trtllm", "1.1.0"}, choice);
    const PrecisionPlan plan{
        .experts = precision, .attention = precision, .activations = precision, .ffn = precision};
    std::map<std::string, Cost, std::less<>> found;
    std::vector<Operation> ops;
    const Mixer& mixer = *model.layers.front().mixer;
    mixer.input({model.hidden, {.tp = tp}, plan, gpu}, 32, ops);
    mixer.output({model.hidden, {.tp = tp}, plan, gpu}, 32, ops);
    for (const Operation& op : ops) found[std::string(op.name)] = op.cost;
    return found;
  };
  const KernelChoice apart{{"engines", "any"}};
  const KernelChoice fused{{"engines", "any"}, {"fused", "norm rope quantise"}};
  const auto before = operations(apart, Precision::fp8, 2),
             after = operations(fused, Precision::fp8, 2);
  for (const char* inside : {"input_norm", "rope", "post_norm"}) {
    CAPTURE(inside);
    CHECK(before.contains(inside));
    CHECK_FALSE(after.contains(inside));
  }
  for (const char* product : {"qkv_proj", "o_proj"}) {
    CAPTURE(product);
    CHECK(after.at(product).time < before.at(product).time);
    CHECK(after.at(product).time >= after.at(product).work.hbm / h200.hbm_bandwidth);
  }
  // One GPU has no all-reduce; scales of blocks are of the values themselves.
  CHECK(operations(fused, Precision::fp8, 1).contains("post_norm"));
  CHECK(operations(fused, Precision::fp8_block, 2).at("o_proj").time ==
        operations(apart, Precision::fp8_block, 2).at("o_proj").time);
}

TEST_CASE("an engine's slower kernel of prompts' GEMMs prices prompts alone") {
  const GpuSpec h200 =
      read_gpu(ConfigNode::from_file(test::source_dir() / "hardware" / "gpus" / "h200.json"));
  const auto time = [&](const char* rate, double rows, Precision precision) {
    KernelChoice choice{{"engines", "any"}};
    if (*rate) choice["prompt_gemms"] = rate;
    const GpuSpec gpu = with_engine(h200, {"sglang", "0.5.10"}, choice);
    return gemm(rows, 7168, 2048, precision, precision, gpu).time.count();
  };
  CHECK_THAT(time("20 TFLOP/s", 4096, Precision::fp8_block),
             WithinRel(2.0 * 4096 * 7168 * 2048 / 20e12, 1e-9));
  CHECK(time("20 TFLOP/s", 64, Precision::fp8_block) == time("", 64, Precision::fp8_block));
  CHECK(time("20 TFLOP/s", 4096, Precision::bf16) == time("", 4096, Precision::bf16));
  Json json =
      with_engine_named({{"name", "sglang"}, {"version", "0.5.10"}, {"recipe", "inferencex"}});
  json["cluster"] = "../hardware/clusters/b200x8.json";
  json["model"] = "../models/zoo/deepseek_v3.json";
  json["precision"]["experts"] = "fp8_block";
  CHECK_FALSE(filled(json)["engine"].contains("prompt_gemms"));  // of later versions B300's alone
  json["engine"]["version"] = "0.5.9";
  CHECK(filled(json)["engine"]["prompt_gemms"] == "220 TFLOP/s");
  json["engine"]["recipe"] = "none";
  CHECK_FALSE(filled(json)["engine"].contains("prompt_gemms"));
}

TEST_CASE("a slower kernel of prompts' attention prices prompts alone: gpt-oss on A100") {
  Json json = with_engine_named({{"name", "vllm"}});
  json["cluster"] = "../hardware/clusters/a100_80g_x8.json";
  json["model"] = "../models/zoo/gpt_oss_20b.json";
  json["precision"] = {{"experts", "mxfp4"}, {"attention", "bf16"}};
  CHECK(filled(json)["engine"]["prompt_attention"] == "45 TFLOP/s");
  json["model"] = "../models/zoo/qwen3_30b_a3b.json";
  CHECK_FALSE(filled(json)["engine"].contains("prompt_attention"));
  const GpuSpec a100 =
      read_gpu(ConfigNode::from_file(test::source_dir() / "hardware" / "gpus" / "a100_80g.json"));
  const auto time = [&](const char* rate, bool decode) {
    KernelChoice choice{{"engines", "any"}};
    if (*rate) choice["prompt_attention"] = rate;
    const GpuSpec gpu = with_engine(a100, {"vllm", "0.14.0"}, choice);
    const double queries = decode ? 1 : 2048, pairs = queries * 15'000;
    return attention({decode, 64, 8, 64, 64}, {1, queries, 16'000, pairs}, gpu).time.count();
  };
  CHECK_THAT(time("45 TFLOP/s", false), WithinRel(4 * 64 * 64 * 2048 * 15e3 / 45e12, 1e-9));
  CHECK(time("45 TFLOP/s", false) > 2 * time("", false));
  CHECK(time("45 TFLOP/s", true) == time("", true));
}

TEST_CASE("Llama's launch scripts and model code name what their engines fuse") {
  const auto fused = [](const char* name, const char* recipe, const char* model) {
    Json json = with_engine_named({{"name", name}, {"version", "1.1.0"}, {"recipe", recipe}});
    json["cluster"] = "../hardware/clusters/b200x8.json";
    json["model"] = std::string("../models/zoo/") + model + ".json";
    return filled(json)["engine"].value("fused", Json::array());
  };
  CHECK(fused("trtllm", "inferencex", "llama_3_3_70b") == Json{"norm", "rope", "quantise"});
  CHECK(fused("vllm", "inferencex", "llama_3_3_70b") == Json{"norm", "quantise"});
  CHECK(fused("trtllm", "none", "llama_3_3_70b").empty());
  CHECK(fused("trtllm", "inferencex", "minimax_m2_5").empty());
}

// ---- measured deployments ----

TEST_CASE("rows of deployments apart are two points each, with both sides' workers") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "apart.csv";
  std::ofstream(file)
      << "id,model,gpu,engine,version,measured,precision,experts_precision,isl,osl,"
         "concurrency,prefill_num_workers,prefill_batch_size,prefill_tp_size,"
         "prefill_attention_dp_size,prefill_moe_ep_size,decode_num_workers,"
         "decode_batch_size,decode_tp_size,decode_attention_dp_size,"
         "decode_moe_ep_size,ttft_ms,tpot_ms,source\n"
         "d1,DeepSeek-R1,GB200,trtllm,0.8.1,2026-02-05,fp8,fp8,1024,1024,,2,1,1,8,8,"
         "1,4,1,32,32,600,15,s\n";
  const auto points = read_points(file);
  REQUIRE(points.size() == 2);
  CHECK(points[0].metric == "TTFT");
  CHECK(points[0].value == 600);
  CHECK(points[1].metric == "TPOT");
  CHECK(points[1].value == 15);
  CHECK(points[1].gpus == 2 * 8 + 32);
  CHECK(points[1].concurrency == 4 * 32);
  CHECK(points[1].decode.ep == 32);
  CHECK(categories_of(points[1]) ==
        std::vector<std::string>{"disaggregated", "disaggregated/tpot"});
  const DeploymentJson pools = pools_json(points[1], test::source_dir());
  CHECK(pools.unknown.empty());
  CHECK(pools.experiment["pools"]["prefill"]["instances"] == 2);
  CHECK(pools.experiment["pools"]["decode"]["parallel"]["dp"] == 32);
  CHECK(client_of(points[1]).waves == 10);
  MeasuredPoint earlier = points[1];
  earlier.notes = "run 2025-12-21";
  CHECK(client_of(earlier).waves == 5);
}

// Workers of `dp` attention ranks, of which every one decodes `batch` sequences.
Json pools_of(const char* gpu, const char* engine, int dp, int batch,
              const char* precision = "fp8_block") {
  MeasuredPoint point;
  point.category = "disaggregated";
  point.gpu = gpu;
  point.model = "DeepSeek-R1";
  point.operation = std::string("disaggregated ") + engine;
  point.precision = precision;
  point.prompt = point.output = 1024;
  point.prefill = {.workers = 1, .batch = 1, .tp = 1, .dp = 8, .ep = 8};
  point.decode = {.workers = 1, .batch = batch, .tp = 1, .dp = dp, .ep = dp};
  point.gpus = 8 + dp;
  const DeploymentJson pools = pools_json(point, test::source_dir());
  REQUIRE(pools.unknown.empty());
  return pools.experiment;
}

TEST_CASE("SGLang's workers within a node gather tokens, wider ones send them by DeepEP") {
  const Json near = pools_of("B200-SXM-180GB", "sglang 0.5.8", 8, 16);
  CHECK_FALSE(near["pools"]["decode"].contains("dispatch"));
  CHECK_FALSE(near["engine"].contains("expert_kernel"));
  CHECK(near["engine"]["recipe"] == "srt_slurm");
  CHECK(filled(near)["precision"]["kv_cache"] == "fp8");
  const Json wide = pools_of("GB200", "sglang 0.5.5", 32, 16);
  CHECK(wide["pools"]["decode"]["dispatch"]["decode"]["type"] == "low_latency");
  CHECK(wide["pools"]["prefill"]["dispatch"]["prefill"]["type"] == "all_to_all");
  CHECK(wide["engine"]["expert_kernel"] == "deepgemm");
  CHECK(filled(near)["cuda_graph"]["max"] == 1024);
  CHECK(near["engine"].contains("prompt_gemms"));
  CHECK_FALSE(wide["engine"].contains("prompt_gemms"));
}

TEST_CASE("SGLang's prefill workers compute the prompts that their scripts let into a step") {
  const auto prefill = [](const char* gpu, const char* precision, double prompt,
                          const WorkerPlan& plan, int decode_ranks) {
    MeasuredPoint point;
    point.category = "disaggregated";
    point.gpu = gpu;
    point.model = "DeepSeek-R1";
    point.operation = "disaggregated sglang 0.5.8";
    point.precision = precision;
    point.prompt = prompt;
    point.output = 1024;
    point.prefill = plan;
    point.decode = {.workers = 1, .batch = 4, .tp = 8 / decode_ranks, .dp = decode_ranks, .ep = 8};
    point.gpus = plan.workers * plan.tp * plan.dp + 8;
    return pools_json(point, test::source_dir()).experiment["pools"]["prefill"];
  };
  const WorkerPlan eight{.workers = 1, .batch = 1, .tp = 1, .dp = 8, .ep = 8};
  const WorkerPlan sliced{.workers = 1, .batch = 1, .tp = 1, .dp = 8, .ep = 1};
  const WorkerPlan four{.workers = 1, .batch = 1, .tp = 4, .dp = 1, .ep = 1};
  const auto tokens = [&](auto... row) {
    return prefill(row...)["scheduling"]["max_num_batched_tokens"].template get<int>();
  };
  CHECK(tokens("B200-SXM-180GB", "fp8_block", 8192., eight, 8) == 16384);
  CHECK(tokens("B200-SXM-180GB", "fp8_block", 8192., sliced, 8) == 8192);
  CHECK(tokens("B200-SXM-180GB", "nvfp4", 8192., four, 1) == 32768);
  CHECK(tokens("GB200", "nvfp4", 8192., four, 8) == 131072);
  CHECK(tokens("GB200", "nvfp4", 8192., four, 1) == 16384);
  CHECK(tokens("GB200", "nvfp4", 1024., four, 1) == 8192);
}

TEST_CASE("a run whose script drafts without saying so is left out") {
  MeasuredPoint point;
  point.category = "e2e";
  point.gpu = "B200-SXM-180GB";
  point.gpus = 4;
  point.model = "Qwen3.5-397B-A17B";
  point.operation = "online serving sglang 0.5.9, aggregated, closed loop";
  point.precision = "fp8_block";
  point.notes = "InferenceX run 2026-03-20";
  point.tp = 4;
  point.ep = point.dp = 1;
  CHECK(deployment_json(point, test::source_dir()).unknown.starts_with("drafts"));
  point.ep = 4;
  CHECK(deployment_json(point, test::source_dir()).unknown.empty());
}

TEST_CASE("TensorRT-LLM's decode ranks have the seats that names of recipes say") {
  const auto seats = [](int batch, const char* precision) {
    const Json pools = pools_of("GB200", "trtllm", 8, batch, precision)["pools"];
    return pools["decode"]["scheduling"]["max_num_seqs"].get<int>();
  };
  for (const auto& [batch, expected] :
       {std::pair{1, 1}, {2, 1}, {6, 4}, {9, 8}, {21, 16}, {64, 64}, {768, 768}})
    CHECK(seats(batch, "fp8") == expected);
  for (const auto& [batch, expected] :
       {std::pair{1, 1}, {4, 4}, {9, 8}, {3, 32}, {24, 32}, {48, 32}, {256, 256}, {768, 768}})
    CHECK(seats(batch, "nvfp4") == expected);
  CHECK_FALSE(pools_of("B200-SXM-180GB", "sglang", 8, 9)["pools"]["decode"].contains("scheduling"));
}

TEST_CASE("ten front ends choose workers of SGLang, and of TensorRT-LLM on GB200") {
  const auto front_ends = [](const char* gpu, const char* engine) {
    const Json pools = pools_of(gpu, engine, 8, 8)["pools"];
    return pools["decode"]["request_routing"].value("front_ends", 1);
  };
  CHECK(front_ends("GB200", "trtllm") == 10);
  CHECK(front_ends("B200-SXM-180GB", "sglang") == 10);
  for (const char* gpu : {"H200-SXM-141GB", "B200-SXM-180GB", "GB300"})
    CHECK(front_ends(gpu, "trtllm") == 1);
  CHECK(front_ends("GB200", "vllm") == 1);
}

MeasuredPoint apart_row(const char* gpu, const char* model, const char* engine, double prompt) {
  MeasuredPoint point;
  point.category = "disaggregated";
  point.gpu = gpu;
  point.model = model;
  point.operation = std::string("disaggregated ") + engine;
  point.precision = "nvfp4";
  point.prompt = prompt;
  point.output = 1024;
  return point;
}

TEST_CASE("TensorRT-LLM's racks in nvfp4 keep their seats over all loads of long prompts") {
  for (const auto& [gpu, workers, seats] :
       {std::tuple{"GB200", 4, 16}, {"GB300", 3, 16}, {"GB300", 4, 2}, {"GB300", 5, 4}}) {
    for (const int batch : {3, 6}) {
      MeasuredPoint point = apart_row(gpu, "DeepSeek-R1", "trtllm", 8192);
      point.prefill = {.workers = 1, .batch = 1, .tp = 1, .dp = 4, .ep = 4};
      point.decode = {.workers = workers, .batch = batch, .tp = 8, .dp = 1, .ep = 8};
      point.gpus = 4 + 8 * workers;
      const Json pools = pools_json(point, test::source_dir()).experiment["pools"];
      CHECK(pools["decode"]["scheduling"]["max_num_seqs"] == seats);
      CHECK(pools["prefill"]["scheduling"]["max_num_seqs"] == (gpu[2] == '3' ? 1 : 2));
    }
  }
}

TEST_CASE("workers of vLLM's and TensorRT-LLM's recipes have the attention ranks of the recipes") {
  MeasuredPoint kimi = apart_row("GB200", "Kimi-K2.5", "vllm 0.18.0", 8192);
  kimi.prefill = {.workers = 1, .batch = 1, .tp = 4, .dp = 1, .ep = 4};
  kimi.decode = {.workers = 4, .batch = 32, .tp = 4, .dp = 1, .ep = 4};
  kimi.gpus = 20;
  const Json small = pools_json(kimi, test::source_dir()).experiment["pools"];
  CHECK(small["prefill"]["parallel"] == Json{{"dp", 4}, {"tp", 1}, {"ep", 4}});
  CHECK(small["prefill"]["scheduling"]["max_num_batched_tokens"] == 16384);
  CHECK(small["decode"]["parallel"] == Json{{"dp", 1}, {"tp", 4}, {"ep", 4}});
  CHECK(small["decode"]["scheduling"]["max_num_seqs"] == 16);
  CHECK(small["decode"]["request_routing"]["type"] == "round_robin");
  kimi.prompt = 1024;
  kimi.decode = {.workers = 1, .batch = 512, .tp = 16, .dp = 1, .ep = 16};
  const Json wide = pools_json(kimi, test::source_dir()).experiment["pools"]["decode"];
  CHECK(wide["parallel"] == Json{{"dp", 16}, {"tp", 1}, {"ep", 16}});
  CHECK(wide["dispatch"]["decode"]["type"] == "one_sided");
  CHECK_FALSE(wide.contains("scheduling"));

  MeasuredPoint h200 = apart_row("H200-SXM-141GB", "DeepSeek-R1", "trtllm 0.8.1", 8192);
  h200.precision = "fp8_block";
  h200.prefill = {.workers = 1, .batch = 1, .tp = 1, .dp = 8, .ep = 8};
  h200.decode = {.workers = 1, .batch = 16, .tp = 1, .dp = 8, .ep = 8};
  h200.gpus = 16;
  const Json far = pools_json(h200, test::source_dir()).experiment["pools"];
  CHECK(far["prefill"]["parallel"] == Json{{"dp", 1}, {"tp", 8}, {"ep", 8}});
  CHECK(far["prefill"]["scheduling"] ==
        Json{{"max_num_batched_tokens", 16640}, {"max_num_seqs", 2}});
  CHECK(far["decode"]["parallel"]["dp"] == 8);
  CHECK_FALSE(far["decode"].contains("scheduling"));
  h200.prompt = 1024;
  h200.prefill = {.workers = 1, .batch = 1, .tp = 8, .dp = 1, .ep = 8};
  const Json near = pools_json(h200, test::source_dir()).experiment["pools"]["prefill"];
  CHECK(near["parallel"] == Json{{"dp", 8}, {"tp", 1}, {"ep", 8}});
  CHECK(near["scheduling"] == Json{{"max_num_batched_tokens", 8192}, {"max_num_seqs", 8}});
}

// A file of the H100 whose memory is `share` as fast, beside no tables.
std::filesystem::path slowed_gpu(const std::filesystem::path& folder, double share) {
  Json gpu = test::bare_gpu(test::source_dir() / "hardware/gpus/h100.json");
  gpu["hbm_bandwidth"] = fmt::format("{} TB/s", 3.35 * share);
  const auto file = folder / fmt::format("slowed_{}.json", share);
  std::ofstream(file) << gpu.dump();
  return file;
}

TEST_CASE("serving runs are predicted on the file given for their GPU, together and apart") {
  const test::TemporaryFolder folder;
  MeasuredPoint together;
  together.category = "e2e";
  together.gpu = "Accelerator of mine";
  together.model = "Llama-3.1-8B";
  together.operation = "online serving vllm 0.19.0";
  together.precision = "bf16";
  together.metric = "TPOT";
  together.tp = together.gpus = 1;
  together.concurrency = 1;
  together.prompt = 64, together.output = 8;
  together.value = 1;
  MeasuredPoint apart = together;
  apart.category = "disaggregated";
  apart.gpus = 2;
  apart.prefill = apart.decode = {.workers = 1, .batch = 1, .tp = 1, .dp = 1, .ep = 1};
  const std::vector points{together, apart};
  const auto predicted_on = [&](const GpuFiles& files) {
    return validate(points, test::source_dir(), Json::object(), files);
  };
  for (const ValidatedPoint& p : predicted_on({})) CHECK(p.skipped());
  const auto whole = predicted_on({{together.gpu, slowed_gpu(folder.path(), 1)}});
  const auto half = predicted_on({{together.gpu, slowed_gpu(folder.path(), 0.5)}});
  for (std::size_t i = 0; i < points.size(); ++i) {
    CAPTURE(points[i].category, whole[i].failure, half[i].failure);
    REQUIRE((!whole[i].skipped() && whole[i].failure.empty()));
    REQUIRE((!half[i].skipped() && half[i].failure.empty()));
    // Reading weights is most of a step of one sequence.
    CHECK(std::get<Prediction>(half[i].predicted).value >
          1.5 * std::get<Prediction>(whole[i].predicted).value);
  }
}

TEST_CASE("a point's engine, version and recipe are those of its row") {
  MeasuredPoint point;
  point.model = "gpt-oss-120b";
  point.operation = "online serving vllm 0.19.0, aggregated, closed loop";
  point.notes = "InferenceX run 2026-04-21; random lengths";
  CHECK(engine_of(point).name == "vllm");
  CHECK(engine_of(point).version == "0.19.0");
  point.operation = "online serving vLLM v0.19.0, aggregated, closed loop";
  CHECK(engine_of(point).version == "0.19.0");
  CHECK(client_of(point).recipe);
  CHECK(client_of(point).date == "2026-04-21");
  point.operation = "online serving vllm version unknown, aggregated, closed loop";
  point.notes = "InferenceX run 2025-11-02; random lengths";
  CHECK(engine_of(point).version == "0.10.2");
  point.operation = "disaggregated trtllm 0.8.1.post2";
  CHECK(engine_of(point).version == "1.2.0rc6");
  point.operation = "trtllm-bench offline max throughput";
  CHECK(engine_of(point).name == "trtllm");
  point.notes = "";
  CHECK_FALSE(client_of(point).recipe);
}

}  // namespace
}  // namespace moesim::test_serving
