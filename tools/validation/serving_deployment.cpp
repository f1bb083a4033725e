// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/serving_deployment.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "tools/validation/predict_operation.hpp"

namespace moesim {

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_dense(const MeasuredPoint& point) {
  return contains(point.model, "(dense)") || point.model.starts_with("Llama-3");
}

/// Versions behind "version unknown", by the images that InferenceX's configs named on the day.
std::string version_on(std::string_view engine, std::string_view date) {
  if (date.empty()) return "";
  // Nightly builds of 2026 count as the release that followed.
  if (engine == "vllm") {
    if (date >= "2026-02-01") return "0.19.0";
    return date < "2025-11-30" ? "0.10.2" : "0.11.2";
  }
  if (engine == "sglang") {
    if (date >= "2026-01-15") return date < "2026-03-15" ? "0.5.8" : "0.5.10";
    return date < "2025-11-10" ? "0.5.3" : "0.5.5";
  }
  return "1.1.0";
}

/// Whether a model's gating is balanced by a bias (sigmoid scores) or, of Qwen3.5, not published.
bool is_balanced(const MeasuredPoint& point) {
  constexpr std::array names{"DeepSeek", "MiniMax", "Kimi", "GLM", "Qwen3.5", "Qwen3-Next"};
  return std::ranges::any_of(names, [&](auto name) { return point.model.starts_with(name); });
}

/// "Simulated perfect EPLB" chooses experts at random (LMSYS blog 2025-05-05), Mixtral takes its
/// eight about equally often (arXiv:2401.04088, figure 7), and so does Llama 4 its one of 128.
/// Prompts of InferenceX are random tokens, which have no topic: gating that is balanced spreads
/// them evenly.
Json gating_of(const MeasuredPoint& point) {
  const bool even = contains(point.operation, "perfect EPLB") ||
                    point.model.starts_with("Mixtral") || point.model.starts_with("Llama") ||
                    is_dense(point) || (client_of(point).recipe && is_balanced(point));
  if (even) return "uniform";
  const char* preset = point.model.starts_with("gpt-oss") ? "gpt_oss" : "qwen3";
  return {{"type", "topical"}, {"preset", is_balanced(point) ? "deepseek_r1" : preset}};
}

/// SGLang's deployments with wide expert parallelism and DeepSeek's own, which it follows:
/// DeepGEMM, and DeepEP with tokens in fp8 on the way out.
bool is_wide_ep(const MeasuredPoint& point) {
  return contains(point.operation, "SGLang") || contains(point.operation, "DeepSeek production");
}

Json network_json(const std::filesystem::path& root) {
  return ConfigNode::from_file(root / "hardware/clusters/h100x32.json").json().at("network");
}

Json cluster_json(const MeasuredPoint& point, const std::filesystem::path& root,
                  const ServingPlan& plan) {
  const std::filesystem::path file = root / "hardware/gpus" / (gpu_file(point.gpu) + ".json");
  Json gpu = file.string();
  if (is_wide_ep(point)) {
    gpu = ConfigNode::from_file(file).json();
    if (gpu.contains("/kernels/masked_grouped_gemm"_json_pointer))
      gpu["kernels"]["grouped_gemm"] = gpu["kernels"]["masked_grouped_gemm"];
  }
  const int per_node = std::max(1, point.gpus / std::max(1, point.nodes));
  const int used = plan.gpus() > per_node ? plan.gpus() : per_node;
  const bool rack = point.gpu.starts_with("GB");
  return {{"name", point.gpu},
          {"source", point.id},
          {"gpu", gpu},
          {"gpus_per_node", per_node},
          {"nodes", std::max(1, used / per_node)},
          {"scale_up_domain", rack ? used : per_node},
          {"network", network_json(root)}};
}

// Workers of one pool are alike; a rack's NVLink joins whole workers.
Json pools_cluster_json(const MeasuredPoint& point, const std::filesystem::path& root) {
  const int largest =
      std::max(point.prefill.tp * point.prefill.dp, point.decode.tp * point.decode.dp);
  const bool rack = point.gpu.starts_with("GB");
  const int per_node = rack ? 4 : 8;
  const int step = std::max(per_node, rack ? largest : per_node);
  const int gpus = (point.gpus + step - 1) / step * step;
  return {{"name", point.gpu},
          {"source", point.id},
          {"gpu", (root / "hardware/gpus" / (gpu_file(point.gpu) + ".json")).string()},
          {"gpus_per_node", per_node},
          {"nodes", gpus / per_node},
          {"scale_up_domain", rack ? gpus : per_node},
          {"network", network_json(root)}};
}

// Rows with as many attention ranks as GPUs and experts sliced as often are plain tensor
// parallelism within a node: DeepSeek-R1 in fp8 does not fit four GB200 otherwise.
WorkerPlan as_launched(WorkerPlan plan) {
  constexpr int gpus_per_node = 8;
  if (plan.dp > 1 && plan.ep == 1 && plan.tp * plan.dp <= gpus_per_node)
    plan.tp *= std::exchange(plan.dp, 1);
  return plan;
}

// Experts sliced over many attention ranks, as some rows label them, are experts spread over them:
// no engine slices an expert's 2,048 columns 32 times.
int expert_ranks(const WorkerPlan& plan) { return plan.dp > 1 ? plan.tp * plan.dp : plan.ep; }

// Tokens go to where their experts are, in fp8 or narrower as DeepEP and NVLinkOneSided send them.
Json pool_json(const WorkerPlan& plan, bool decodes, double prompt) {
  Json pool{{"parallel", {{"dp", plan.dp}, {"tp", plan.tp}, {"ep", expert_ranks(plan)}}},
            {"instances", plan.workers}};
  if (plan.dp > 1) {
    const Json far{{"type", "all_to_all"}, {"precision", "fp8_block"}};
    const Json near{{"type", "low_latency"}, {"precision", "fp8_block"}};
    pool["dispatch"] = {{"prefill", far}, {"decode", near}};
  }
  // Dynamo's frontend takes workers in turn.
  pool["request_routing"] = {{"type", "round_robin"}};
  if (!decodes) {
    const auto tokens = static_cast<std::int64_t>(std::max(1, plan.batch) * prompt);
    pool["scheduling"] = {{"max_num_batched_tokens", std::max<std::int64_t>(8192, tokens)}};
  }
  return pool;
}

}  // namespace

