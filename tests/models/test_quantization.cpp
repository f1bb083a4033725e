// SPDX-License-Identifier: Apache-2.0
// Are the precisions those that a model's own files give, and are its layers read from them?
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "hardware/shipped.hpp"
#include "models/memory.hpp"
#include "models/quantization.hpp"
#include "sim/experiment/spec.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_quantization {

using namespace moesim::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

namespace {

Json qwen(const Json& more = Json::object()) {
  Json json = Json::parse(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "head_dim": 64, "hidden_size": 512, "moe_intermediate_size": 256, "num_attention_heads": 8,
    "num_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 4,
    "vocab_size": 1024, "tie_word_embeddings": false})");
  json.merge_patch(more);
  return json;
}

std::optional<StoredPrecision> stored_in(const ConfigNode& model) {
  return read_stored_precision(model, read_model(model));
}

std::string stored(const Json& model) {
  const auto found = stored_in(config(model.dump()));
  if (found && !found->unknown.empty()) throw ConfigError(found->unknown);
  return found ? precision_text(found->plan) : "nothing";
}
std::string quantised(const std::string& json) {
  return stored(qwen({{"quantization_config", Json::parse(json)}}));
}

std::string text(const char* experts, const char* others, const char* kv, const char* activations) {
  return std::string("experts ") + experts + ", other weights " + others + ", KV cache " + kv +
         ", activations " + activations;
}

}  // namespace

TEST_CASE("a config.json that says nothing of quantisation is bf16 throughout") {
  CHECK(stored(qwen()) == text("bf16", "bf16", "bf16", "bf16"));
  CHECK_FALSE(stored_in(config(qwen().dump()))->quantised);
}

TEST_CASE("the precision of states is as the files say, else fp32") {
  const auto of = [](const Json& more) { return *stored_in(config(qwen(more).dump())); };
  CHECK(of(Json::object()).plan.state_bytes == 4);
  CHECK_FALSE(of(Json::object()).states_said);
  CHECK(of({{"mamba_ssm_dtype", "float32"}}).plan.state_bytes == 4);
  CHECK(of({{"mamba_ssm_dtype", "float32"}}).states_said);
  CHECK(of({{"mamba_ssm_cache_dtype", "bfloat16"}}).plan.state_bytes == 2);
  CHECK_FALSE(of({{"mamba_ssm_cache_dtype", "auto"}}).states_said);
  // Of a zoo's file, and of what vLLM's preset takes where no file says it.
  const auto bytes = [](const char* model, const char* engine, Json precision) {
    Json json = tiny_experiment({{"model", model}, {"engine", engine}, {"gating", nullptr}});
    json["precision"] = std::move(precision);
    json["placement"] = "linear";
    return read_spec(ConfigNode(json, source_dir() / "tests" / "tiny.json"))
        .pools.front()
        .precision.state_bytes;
  };
  const Json weights{{"experts", "fp8"}, {"attention", "bf16"}};
  CHECK(bytes("qwen3_next_80b_a3b", "vllm", weights) == 2);
  CHECK(bytes("qwen3_next_80b_a3b", "sglang", weights) == 4);
  CHECK(bytes("qwen3_5_397b_a17b", "vllm", weights) == 4);
  Json given = weights;
  given["state"] = "bf16";
  CHECK(bytes("qwen3_5_397b_a17b", "vllm", given) == 2);
}

TEST_CASE("every quantiser's way to say it is read") {
  // Qwen's and DeepSeek's fp8, in blocks or whole; what stays unconverted are gates and norms.
  CHECK(quantised(R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                      "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate",
                        "model.layers.1.mlp.gate", "model.layers.2.mlp.gate",
                        "model.layers.3.mlp.gate"]})") ==
        text("fp8_block", "fp8_block", "bf16", "fp8_block"));
  CHECK(quantised(R"({"quant_method": "fp8", "activation_scheme": "static"})") ==
        text("fp8", "fp8", "bf16", "fp8"));
  // gpt-oss.
  CHECK(quantised(R"({"quant_method": "mxfp4", "modules_to_not_convert": [
                      "model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]})") ==
        text("mxfp4", "bf16", "bf16", "bf16"));
  // NVIDIA ModelOpt, attention left out layer by layer: of most layers, and of one.
  const std::string nvfp4 = R"("quant_algo": "NVFP4", "quant_method": "modelopt",
    "config_groups": {"group_0": {"targets": ["Linear"],
      "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
      "weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
    "kv_cache_scheme": {"num_bits": 8, "type": "float"})";
  CHECK(quantised("{" + nvfp4 + R"(, "ignore": ["lm_head", "model.layers.0.self_attn*",
                    "model.layers.1.self_attn*", "model.layers.3.self_attn*"]})") ==
        text("nvfp4", "75.0 % bf16 + 25.0 % nvfp4", "fp8", "nvfp4"));
  CHECK(quantised("{" + nvfp4 + R"(, "ignore": ["*self_attn*", "model.layers.0.mlp*"]})") ==
        text("75.0 % nvfp4 + 25.0 % bf16", "bf16", "fp8", "nvfp4"));
  CHECK(quantised(R"({"quant_method": "modelopt", "quant_algo": "FP8"})") ==
        text("fp8", "fp8", "bf16", "fp8"));
  // Its mixtures: experts in NVFP4, the rest in eight bits.
  CHECK(quantised(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                      "kv_cache_quant_algo": "FP8", "quantized_layers": {
                        "model.layers.0.self_attn": {"quant_algo": "MXFP8"},
                        "model.layers.*.mlp.experts": {"quant_algo": "NVFP4"}}})") ==
        text("nvfp4", "75.0 % bf16 + 25.0 % fp8_block", "fp8", "nvfp4"));
  // compressed-tensors: Kimi's int4 experts, its MXFP4 ones, fp8 by channel.
  const auto groups = [](const std::string& weights, const std::string& activations) {
    return R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets":
               ["Linear"], "input_activations": )" +
           activations + R"(, "weights": )" + weights +
           R"(}}, "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]})";
  };
  CHECK(quantised(groups(R"({"num_bits": 4, "type": "int", "group_size": 32})", "null")) ==
        text("int4_g32", "bf16", "bf16", "bf16"));
  CHECK(quantised(groups(R"({"num_bits": 4, "type": "float", "group_size": 32})", "null")) ==
        text("mxfp4", "bf16", "bf16", "bf16"));
  CHECK(quantised(groups(R"({"num_bits": 8, "type": "float", "strategy": "channel"})",
                         R"({"num_bits": 8, "type": "float"})")) ==
        text("fp8", "bf16", "bf16", "fp8"));
  // Weights alone.
  CHECK(quantised(R"({"quant_method": "awq", "bits": 4, "group_size": 64})") ==
        text("int4_g64", "int4_g64", "bf16", "bf16"));
  CHECK(bytes_per_element(Precision::int4_g64) == .53125);
  CHECK(quantised(R"({"quant_method": "awq", "bits": 4, "group_size": 128,
                      "modules_to_not_convert": ["self_attn"]})") ==
        text("int4", "bf16", "bf16", "bf16"));
  CHECK(quantised(R"({"quant_method": "gptq", "bits": 4})") ==
        text("int4", "int4", "bf16", "bf16"));
  // AMD Quark.
  CHECK(quantised(R"({"quant_method": "quark", "exclude": ["re:.*self_attn.*"],
                      "global_quant_config": {"weight": {"dtype": "fp4"},
                                              "input_tensors": {"dtype": "fp4"}}})") ==
        text("mxfp4", "bf16", "bf16", "mxfp4"));
  // Methods of one format, and SGLang's.
  CHECK(quantised(R"({"quant_method": "mxfp8", "weight_block_size": [1, 32]})") ==
        text("fp8_block", "fp8_block", "bf16", "fp8_block"));
  CHECK(quantised(R"({"quant_method": "w8a8_fp8"})") == text("fp8", "fp8", "bf16", "fp8"));
  for (const char* method : {"w8a8_int8", "blockwise_int8"})
    CHECK(quantised(fmt::format(R"({{"quant_method": "{}"}})", method)) ==
          text("int8", "int8", "bf16", "int8"));
}

TEST_CASE("a format of routed experts goes before that of all else") {
  // NVIDIA's DeepSeek-V4: "ignore" is what NVFP4 leaves out, which is in fp8 then.
  CHECK(quantised(R"({"quant_method": "fp8", "weight_block_size": [128, 128],
                      "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4",
                      "ignore": ["*.self_attn.*", "lm_head"], "quantized_layers": {
                        "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}}})") ==
        text("nvfp4", "fp8_block", "bf16", "nvfp4"));
  CHECK(quantised(R"({"quant_method": "w4afp8", "activation_scheme": "dynamic"})") ==
        text("int4", "fp8_block", "bf16", "fp8"));
  // MiMo-V2.6's and Ling 3.0's, kept in MXFP4.
  for (const char* key : {"store_dtype", "routed_experts_quant_method"})
    CHECK(quantised(fmt::format(R"({{"quant_method": "fp8", "weight_block_size": [128, 128],
                                     "{}": "mxfp4"}})",
                                key)) == text("mxfp4", "fp8_block", "bf16", "fp8_block"));
  for (const char* key : {"store_dtype", "routed_experts_quant_method", "moe_quant_algo"})
    CHECK_THROWS_WITH(
        stored(qwen({{"quantization_config", {{"quant_method", "fp8"}, {key, "int3"}}}})),
        Contains("\"int3\" is not known"));
}

TEST_CASE("shared experts and dense FFNs have the precision that the file gives them") {
  const auto with_shared = [](const char* list) {
    return stored(qwen({{"shared_expert_intermediate_size", 256},
                        {"quantization_config",
                         {{"quant_method", "fp8"},
                          {"weight_block_size", {128, 128}},
                          {"modules_to_not_convert", Json::parse(list)}}}}));
  };
  // fp8 converts them like any other; a list may leave them out, a gate of theirs is no FFN.
  const std::string all = text("fp8_block", "fp8_block", "bf16", "fp8_block");
  const std::string but_shared =
      "experts fp8_block, attention fp8_block, shared and dense FFNs bf16, KV cache bf16, "
      "activations fp8_block";
  CHECK(with_shared(R"(["lm_head"])") == all);
  CHECK(with_shared(R"(["model.layers.*.mlp.shared_expert_gate"])") == all);
  CHECK(with_shared(R"(["re:.*shared_expert\\..*"])") == but_shared);
  CHECK(with_shared(R"(["model.layers.1.mlp.shared_expert.up_proj"])") ==
        "experts fp8_block, attention fp8_block, shared and dense FFNs 91.7 % fp8_block + 8.3 % "
        "bf16, KV cache bf16, activations fp8_block");
  CHECK(with_shared(R"(["model.layers.*.mlp.shared_expert*"])") == but_shared);
  // Modules of a vision tower are none of the language model's.
  CHECK(with_shared(R"(["visual.blocks.0.attn.qkv", "vision_tower*", "mtp.layers.0.mlp*"])") ==
        all);
  // A whole block holds routed experts and shared ones.
  CHECK(with_shared(R"(["model.layers.*.mlp"])") ==
        "experts bf16, attention fp8_block, shared and dense FFNs bf16, KV cache bf16, activations "
        "fp8_block");
}

TEST_CASE("a dense model's FFNs are as its file says, and its experts of nothing") {
  const Json llama = Json::parse(R"({"model_type": "llama", "hidden_size": 512,
    "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4,
    "num_key_value_heads": 4, "vocab_size": 1024, "quantization_config": {
      "quant_method": "modelopt", "quant_algo": "NVFP4",
      "exclude_modules": ["lm_head", "model.layers.*.self_attn*"]}})");
  CHECK(stored(llama) ==
        "experts nvfp4, attention bf16, shared and dense FFNs nvfp4, KV cache bf16, activations "
        "nvfp4");
}

TEST_CASE("a name that says four or eight bits where no file does is doubted") {
  const auto warning_of = [](const char* name) {
    return stored_in(config(qwen({{"_name_or_path", name}}).dump()))->warning;
  };
  CHECK(warning_of("Qwen/Qwen3-30B-A3B").empty());
  CHECK_THAT(warning_of("nvidia/Qwen3-30B-A3B-NVFP4"),
             Contains("has no \"quantization_config\"; the model's name says NVFP4"));
  CHECK_THAT(warning_of("Qwen/Qwen3-30B-A3B-FP8"), Contains("says FP8"));
  Json json = tiny_experiment({{"model", nullptr}, {"precision", nullptr}});
  json["model"] = qwen({{"_name_or_path", "Qwen/Qwen3-30B-A3B-FP8"}});
  REQUIRE(remarks_of(load(json)).size() == 1);
  CHECK_THAT(remarks_of(load(json)).front(), Contains("the model's name says FP8"));
  json["precision"] = {{"experts", "bf16"}};  // said, and so not doubted
  CHECK(remarks_of(load(json)).empty());
}

// On 16 H200, as parts of the experiment need it.
Json zoo_experiment(const std::string& name) {
  Json json = tiny_experiment({{"cluster", "../hardware/clusters/h200x16.json"},
                               {"model", nullptr},
                               {"precision", nullptr},
                               {"parallel", nullptr},
                               {"placement", {{"replication", 1}}}});
  const ConfigNode model = ConfigNode::from_file(*shipped_file(Shipped::model, name));
  const int experts = read_model(model).experts;
  json["model"] = name;
  json["parallel"] = {{"dp", 2}, {"tp", 8}, {"ep", std::clamp(experts, 1, 16)}};
  return json;
}

Json resolved(const Json& json) {
  return resolved_config(read_spec(ConfigNode(json, source_dir() / "tests" / "tiny.json")));
}