ServingClient client_of(const MeasuredPoint& point) {
  ServingClient client;
  const auto whole = [](double tokens) { return tokens == 1024 || tokens == 8192; };
  const bool theirs = contains(point.notes, "InferenceX");
  // Rows of the same file that say no more than their lengths.
  const bool alike =
      contains(point.notes, "median/mean over run") && whole(point.prompt) && whole(point.output);
  const bool apart = point.category == "disaggregated" && whole(point.prompt);
  client.recipe = theirs || alike || apart;
  const std::size_t place = point.notes.find("run 20");
  if (client.recipe && place != std::string::npos) client.date = point.notes.substr(place + 4, 10);
  return client;
}

NamedEngine engine_of(const MeasuredPoint& point) {
  const std::string operation = lower(point.operation);
  for (const char* name : {"sglang", "vllm", "trtllm"}) {
    const std::size_t place = operation.find(name);
    if (place == std::string::npos) continue;
    const std::size_t begin = std::min(operation.size(), place + std::string_view(name).size() + 1);
    std::string version = operation.substr(begin, operation.find_first_of(", ", begin) - begin);
    const bool number = !version.empty() && std::isdigit(static_cast<unsigned char>(version[0]));
    // Dynamo's images of TensorRT-LLM carry Dynamo's own versions.
    if (std::string_view(name) == "trtllm" && version.starts_with("0.")) return {name, ""};
    if (!number) version = version_on(name, client_of(point).date);
    return {name, version};
  }
  return {"trtllm", ""};
}

std::optional<Json> checkpoint_of(const MeasuredPoint& point) {
  const auto stored = [](const char* experts, const char* attention, const char* ffn) {
    return Json{{"experts", experts}, {"attention", attention}, {"ffn", ffn}};
  };
  const std::string& p = point.precision;
  const auto is = [&](const char* name) { return point.model.starts_with(name); };
  if (p == "bfloat16" || p == "bf16") return stored("bf16", "bf16", "bf16");
  if (is("gpt-oss")) {
    Json mxfp4 = stored("mxfp4", "bf16", "bf16");
    if (p == "w4a8") mxfp4["activations"] = "fp8";
    return mxfp4;
  }
  if (p == "fp8_block" || p == "fp8") {
    const bool by_tensor = is("Mixtral") || is("Llama") || is_dense(point);
    const char* fp8 = by_tensor ? "fp8" : "fp8_block";
    return stored(fp8, fp8, fp8);
  }
  // Only routed experts are in four bits, and weights alone.
  if (p.starts_with("int4")) return stored("int4", "bf16", "bf16");
  if (p == "fp4" || p == "nvfp4") {
    // What ModelOpt's checkpoints leave in bf16, by their hf_quant_config.json.
    if (is("Qwen3.5")) return stored("nvfp4", "bf16", "bf16");
    const bool attention_kept = is("DeepSeek") || is("Kimi") || is("GLM") || is("MiniMax");
    return stored("nvfp4", attention_kept ? "bf16" : "nvfp4", "nvfp4");
  }
  return std::nullopt;
}