TEST_CASE("a model of the zoo needs no precision, and is as if what is taken were written") {
  for (const std::string& name : shipped_names(Shipped::model)) {
    for (const char* engine : {"", "vllm", "sglang", "trtllm"}) {
      CAPTURE(name, engine);
      Json json = zoo_experiment(name);
      if (*engine != '\0') json["engine"] = {{"name", engine}};
      const Json left_out = resolved(json);
      const Json taken = left_out.at("precision");
      CHECK(taken.contains("ffn"));
      json["precision"] = taken;
      CHECK(resolved(json) == left_out);
      for (const auto& key : taken.items()) {
        CAPTURE(key.key());
        json["precision"] = {{key.key(), key.value()}};
        CHECK(resolved(json) == left_out);
      }
    }
  }
}

TEST_CASE("models are found by their ids on HuggingFace") {
  const std::map<std::string, std::string> ids{
      {"deepseek-ai/DeepSeek-R1", "deepseek_v3"},
      {"meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama_4_scout"},
      {"openai/gpt-oss-120b", "gpt_oss_120b"},
      {"Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next_80b_a3b"}};
  for (const auto& id : ids) {
    const auto file = shipped_file(Shipped::model, id.first);
    REQUIRE(file);
    CHECK(file->stem() == id.second);
  }
  CHECK_FALSE(shipped_file(Shipped::model, "deepseek-ai/DeepSeek-R9"));
  CHECK_FALSE(shipped_file(Shipped::gpu, "deepseek-ai/DeepSeek-R1"));
  std::set<std::string> all;
  for (const std::string& name : shipped_names(Shipped::model)) {
    const Json json = ConfigNode::from_file(*shipped_file(Shipped::model, name)).json();
    for (const Json& id : json.at("huggingface")) {
      CHECK(all.insert(id).second);
      CHECK(shipped_file(Shipped::model, id.get<std::string>())->stem() == name);
    }
  }
}

TEST_CASE("slices of experts that not every kernel takes are doubted, with those that go") {
  const auto remark = [](const Json& experiment) {
    const ExperimentSpec spec = read_spec({experiment, source_dir() / "tests/x.json"});
    std::string all;
    for (const std::string& one : spec.pools.front().remarks) all += one + "\n";
    return all;
  };
  Json json = zoo_experiment("qwen3_235b_a22b");
  json["precision"] = {{"experts", "fp8_block"}, {"attention", "fp8_block"}};
  json["parallel"] = {{"dp", 1}, {"tp", 8}, {"ep", 1}};
  CHECK_THAT(remark(json), Contains("slices of 192") &&
                               Contains("such slices: 1536 (ep 8), 768 (ep 4), 384 (ep 2)"));
  json["parallel"]["ep"] = 2;
  CHECK_THAT(remark(json), !Contains("slices of"));
  json["parallel"]["ep"] = 1;
  json["precision"] = {{"experts", "bf16"}};
  CHECK_THAT(remark(json), !Contains("slices of"));
  // Experts of 320 numbers are no whole blocks however they are cut.
  json["precision"] = {{"experts", "fp8_block"}, {"attention", "bf16"}};
  json["model"] = qwen({{"moe_intermediate_size", 320}, {"max_position_embeddings", 4096}});
  for (const int tp : {1, 2}) {
    json["parallel"] = {{"dp", 1}, {"tp", tp}, {"ep", 1}};
    CHECK_THAT(remark(json), Contains("experts of 320 numbers are no whole blocks of 128"));
  }
  // gpt-oss runs on tp 8: its slices of 360 are filled up to 384.
  const MoeModel oss =
      read_model(ConfigNode::from_file(*shipped_file(Shipped::model, "gpt_oss_120b")));
  const PrecisionPlan mxfp4{.experts = Precision::mxfp4};
  CHECK(expert_bytes(oss, {.tp = 8}, mxfp4) ==
        Bytes(3 * 2880 * 384 * bytes_per_element(Precision::mxfp4)));
  CHECK(expert_bytes(oss, {.tp = 2}, mxfp4) ==
        Bytes(3 * 2880 * 1440 * bytes_per_element(Precision::mxfp4)));
}

TEST_CASE("weights that a GPU does not multiply are widened, with a remark") {
  const auto remark = [](const char* gpus, const char* precision) {
    Json json = zoo_experiment("qwen3_30b_a3b");
    json["cluster"] = gpus;
    json["parallel"] = {{"dp", 1}, {"tp", 8}};
    json["precision"] = {{"experts", precision}, {"attention", "bf16"}, {"activations", precision}};
    const ExperimentSpec spec = read_spec(config(json.dump()));
    std::string all;
    for (const std::string& one : spec.pools.front().remarks) all += one + "\n";
    return all;
  };
  CHECK_THAT(remark("a100_80g_x8", "fp8_block"), Contains("does not multiply fp8; such weights"));
  CHECK_THAT(remark("a100_80g_x8", "bf16"), !Contains("does not multiply"));
  CHECK_THAT(remark("h100x8", "fp8_block"), !Contains("does not multiply"));
  CHECK_THAT(remark("h100x8", "nvfp4"), Contains("does not multiply nvfp4"));
  CHECK_THAT(remark("b200x8", "nvfp4"), !Contains("does not multiply"));
}

TEST_CASE("a config.json may say its length under another name") {
  const auto positions = [](const Json& more) {
    return read_model(config(qwen(more).dump())).max_positions;
  };
  CHECK(positions({{"max_position_embeddings", 4096}}) == 4096);
  CHECK(positions({{"model_max_length", 1 << 20}}) == 1 << 20);
  CHECK(positions({{"max_position_embeddings", 4096}, {"model_max_length", 1 << 20}}) == 4096);
}

TEST_CASE("a scaling of the rotary embedding lengthens a model as in vLLM") {
  const auto positions = [](const Json& scaling) {
    return read_model(
               config(qwen({{"max_position_embeddings", 8192}, {"rope_scaling", scaling}}).dump()))
        .max_positions;
  };
  const int original = 4096;
  const auto of_type = [&](const char* type) {
    return Json{
        {"rope_type", type}, {"factor", 4.0}, {"original_max_position_embeddings", original}};
  };
  CHECK(positions(of_type("yarn")) == 4 * original);
  // The file gives the length that these were trained for.
  CHECK(positions(of_type("llama3")) == 8192);
  CHECK(positions(of_type("longrope")) == 8192);
  CHECK(positions({{"type", "linear"}, {"factor", 4.0}}) == 4 * 8192);
  CHECK(positions({{"type", "dynamic"}, {"factor", 2.0}}) == 2 * 8192);
  CHECK(positions({{"rope_type", "default"}}) == 8192);
  // Under both names it is one scaling.
  const Json linear{{"rope_type", "linear"}, {"factor", 4.0}};
  const Json twice{
      {"max_position_embeddings", 8192}, {"rope_scaling", linear}, {"rope_parameters", linear}};
  CHECK(read_model(config(qwen(twice).dump())).max_positions == 4 * 8192);
}

TEST_CASE("8-bit integers have no table, and are priced by the data sheet") {
  Json json = zoo_experiment("qwen3_30b_a3b");
  json["precision"] = "int8";
  json["engine"] = "vllm";
  json["workload"]["requests"] = 4;
  json["workload"]["gating"] = {{"type", "uniform"}, {"requests", 4}};
  CHECK(run(load(json)).document()["metrics"]["completed"] == 4);
}

TEST_CASE("a request has no more tokens than its model has positions, unless the engine is told") {
  Json json = zoo_experiment("qwen3_30b_a3b");
  const auto lengths = [&](int prompt, int output) {
    json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", prompt}, {"output", output}};
    return refused(json);
  };
  CHECK(lengths(40'000, 960) == "");
  CHECK_THAT(lengths(40'000, 961),
             Contains("/workload/lengths: a prompt and its output have up to 40961 tokens, but "
                      "Qwen3-30B-A3B takes 40960") &&
                 Contains("\"max_model_len\": 40961"));
  json["max_model_len"] = 131'072;
  CHECK(lengths(40'000, 961) == "");
  CHECK_THAT(lengths(131'000, 961), Contains("\"max_model_len\" takes 131072"));
  // What is drawn beyond is rejected, as engines do.
  Json drawn = tiny_experiment({{"max_model_len", 60}});
  drawn["workload"]["lengths"] = {{"type", "lognormal"},
                                  {"prompt", {{"median", 20}, {"sigma", 1}}},
                                  {"output", {{"median", 20}, {"sigma", 1}}}};
  const Served served = serve(load(drawn));
  int rejected = 0;
  for (const RequestRecord& request : served.requests) {
    const bool is = request.state == RequestRecord::State::rejected;
    CHECK(is == (request.prompt_tokens + request.output_tokens > 60));
    rejected += is ? 1 : 0;
  }
  CHECK(rejected > 5);
}

TEST_CASE("a dense model needs no gating") {
  Json json = tiny_experiment({{"model", {{"experts", nullptr}, {"dense_width", 1024}}},
                               {"parallel", {{"ep", 1}}},
                               {"placement", {{"replication", 1}}}});
  json["model"]["layers"] = Json::parse(R"([{"repeat": 3, "pattern": [{"ffn": "dense"}]}])");
  const std::string with_gating = serve(load(json)).document().at("metrics").dump();
  json["workload"].erase("gating");
  CHECK(serve(load(json)).document().at("metrics").dump() == with_gating);
  json = tiny_experiment(Json::object());
  json["workload"].erase("gating");
  // That of a model with experts is its family's; this one has none.
  const Experiment experiment = load(json);
  CHECK(experiment.config.at("/workload/gating/preset"_json_pointer) == "deepseek_r1");
  CHECK_THAT(remarks_of(experiment).at(0), Contains("nothing is known of this model"));
}

namespace {

// As engines' files of compressed-tensors have it, in NVFP4 but for what a list names.
std::string nvfp4_but(const std::string& ignore) {
  return R"({"quant_method": "compressed-tensors", "ignore": )" + ignore + R"(, "config_groups":
    {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float",
     "group_size": 16}, "input_activations": {"num_bits": 4, "type": "float",
     "group_size": 16}}}})";
}

}  // namespace

TEST_CASE("compressed-tensors takes names whole, and patterns from a name's beginning") {
  const std::string all = text("nvfp4", "nvfp4", "bf16", "nvfp4");
  // A module that others are in is none that is converted; the list then changes nothing.
  const Json parents = qwen(
      {{"quantization_config", Json::parse(nvfp4_but(R"(["model.layers.0.mlp.experts.0"])"))}});
  CHECK(stored(parents) == all);
  CHECK_THAT(stored_in(config(parents.dump()))->warning,
             Contains("lists \"model.layers.0.mlp.experts.0\", but no linear module"));
  CHECK(quantised(nvfp4_but(R"(["re:.*mlp.gate$", "re:.*mlp.shared_expert_gate$"])")) == all);
  CHECK(quantised(nvfp4_but(R"(["re:mlp"])")) == all);
  CHECK(quantised(nvfp4_but(R"(["re:model\\.layers\\.0\\.mlp\\..*"])")) ==
        text("75.0 % nvfp4 + 25.0 % bf16", "nvfp4", "bf16", "nvfp4"));
  // Queries and outputs are 512 x 512, keys and values 256 x 512.
  CHECK(quantised(nvfp4_but(R"(["re:.*k_proj"])")) ==
        text("nvfp4", "83.3 % nvfp4 + 16.7 % bf16", "bf16", "nvfp4"));
  // As engines call what they hold as one.
  CHECK(quantised(nvfp4_but(R"(["model.layers.0.self_attn.qkv_proj"])")) ==
        text("nvfp4", "83.3 % nvfp4 + 16.7 % bf16", "bf16", "nvfp4"));
  CHECK(quantised(nvfp4_but(R"(["model.layers.0.mlp.experts.5.down_proj"])")) ==
        text("99.5 % nvfp4 + 0.5 % bf16", "nvfp4", "bf16", "nvfp4"));
  CHECK(quantised(nvfp4_but(R"(["re:.*experts\\.[0-7]\\..*"])")) ==
        text("50.0 % bf16 + 50.0 % nvfp4", "nvfp4", "bf16", "nvfp4"));
  // A name or a pattern goes before "Linear", and the list before all.
  CHECK(quantised(R"({"quant_method": "compressed-tensors", "ignore": ["re:.*q_proj$"],
    "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}},
                      "b": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type":
                            "float"}}}})") ==
        text("int4", "66.7 % fp8 + 33.3 % bf16", "bf16", "bf16"));
}

TEST_CASE("GPTQ's patterns leave modules out or change their bits, the first that fits") {
  const auto shared = [](const char* rules) {
    return stored(qwen(
        {{"shared_expert_intermediate_size", 256}, {"quantization_config", Json::parse(rules)}}));
  };
  CHECK(shared(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*attn.*": {},
                   "-:.*shared_expert.*": {}}})") == text("int4", "bf16", "bf16", "bf16"));
  CHECK(shared(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*attn.*": {"bits": 8},
                   ".*shared_expert.*": {"bits": 8}}})") == text("int4", "int8", "bf16", "bf16"));
  // In the order of the file, which sorts no keys.
  const TemporaryFolder folder;
  const auto first = [&](const char* rules) {
    const std::string model = qwen().dump();
    const auto file = folder.write("config.json", model.substr(0, model.size() - 1) + R"(,
      "quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": )" +
                                                      rules + "}}");
    return stored_in(ConfigNode::from_file(file))->plan.attention;
  };
  CHECK(first(R"({"-:.*attn.*": {}, "+:.*self_attn.*": {"bits": 8}})") == Precision::bf16);
  CHECK(first(R"({"+:.*self_attn.*": {"bits": 8}, "-:.*attn.*": {}})") == Precision::int8);
  // One expert's names stand for all.
  CHECK(quantised(R"({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [
                      ["mlp.experts.0.gate_proj", "mlp.experts.0.up_proj"],
                      ["mlp.experts.0.down_proj"]]})") == text("int4", "bf16", "bf16", "bf16"));
  CHECK_THAT(config_error([] {
               quantised(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(a)\\1": {}}})");
             }),
             Contains("/quantization_config/dynamic: \"(a)\\1\" cannot be read"));
}