std::string served_model_file(std::string_view name) {
  struct Named {
    std::string_view source, file;
  };
  // The first that fits.
  static constexpr std::array<Named, 10> more{{{"DeepSeek-V3.2", "deepseek_v3_2"},
                                               {"GLM-5", "glm_5"},
                                               {"Kimi-K2.5", "kimi_k2_5"},
                                               {"Kimi-K2", "kimi_k2"},
                                               {"Llama-3.1-8B", "llama_3_1_8b"},
                                               {"Llama-3.3-70B", "llama_3_3_70b"},
                                               {"Llama-4-Maverick", "llama_4_maverick"},
                                               {"Qwen3-32B", "qwen3_32b"},
                                               {"Qwen3-Next", "qwen3_next_80b_a3b"},
                                               {"Qwen3.5-397B", "qwen3_5_397b_a17b"}}};
  for (const Named& row : more)
    if (name.starts_with(row.source)) return std::string(row.file);
  return model_file(name);
}

/// As stated; otherwise one GPU for what fits into it (Mixtral in fp8), else data-parallel
/// attention and expert parallelism over a node, or the group.
ServingPlan plan_of(const MeasuredPoint& point) {
  if (point.tp == 0 && point.model.starts_with("Mixtral")) return {1, 1, 1, point.gpus};
  if (point.tp > 0) {
    const int dp = std::max(1, point.dp);
    return {dp, point.tp, is_dense(point) ? 1 : std::max(1, point.ep), 1};
  }
  const int group = point.ep > 0 ? point.ep : std::min(8, point.gpus);
  return {group, 1, group, point.gpus / group};
}

DeploymentJson deployment_json(const MeasuredPoint& point, const std::filesystem::path& root) {
  const auto checkpoint = checkpoint_of(point);
  const std::string model = served_model_file(point.model);
  if (gpu_file(point.gpu).empty()) return {{}, "GPU unknown"};
  if (model.empty()) return {{}, "model unknown"};
  if (!checkpoint) return {{}, "precision unknown"};
  const ServingPlan plan = plan_of(point);
  const NamedEngine engine = engine_of(point);
  const ServingClient client = client_of(point);
  Json named{{"name", engine.name}, {"recipe", client.recipe ? "inferencex" : "none"}};
  if (!engine.version.empty()) named["version"] = engine.version;
  if (!client.date.empty()) named["date"] = client.date;
  Json json{{"engine", named},
            {"cluster", cluster_json(point, root, plan)},
            {"model", (root / "models/zoo" / (model + ".json")).string()},
            {"precision", *checkpoint},
            {"parallel", {{"dp", plan.dp}, {"tp", plan.tp}, {"ep", plan.ep}}},
            {"workload", {{"gating", gating_of(point)}}},
            {"placement", "linear"},
            {"measurement", {{"expert_counts", false}}}};
  if (is_wide_ep(point)) {
    const Json dispatch{{"type", "all_to_all"}, {"precision", "fp8_block"}};
    json["dispatch"] = {{"prefill", dispatch}, {"decode", dispatch}};
  }
  // perf-overview.md.
  if (contains(point.operation, "trtllm-bench"))
    json["kv_cache"] = {{"free_gpu_memory_fraction", .95}};
  if (contains(point.operation, "EPLB") || contains(point.operation, "production"))
    json["placement"] = {{"type", "eplb"}, {"replication", 1.125}};
  return {json, ""};
}

DeploymentJson pools_json(MeasuredPoint point, const std::filesystem::path& root) {
  point.prefill = as_launched(point.prefill);
  point.decode = as_launched(point.decode);
  MeasuredPoint decode = point;
  decode.tp = point.decode.tp;
  decode.dp = point.decode.dp;
  decode.ep = expert_ranks(point.decode);
  DeploymentJson deployment = deployment_json(decode, root);
  if (!deployment.unknown.empty()) return deployment;
  Json& json = deployment.experiment;
  json["cluster"] = pools_cluster_json(point, root);
  // Launch scripts of workers apart are others than those of one server.
  json["engine"]["recipe"] = "none";
  // The worker that decodes answers the client, once it has the prompt's KV cache.
  json["api_server"] = {{"first_chunk", 2}};
  // --mem-fraction-static of DeepSeek-R1 in fp8 on four GPUs.
  if (engine_of(point).name == "sglang") json["kv_cache"] = {{"gpu_memory_utilization", 0.95}};
  json["pools"] = {{"prefill", pool_json(point.prefill, false, point.prompt)},
                   {"decode", pool_json(point.decode, true, point.prompt)}};
  return deployment;
}

}  // namespace moesim