TEST_CASE("ModelOpt's mixtures convert what they name, and nothing else") {
  CHECK(quantised(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}}})") ==
        text("75.0 % bf16 + 25.0 % nvfp4", "bf16", "bf16", "bf16"));
  // Of two halves the kernels are those of the wider.
  const StoredPrecision half = *stored_in(
      config(qwen({{"quantization_config", Json::parse(R"({"quant_method": "modelopt", "quant_algo":
    "MIXED_PRECISION", "quantized_layers": {
      "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"},
      "model.layers.1.mlp.experts": {"quant_algo": "NVFP4"},
      "model.layers.2.mlp.experts": {"quant_algo": "FP8"},
      "model.layers.3.mlp.experts": {"quant_algo": "FP8"}}})")}})
                 .dump()));
  CHECK(half.plan.experts == Precision::fp8);
  CHECK(bytes_per_weight(half.plan.experts, half.plan.expert_shares) == (1 + .5625) / 2);
}

TEST_CASE("a Quark file's layers go before its rest, and a list of exceptions before both") {
  CHECK(quantised(R"({"quant_method": "quark", "exclude": ["*.k_proj", "lm_head"],
    "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}},
    "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}})") ==
        text("mxfp4", "83.3 % fp8 + 16.7 % bf16", "bf16", "bf16"));
}

TEST_CASE("AutoRound's files are read, with the modules that have other bits") {
  CHECK(quantised(R"({"quant_method": "auto-round", "bits": 4, "extra_config": {
    ".*self_attn.*": {"bits": 16}, "model.layers.0.mlp.experts": {"bits": 8}}})") ==
        text("75.0 % int4 + 25.0 % int8", "bf16", "bf16", "bf16"));
  // vLLM searches expressions in a name (auto_round.py); names go before them.
  CHECK(quantised(R"({"quant_method": "auto-round", "bits": 4, "extra_config": {
    "(self_attn|linear_attn)\\.": {"bits": 8}, "self_attn.o_proj$": {"bits": 16},
    "model.layers.0.self_attn.q_proj": {"bits": 4}}})") ==
        text("int4", "91.7 % int8 + 8.3 % int4", "bf16", "bf16"));
  // Blocks that are named leave the others as they were.
  CHECK(quantised(R"({"quant_method": "auto-round", "bits": 4,
                      "block_name_to_quantize": "model.layers.0,model.layers.2"})") ==
        text("50.0 % bf16 + 50.0 % int4", "50.0 % bf16 + 50.0 % int4", "bf16", "bf16"));
  CHECK(quantised(R"({"quant_method": "auto-round", "bits": 4,
                      "block_name_to_quantize": "model.layers"})") ==
        text("int4", "int4", "bf16", "bf16"));
}

TEST_CASE("groups of ModelOpt without targets are of all modules, and none may convert nothing") {
  const std::string group =
      R"("config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16},
         "input_activations": {"num_bits": 4, "type": "float", "group_size": 16})";
  CHECK(quantised(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", )" + group + "}}}") ==
        text("nvfp4", "nvfp4", "bf16", "nvfp4"));
  const auto found = stored_in(config(
      qwen({{"quantization_config", Json::parse(R"({"quant_method": "compressed-tensors", )" +
                                                group + R"(, "targets": ["FusedMoE"]}}})")}})
          .dump()));
  REQUIRE(found);
  CHECK(precision_text(found->plan) == text("bf16", "bf16", "bf16", "bf16"));
  CHECK_THAT(found->warning, Contains("converts no linear module"));
  CHECK(stored_in(config(qwen({{"quantization_config",
                                {{"quant_method", "compressed-tensors"},
                                 {"config_groups", Json::object()},
                                 {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}}}}})
                             .dump()))
            ->warning.empty());
}

TEST_CASE("bitsandbytes' files are read, in four bits and in eight") {
  CHECK(quantised(R"({"quant_method": "bitsandbytes", "load_in_4bit": true,
                      "llm_int8_skip_modules": ["self_attn"]})") ==
        text("int4", "bf16", "bf16", "bf16"));
  CHECK(quantised(R"({"quant_method": "bitsandbytes", "load_in_8bit": true})") ==
        text("int8", "int8", "bf16", "bf16"));
}

TEST_CASE("scales of an fp8 KV cache in a file of weights are taken, with a remark") {
  const auto found = stored_in(config(
      qwen({{"quantization_config", {{"quant_method", "fp8"}, {"kv_cache_scheme", "static"}}}})
          .dump()));
  REQUIRE(found);
  CHECK(precision_text(found->plan) == text("fp8", "fp8", "fp8", "fp8"));
  CHECK_THAT(found->warning, Contains("--kv-cache-dtype fp8"));
}

TEST_CASE("the KV cache is as the files say, whichever of them does") {
  const TemporaryFolder folder;
  const auto kv_cache = [&](const char* config_json, const char* beside) {
    Json model = qwen();
    if (config_json != nullptr) model["quantization_config"] = Json::parse(config_json);
    const auto file = folder.write("config.json", model.dump());
    folder.write("hf_quant_config.json", beside == nullptr ? "{}" : beside);
    const auto found = *stored_in(ConfigNode::from_file(file));
    if (!found.unknown.empty()) throw ConfigError(found.unknown);
    return found;
  };
  const auto named = [&](const char* algo) {
    return kv_cache(nullptr, (std::string(R"({"quantization": {"quant_algo": "FP8",
                              "kv_cache_quant_algo": ")") +
                              algo + "\"}}")
                                 .c_str())
        .plan.kv_cache;
  };
  CHECK(named("FP8") == Precision::fp8);
  CHECK(named("NVFP4") == Precision::nvfp4);
  CHECK(named("INT8") == Precision::int8);
  CHECK_THAT(config_error([&] { named("INT5"); }), Contains("the KV cache's precision \"int5\""));
  const char* nvfp4 = R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
  CHECK(kv_cache(nvfp4, nullptr).plan.kv_cache == Precision::bf16);
  CHECK(kv_cache(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                     "kv_cache_scheme": {"num_bits": 4, "type": "float"}})",
                 nullptr)
            .plan.kv_cache == Precision::nvfp4);
  CHECK(kv_cache(R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype":
                     "fp8_e4m3"}}, "kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype":
                     "fp8_e4m3"}}}})",
                 nullptr)
            .plan.kv_cache == Precision::fp8);
  // vLLM reads no file beside a config.json that says how weights are converted.
  const StoredPrecision both = kv_cache(nvfp4, R"({"quantization": {"quant_algo": "NVFP4",
                                                   "kv_cache_quant_algo": "FP8"}})");
  CHECK(both.plan.kv_cache == Precision::fp8);
  CHECK_THAT(both.warning, Contains("hf_quant_config.json says a KV cache in fp8"));
  // Weights as they were, and scales of the cache alone.
  const StoredPrecision cache =
      kv_cache(nullptr, R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})");
  CHECK(precision_text(cache.plan) == text("bf16", "bf16", "fp8", "bf16"));
}

TEST_CASE("a mixture's bytes are those of its parts, and an experiment can say it") {
  const Json fp8 = Json::parse(nvfp4_but(R"(["re:model\\.layers\\.0\\.mlp\\..*"])"));
  Json json = tiny_experiment({{"model", nullptr}, {"precision", nullptr}});
  json["model"] = qwen({{"quantization_config", fp8}});
  json["cluster"] = "../hardware/clusters/b200x8.json";  // which multiplies nvfp4
  const Experiment mixed = load(json);
  const ParallelPlan& plan = mixed.decode().parallel;
  const MoeModel& model = mixed.decode().model;
  const auto bytes = [&](const PrecisionPlan& precision) {
    return expert_bytes(model, plan, precision).value();
  };
  CHECK_THAT(bytes(mixed.decode().precision),
             WithinRel(.75 * bytes({.experts = Precision::nvfp4}) + .25 * bytes({}), 1e-12));
  // What a report has resolved runs again, with or without the model's own file.
  CHECK(mixed.config.at("precision").at("experts") == Json({{"nvfp4", .75}, {"bf16", .25}}));
  Json again = json;
  again["precision"] = mixed.config.at("precision");
  CHECK(load(again).config == mixed.config);
  CHECK(remarks_of(load(again)).empty());
  again["precision"]["experts"] = "nvfp4";
  REQUIRE(remarks_of(load(again)).size() == 1);
  CHECK_THAT(remarks_of(load(again)).front(), Contains("75.0 % nvfp4 + 25.0 % bf16"));
  again["precision"]["experts"] = {{"nvfp4", .75}};
  CHECK_THAT(refused(again), Contains("/precision/experts: the shares add up to 0.75"));
}

TEST_CASE("a model without experts in a class that has them is dense") {
  const MoeModel dense =
      read_model(config(qwen({{"num_experts", 0}, {"intermediate_size", 1024}}).dump()));
  CHECK(dense.experts == 0);
  CHECK(dense.moe_layers() == 0);
  CHECK(dense.dense_width == 1024);
  CHECK(dense.unknown_keys.empty());
}

TEST_CASE("the matrices that a mixer names are nearly all of its parameters") {
  for (const std::string& name : shipped_names(Shipped::model)) {
    const MoeModel model = read_model(ConfigNode::from_file(*shipped_file(Shipped::model, name)));
    for (const LayerSpec& layer : model.layers) {
      CAPTURE(name);
      double named = 0;
      for (const MixerMatrix& one : layer.mixer->matrices(model.hidden)) named += one.parameters;
      const double all = layer.mixer->parameters(model.hidden, {});
      CHECK(named <= all);
      CHECK(named > .99 * all);
    }
  }
}

TEST_CASE("slices of shared experts below a block of fp8 are doubted, as those of experts are") {
  const MoeModel model =
      read_model(config(qwen({{"shared_expert_intermediate_size", 512}}).dump()));
  const PrecisionPlan blocks{.experts = Precision::fp8_block, .ffn = Precision::fp8_block};
  CHECK_THAT(slice_warning(model, {.tp = 8, .ep = 8}, blocks),
             Contains("tp 8 cuts shared experts into slices of 64") &&
                 Contains("tp 1 or 2 or 4 would leave such slices"));
  CHECK(slice_warning(model, {.tp = 4, .ep = 4}, blocks).empty());
  CHECK(slice_warning(model, {.tp = 8, .ep = 8}, {}).empty());
}

TEST_CASE("a quantisation that is not known is refused with its place") {
  const auto error = [](const std::string& json) { return config_error([&] { quantised(json); }); };
  CHECK_THAT(error(R"({"quant_method": "bitsandbytes", "bits": 4})"),
             EndsWith("/quantization_config: the quantisation \"bitsandbytes\" is not known; give "
                      "\"experts\" and \"attention\" of \"precision\" in the experiment"));
  CHECK_THAT(error(R"({"quant_algo": "W1"})"), Contains("the quantisation \"w1\" is not known"));
  CHECK_THAT(error(R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets":
                       ["Linear"], "weights": {"num_bits": 3, "type": "int"}}}})"),
             Contains("the quantisation int 3 bits is not known"));
  CHECK_THAT(error("{}"), Contains("the quantisation that it holds is not known"));
  CHECK_THAT(config_error([] {
               stored(qwen({{"quantization", {{"group_size", 64}, {"bits", 4}}}}));
             }),
             Contains("/quantization: the quantisation that it holds is not known"));  // MLX
  CHECK_THAT(
      error(R"({"quant_method": "compressed-tensors", "config_groups": {"FP8": ["Linear"]}})"),
      Contains("the quantisation of config_groups/FP8 is not known"));
  CHECK_THAT(error(R"({"quant_method": "compressed-tensors", "sparsity_config": {"format":
                       "sparse-24-bitmask"}, "config_groups": {"g": {"targets": ["Linear"],
                       "weights": {"num_bits": 8, "type": "float"}}}})"),
             Contains("sparse weights"));
  CHECK_THAT(error(R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}},
                       "layer_type_quant_config": {"Linear": {}}})"),
             Contains("layer_type_quant_config"));
}

TEST_CASE("text_config and hf_quant_config.json are looked into, too") {
  const Json fp8 = {{"quant_method", "fp8"}};
  CHECK(stored({{"architectures", {"Qwen3VLMoeForConditionalGeneration"}},
                {"text_config", qwen({{"quantization_config", fp8}})}}) ==
        text("fp8", "fp8", "bf16", "fp8"));
  const TemporaryFolder folder;
  const auto model = folder.write("config.json", qwen().dump());
  folder.write("hf_quant_config.json", R"({"producer": {"name": "modelopt"}, "quantization":
    {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
     "exclude_modules": ["lm_head", "model.layers.*.self_attn*"]}})");
  const auto found = stored_in(ConfigNode::from_file(model));
  REQUIRE(found);
  CHECK(precision_text(found->plan) == text("nvfp4", "bf16", "fp8", "nvfp4"));
  CHECK(found->said_by == "hf_quant_config.json: nvfp4");
  // TensorRT-LLM's mixtures have their layers in a third file.
  folder.write(
      "hf_quant_config.json",
      R"({"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8"}})");
  CHECK_THAT(stored_in(ConfigNode::from_file(model))->unknown, Contains("\"mixed_precision\""));
  folder.write("quant_cfg.json", R"({"quant_algo": "MIXED_PRECISION", "quantized_layers": {
    "model.layers.0.mlp.experts": {"quant_algo": "W4A8_AWQ"},
    "model.layers.1.self_attn.q_proj": {"quant_algo": "FP8"}}})");
  CHECK(precision_text(stored_in(ConfigNode::from_file(model))->plan) ==
        text("75.0 % bf16 + 25.0 % int4", "91.7 % bf16 + 8.3 % fp8", "fp8", "bf16"));
}

TEST_CASE("an experiment takes what the model's files say, and one that contradicts is told so") {
  const Json fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  const auto loaded = [](Json model, const Json& precision) {
    Json json = tiny_experiment({{"model", nullptr}, {"precision", nullptr}});
    json["model"] = std::move(model);
    if (!precision.is_null()) json["precision"] = precision;
    return load(json);
  };
  const Experiment taken = loaded(qwen({{"quantization_config", fp8}}), nullptr);
  CHECK(taken.decode().precision.experts == Precision::fp8_block);
  CHECK(taken.decode().precision.activations == Precision::fp8_block);
  CHECK(remarks_of(taken).empty());
  CHECK(taken.config.at("precision").at("experts") == "fp8_block");
  // What is not given is the model's; a KV cache of another kind is no contradiction.
  const Experiment cache = loaded(qwen({{"quantization_config", fp8}}), {{"kv_cache", "fp8"}});
  CHECK(cache.decode().precision.experts == Precision::fp8_block);
  CHECK(cache.decode().precision.kv_cache == Precision::fp8);
  CHECK(remarks_of(cache).empty());

  const Json bf16 = {{"experts", "bf16"}, {"attention", "bf16"}};
  const auto remarks = remarks_of(loaded(qwen({{"quantization_config", fp8}}), bf16));
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(remarks.front(),
             Contains("\"precision\" says experts bf16") &&
                 EndsWith("the model's weights are stored as experts fp8_block, other weights "
                          "fp8_block, KV cache bf16, activations fp8_block (tiny.json: fp8)"));
  // Engines quantise a bf16 checkpoint as they load it: nothing to say.
  CHECK(remarks_of(loaded(qwen(), {{"experts", "fp8"}, {"attention", "fp8"}})).empty());
  CHECK(loaded(qwen(), nullptr).decode().precision.experts == Precision::bf16);
  // Where files say it in a way that is not known, the experiment does.
  const Json torchao = qwen({{"quantization_config", {{"quant_method", "torchao"}}}});
  CHECK_THAT(config_error([&] { loaded(torchao, nullptr); }), Contains("\"torchao\" is not known"));
  CHECK_THAT(config_error([&] {
               loaded(torchao, {{"kv_cache", "fp8"}});
             }),
             Contains("give \"experts\" and \"attention\""));
  const Experiment given = loaded(torchao, {{"experts", "int4"}, {"attention", "bf16"}});
  CHECK(given.decode().precision.experts == Precision::int4);
  CHECK_THAT(remarks_of(given).front(), EndsWith("are stored is not known (tiny.json)"));
  CHECK_THAT(config_error([&] {
               load_tiny({{"precision", nullptr}});
             }),
             Contains("\"precision\" is missing, and tiny.json does not say it"));
}

TEST_CASE("floats that Python writes into JSON are read as nothing") {
  const TemporaryFile file("config.json",
                           R"({"a": NaN, "b": [Infinity, -Infinity, 1], "c": "NaN \" Infinity"})");
  CHECK(ConfigNode::from_file(file.path()).json() ==
        Json({{"a", nullptr}, {"b", {nullptr, nullptr, 1}}, {"c", "NaN \" Infinity"}}));
  const TemporaryFile bad("bad.json", "{\"a\": NaN,}");
  CHECK_THAT(config_error([&] { ConfigNode::from_file(bad.path()); }), Contains("not JSON"));
}

// ---- families of which no file is in the zoo ----

namespace {

struct Family {
  const char* config_json;
  double total, active;  // as published, in 1e9
  double last_digit;     // the unit of the last digit of `active`
};

const std::vector<Family>& families() {
  static const std::vector<Family> table{
      {R"({"model_type": "ernie4_5_moe", "hidden_size": 2560, "intermediate_size": 12288,
           "moe_intermediate_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 20,
           "num_key_value_heads": 4, "head_dim": 128, "moe_num_experts": 64,
           "moe_num_shared_experts": 2, "moe_k": 6, "moe_layer_start_index": 1,
           "moe_layer_end_index": -1, "moe_layer_interval": 1, "vocab_size": 103424,
           "tie_word_embeddings": true})",
       21.83, 3, 1},
      {R"({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
           "attn_config": {"kv_n_heads": 8}, "ffn_config": {"ffn_hidden_size": 10752,
           "moe_num_experts": 16, "moe_top_k": 4}, "vocab_size": 100352,
           "tie_word_embeddings": false})",
       132, 36, 1},
      {R"({"model_type": "granitemoe", "hidden_size": 1536, "intermediate_size": 512,
           "num_attention_heads": 24, "num_experts_per_tok": 8, "num_hidden_layers": 32,
           "num_key_value_heads": 8, "num_local_experts": 40, "tie_word_embeddings": true,
           "vocab_size": 49155})",
       3.3, .9, .1},
      {R"({"model_type": "phimoe", "hidden_size": 4096, "intermediate_size": 6400,
           "max_position_embeddings": 131072, "num_attention_heads": 32, "num_experts_per_tok": 2,
           "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 16,
           "sliding_window": 131072, "tie_word_embeddings": false, "vocab_size": 32064})",
       41.9, 6.6, .2},
      {R"({"model_type": "hunyuan_v1_moe", "attention_head_dim": 128, "hidden_size": 4096,
           "intermediate_size": 3072, "moe_intermediate_size": [3072, 3072],
           "moe_layer_num_skipped": 0, "moe_topk": [8, 8], "num_attention_heads": 32,
           "num_experts": 64, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "num_shared_expert": [1, 1], "tie_word_embeddings": true, "vocab_size": 128167})",
       80, 13, 1},
      {R"({"model_type": "dots1", "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 4096,
           "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128,
           "n_shared_experts": 2, "num_attention_heads": 32, "num_experts_per_tok": 6,
           "num_hidden_layers": 62, "num_key_value_heads": 32, "vocab_size": 152064,
           "tie_word_embeddings": false})",
       142, 14, 1.5},
      {R"({"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
           "text_config": {"model_type": "qwen3_vl_moe_text", "decoder_sparse_step": 1,
           "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288, "mlp_only_layers": [],
           "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_experts": 128,
           "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4,
           "vocab_size": 151936}})",
       235, 22, 1}};
  return table;
}

}  // namespace

TEST_CASE("the config.json of a family without a file in the zoo has its published parameters") {
  for (const Family& family : families()) {
    const MoeModel model = read_model(config(family.config_json));
    CAPTURE(model.source);
    const ParameterCount count = count_parameters(model);
    CHECK_THAT(count.total / 1e9, WithinRel(family.total, .01));
    CHECK_THAT(count.active / 1e9, WithinAbs(family.active, family.last_digit / 2 + .05));
    CHECK(model.layers.front().mixer->sight().window == 0);
  }
}

TEST_CASE("Qwen3.5 without experts has its published parameters, and states") {
  const MoeModel model = read_model(config(R"({"model_type": "qwen3_5", "text_config": {
    "model_type": "qwen3_5_text", "attn_output_gate": true, "full_attention_interval": 4,
    "head_dim": 256, "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "num_attention_heads": 24,
    "num_hidden_layers": 64, "num_key_value_heads": 4, "tie_word_embeddings": false,
    "vocab_size": 248320}})"));
  CHECK(model.unknown_keys.empty());
  CHECK_THAT(count_parameters(model).total / 1e9, WithinRel(27, .01));  // Qwen3.5-27B
  CHECK(model.keeps_state());
}

TEST_CASE("Ling and Step count their shared experts and dense layers as they write them") {
  const MoeModel ling = read_model(config(R"({"architectures": ["BailingMoeV2ForCausalLM"],
    "model_type": "bailing_moe", "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 4096,
    "intermediate_size": 9216, "moe_intermediate_size": 1024,
    "moe_shared_expert_intermediate_size": 1536, "n_group": 8, "topk_group": 4,
    "num_attention_heads": 32, "num_experts": 256, "num_experts_per_tok": 8,
    "num_hidden_layers": 3, "num_key_value_heads": 4, "num_shared_experts": 2,
    "vocab_size": 157184, "tie_word_embeddings": false})"));
  CHECK(ling.shared_width == 3072);
  CHECK(ling.dense_width == 9216);
  CHECK(ling.expert_groups == 8);
  CHECK(ling.groups_per_token == 4);
  CHECK_FALSE(ling.layers.front().moe);
  CHECK(ling.moe_layers() == 2);
  const MoeModel step = read_model(config(R"({"model_type": "step3p7", "num_hidden_layers": 3,
    "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128896, "intermediate_size": 11264, "sliding_window": 512,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "first_k_dense_replace": 1, "num_experts": 288, "num_experts_per_tok": 8,
    "moe_intermediate_size": 1280, "share_expert_dim": 1280})"));
  CHECK(step.shared_width == 1280);
  CHECK_FALSE(step.layers.front().moe);
  CHECK(step.moe_layers() == 2);
  CHECK(step.layers[1].mixer->sight() == Sight{.window = 512});
  CHECK(step.layers[2].mixer->sight() == Sight{});
  CHECK_THAT(config_error([] {
               read_model(config(R"({"model_type": "hunyuan_v1_moe", "hidden_size": 64,
                 "vocab_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 2, "num_experts": 8, "moe_topk": [2, 4],
                 "moe_intermediate_size": 8, "intermediate_size": 8, "num_shared_expert": 1})"));
             }),
             EndsWith("/moe_topk/1: layers that differ are not modelled; 2 is expected"));
}

TEST_CASE("an engine's own KV cache stays where files say weights alone: logged bytes of a token") {
  const auto file = shared_dir() / "data" / "models" / "deepseek-ai--DeepSeek-V3.2" / "config.json";
  if (!std::filesystem::exists(file)) {
    WARN("skipped: ../shared/data/models is absent");
    return;
  }
  const auto bytes = [&](const Json& engine, const Json& more) {
    Json json = zoo_experiment("deepseek_v3_2");
    json.erase("precision");
    json["model"] = file.string();
    json["cluster"] = "b200x8";
    json["parallel"] = {{"dp", 8}, {"tp", 1}, {"ep", 8}};
    json["engine"] = engine;
    json.merge_patch(more);
    const ExperimentSpec spec = read_spec(config(json.dump()));
    const PoolSpec& pool = spec.pools.front();
    return kv_bytes_per_token(pool.model, pool.parallel, pool.precision).value();
  };
  // sglang#11309: 975,424 tokens in 43.67 GB; later releases have no scales in a row.
  CHECK(bytes({{"name", "sglang"}, {"version", "0.5.3"}}, Json::object()) == 61 * (656 + 132));
  CHECK(bytes("sglang", Json::object()) == 61 * (576 + 132));
  // TensorRT-LLM#12683: (kv_lora + rope) x 1 and 132 of index keys.
  CHECK(bytes("trtllm", {{"precision", {{"kv_cache", "fp8"}}}}) == 61 * (576 + 132));
  // Where nothing says otherwise, the KV cache is as the activations were.
  CHECK(bytes("vllm", Json::object()) == 61 * (2 * 576 + 132));
}

TEST_CASE("forty config.json of this year are read with their precisions") {
  const auto folder = shared_dir() / "data" / "models";
  if (!std::filesystem::exists(folder)) {
    WARN("skipped: ../shared/data/models is absent");
    return;
  }
  const std::map<std::string, std::string> precisions{
      {"MiniMaxAI--MiniMax-M2.5", text("fp8_block", "fp8_block", "bf16", "fp8_block")},
      {"Qwen--Qwen3-235B-A22B", text("bf16", "bf16", "bf16", "bf16")},
      {"Qwen--Qwen3-235B-A22B-FP8", text("fp8_block", "fp8_block", "bf16", "fp8_block")},
      {"deepseek-ai--DeepSeek-R1", text("fp8_block", "fp8_block", "bf16", "fp8_block")},
      {"deepseek-ai--DeepSeek-V4-Flash", text("mxfp4", "fp8_block", "fp8", "fp8_block")},
      {"sgl-project--DeepSeek-V4-Flash-FP8", text("fp8_block", "fp8_block", "fp8", "fp8_block")},
      {"moonshotai--Kimi-K2.5", text("int4_g32", "bf16", "bf16", "bf16")},
      {"moonshotai--Kimi-K3", text("mxfp4", "bf16", "bf16", "bf16")},
      // Its shared experts and dense layer are converted, too; Gemma's dense FFNs are not.
      {"nvidia--Kimi-K2.5-NVFP4",
       "experts nvfp4, attention bf16, shared and dense FFNs nvfp4, KV cache fp8, activations "
       "nvfp4"},
      {"nvidia--Gemma-4-26B-A4B-NVFP4", text("nvfp4", "bf16", "fp8", "nvfp4")},
      {"nvidia--MiniMax-M3-NVFP4", text("nvfp4", "fp8_block", "bf16", "nvfp4")},
      {"nvidia--Qwen3.5-122B-A10B-NVFP4", text("nvfp4", "bf16", "fp8", "nvfp4")},
      {"openai--gpt-oss-120b", text("mxfp4", "bf16", "bf16", "bf16")}};
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    ++files;
    const ConfigNode node = ConfigNode::from_file(entry.path() / "config.json");
    const auto stored_as = stored_in(node);
    REQUIRE(stored_as);
    if (const auto known = precisions.find(name); known != precisions.end()) {
      CHECK(precision_text(stored_as->plan) == known->second);
    }
    // Two say NVFP4 in their names alone: their hf_quant_config.json is not there.
    const bool warned =
        name == "nvidia--GLM-5-NVFP4" || name == "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4";
    CHECK(stored_as->warning.empty() == !warned);
    if (warned) CHECK_THAT(stored_as->warning, Contains("the model's name says NVFP4"));
  }
  CHECK(files == 40);
}

}  // namespace moesim::test_quantization
