// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/serving_deployment.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "hardware/text.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/engine.hpp"
#include "tools/bench/mlperf.hpp"
#include "tools/bench/trtllm_bench.hpp"
#include "traces/gating/presets.hpp"

namespace moesim {

namespace {

bool is_dense(const MeasuredPoint& point) {
  return contains(point.model, "(dense)") || point.model.starts_with("Llama-3");
}

/// Versions behind "version unknown", by the images that InferenceX's configs named on the day.
std::string version_on(const ServingEngine& engine, std::string_view date) {
  if (date.empty()) return "";
  for (const ImageVersion& image : engine.images)
    if (date >= image.from) return std::string(image.version);
  return "";
}

/// The engine's version in an image that names its product's; any other version as it is.
std::string within_product(const ServingEngine& engine, const std::string& version) {
  for (const CarriedVersion& row : engine.carried)
    if (version.starts_with(row.product)) return std::string(row.version);
  return version;
}

/// True if a model's gating is balanced by a bias (sigmoid scores) or, of Qwen3.5, not published.
bool is_balanced(const MeasuredPoint& point) {
  constexpr std::array names{"DeepSeek", "MiniMax", "Kimi", "GLM", "Qwen3.5", "Qwen3-Next"};
  return std::ranges::any_of(names, [&](auto name) { return point.model.starts_with(name); });
}

/// "Simulated perfect EPLB" chooses experts at random (LMSYS blog 2025-05-05), Mixtral takes its
/// eight about equally often (arXiv:2401.04088, figure 7), and so does Llama 4 its one of 128.
/// Prompts of InferenceX are random tokens, which have no topic: gating that is balanced spreads
/// them evenly.
Json gating_of(const MeasuredPoint& point, const std::filesystem::path& model) {
  const bool even = contains(point.operation, "perfect EPLB") ||
                    point.model.starts_with("Mixtral") || point.model.starts_with("Llama") ||
                    is_dense(point) || (client_of(point).recipe && is_balanced(point));
  if (even) return "uniform";
  const MoeModel read = read_model(ConfigNode::from_file(model));
  return {{"type", "topical"}, {"preset", preset_of(read).preset.name}};
}

/// SGLang's deployments with wide expert parallelism, DeepSeek's own, which they follow, and
/// llm-d's: DeepEP, with tokens in fp8 on the way out, its low-latency kernels where they decode.
bool is_wide_ep(const MeasuredPoint& point) {
  constexpr std::array names{"SGLang", "DeepSeek production", "DeepSeek profile", "wide-EP"};
  const bool named =
      std::ranges::any_of(names, [&](auto name) { return contains(point.operation, name); });
  return named && point.ep > 1 && point.concurrency == 0;
}

// A rack's NVLink joins all its GPUs, another machine's those of a node.
bool is_rack(const MeasuredPoint& point) { return point.gpu.starts_with("GB"); }

// Tokens of a rank that its exchange buffers have room for: those of a micro-batch of prefill. In
// decode all, or what vLLM sends at a time (VLLM_MOE_DP_CHUNK_SIZE) where a row does not say.
int buffered_tokens(const MeasuredPoint& point) {
  constexpr int chunk = 256;
  if (point.category != "prefill") return point.batch > 0 ? static_cast<int>(point.batch) : chunk;
  return static_cast<int>(tokens_of_prefill(point) / (is_rack(point) ? 1 : 2));
}

Json cluster_json(const MeasuredPoint& point, Json gpu, int nodes, int per_node,
                  const std::filesystem::path& root) {
  const auto network = root / "hardware/clusters/h100x32.json";
  return {{"name", point.gpu},
          {"source", point.id},
          {"gpu", std::move(gpu)},
          {"gpus_per_node", per_node},
          {"nodes", nodes},
          {"scale_up_domain", is_rack(point) ? nodes * per_node : per_node},
          {"network", ConfigNode::from_file(network).json().at("network")}};
}

Json cluster_of(const MeasuredPoint& point, const std::filesystem::path& gpu,
                const ServingPlan& plan, const std::filesystem::path& root) {
  const int per_node = std::max(1, point.gpus / std::max(1, point.nodes));
  const int used = std::max(plan.gpus(), per_node);
  return cluster_json(point, gpu.string(), used / per_node, per_node, root);
}

int largest_worker(const MeasuredPoint& point) {
  return std::max(point.prefill.tp * point.prefill.dp, point.decode.tp * point.decode.dp);
}

// Workers of one pool are alike; a rack's NVLink joins whole workers.
Json cluster_of_pools(const MeasuredPoint& point, const std::filesystem::path& gpu,
                      const std::filesystem::path& root) {
  const int per_node = is_rack(point) ? 4 : 8;
  const int step = is_rack(point) ? std::max(per_node, largest_worker(point)) : per_node;
  const int gpus = (point.gpus + step - 1) / step * step;
  return cluster_json(point, gpu.string(), gpus / per_node, per_node, root);
}

// Rows with as many attention ranks as GPUs and experts sliced as often are plain tensor
// parallelism within a tray of four: DeepSeek-R1 in fp8 does not fit four GB200 otherwise
// (NVIDIA/srt-slurm@96f3442, recipes/gb200-fp8/1k1k/low-latency.yaml). Larger workers have the
// ranks that they say (recipes/gb200-fp8/8k1k/mid-curve.yaml, recipes/b200-fp8/8k1k.yaml).
WorkerPlan as_launched(WorkerPlan plan) {
  constexpr int gpus_of_tray = 4;
  if (plan.dp > 1 && plan.ep == 1 && plan.tp * plan.dp <= gpus_of_tray)
    plan.tp *= std::exchange(plan.dp, 1);
  return plan;
}

// Experts sliced over many attention ranks, as some rows label them, are experts spread over them:
// no engine slices an expert's 2,048 columns 32 times.
int expert_ranks(const WorkerPlan& plan) { return plan.dp > 1 ? plan.tp * plan.dp : plan.ep; }

// SGLang's long prompts of DeepSeek-R1 in fp8 on GB200: all variants of one script prefill with
// attention DP and DeepEP on eight GPUs (ishandhanani/srt-slurm@e9e5f66, recipes/gb200-fp8/8k1k).
bool prefills_by_deepep(const MeasuredPoint& point) {
  return engine_of(point).name == "sglang" && point.gpu.starts_with("GB200") &&
         point.precision.starts_with("fp8") && point.prompt >= 8192;
}

// DeepSeek-R1 in TensorRT-LLM prefills long prompts with tensor-parallel attention on Hopper and
// short ones with attention DP, whatever the row says. Both labels mean one run there
// (ishandhanani/srt-slurm@4893f83, recipes/trtllm/h200). Kimi-K2.5 of vLLM prefills with attention
// DP, and decodes so in workers of more than a tray (NVIDIA/srt-slurm@fd250ac, recipes/vllm/
// kimi-k2.5).
bool has_attention_dp(const MeasuredPoint& point, const WorkerPlan& plan, bool decodes) {
  constexpr int gpus_of_tray = 4;
  const int gpus = plan.tp * plan.dp;
  const std::string engine = engine_of(point).name;
  if (engine == "vllm" && point.model.starts_with("Kimi")) return !decodes || gpus > gpus_of_tray;
  if (prefills_by_deepep(point)) return !decodes || plan.dp > 1;
  const bool hopper = engine == "trtllm" && point.gpu.starts_with("H200");
  return hopper && !decodes ? point.prompt < 8192 : plan.dp > 1;
}

WorkerPlan with_attention_of_recipe(const MeasuredPoint& point, WorkerPlan plan, bool decodes) {
  const int gpus = plan.tp * plan.dp;
  const bool dp = has_attention_dp(point, plan, decodes);
  if (dp == (plan.dp > 1)) return plan;
  plan.dp = dp ? gpus : 1;
  plan.tp = dp ? 1 : gpus;
  return plan;
}

// SGLang's deployments use DeepEP and DeepGEMM where a worker is more than a node, and gather
// tokens otherwise (NVIDIA/srt-slurm@5917791, recipes: moe-a2a-backend, deepep-mode).
bool uses_deepep(const MeasuredPoint& point) {
  constexpr int gpus_of_node = 8;
  return engine_of(point).name == "sglang" && largest_worker(point) > gpus_of_node;
}

// Seats of a rank that decodes. TensorRT-LLM's scripts give it max_batch_size, a power of two or
// 768, and keep more requests in flight, which wait. In fp8 there are up to twice as many, in fp4
// an eighth more, and other loads are those of one script with 32 seats. (recipes/trtllm of the
// same: ctx1_gen4_tep8_batch8_eplb0_mtp0_36, ctx1_gen4_tep8_batch4_eplb0_mtp0_24,
// ctx1_gen4_tep8_batch1_eplb0_mtp3_8, ctx3_gen2_dep8_batch768_eplb0_mtp0_12288,
// ctx1dep4_gen4tep8_batch32_allconc_eplb0_mtp3.)
int seats_for(int in_flight, bool fp8) {
  const int below = static_cast<int>(std::bit_floor(static_cast<unsigned>(in_flight)));
  if (in_flight == 768) return in_flight;
  if (fp8) return in_flight == 2 ? 1 : below;
  return 8 * in_flight <= 9 * below ? below : std::max(32, below);
}

// Scripts in nvfp4 for long prompts keep their seats over all loads. First tokens of the runs of
// serving_disaggregated.csv and disaggregated_calibrate.csv say how many. They wait four tenths of
// an answer where half as many requests more than seats are in flight. GB200 has 16; GB300 has 16,
// 2 and 4 where 3, 4 and 5 workers decode.
int seats_for_long_prompts(const MeasuredPoint& point) {
  if (point.gpu.starts_with("GB200")) return 16;
  constexpr std::array of_workers{16, 2, 4};  // of 3, 4 and 5
  const int place = point.decode.workers - 3;
  return place < 0 || place > 2 ? 0 : of_workers[at(place)];
}

// Tokens go to where their experts are, in fp8 or narrower as DeepEP and NVLinkOneSided send them.
// Or they go to all ranks, as the engine's preset has it. Within NVLink TensorRT-LLM and vLLM take
// the latter (--all2all-backend flashinfer_nvlink_one_sided).
Json dispatch_of_pool(const MeasuredPoint& point) {
  const auto in_fp8 = [](const char* type) {
    return Json{{"type", type}, {"precision", "fp8_block"}};
  };
  constexpr int gpus_of_node = 8;
  const bool within_nvlink = is_rack(point) || largest_worker(point) <= gpus_of_node;
  if (within_nvlink && engine_of(point).name != "sglang") {
    const auto stored = checkpoint_of(point);
    const bool fp4 = stored && stored->at("experts") == "nvfp4";
    const Json both{{"type", "one_sided"}, {"precision", fp4 ? "nvfp4" : "fp8_block"}};
    return {{"prefill", both}, {"decode", both}};
  }
  return {{"prefill", in_fp8("all_to_all")}, {"decode", in_fp8("low_latency")}};
}

bool sends_tokens(const MeasuredPoint& point) {
  const std::string engine = engine_of(point).name;
  const bool one_sided = engine == "trtllm" || (engine == "vllm" && client_of(point).recipe);
  return one_sided || uses_deepep(point);
}

// Runs that draft tokens (MTP) without saying so: how many are accepted is not known. Scripts of
// Qwen3.5 in fp8 on B200 slice experts over four GPUs only where they draft (SemiAnalysisAI/
// InferenceX, pull requests 804 and 897). With four requests in flight such a run takes 5.1 ms a
// token. Twice as many GPUs take 7.8 ms.
bool drafts_unsaid(const MeasuredPoint& point) {
  return client_of(point).recipe && engine_of(point).name == "sglang" &&
         point.model.starts_with("Qwen3.5") && point.gpu.starts_with("B200") &&
         point.precision == "fp8_block" && point.tp == 4 && point.ep <= 1 && point.dp <= 1;
}

// SGLang's servers of which no script is known do not cut prompts: what a batch of them may hold is
// max_prefill_tokens, 16,384 by default (python/sglang/srt/server_args.py). Of 78 such runs in
// serving_calibrate.csv TPOT and TTFT are 3.9 and 11.2 % off with chunks of 8,192 tokens, the
// default on Hopper, 3.3 and 8.4 % with 16,384, 4.7 and 8.6 % with 32,768.
bool has_whole_prompts(const MeasuredPoint& point) {
  return point.category == "e2e" && point.concurrency > 0 && !client_of(point).recipe &&
         engine_of(point).name == "sglang";
}

// Rate of prompts' GEMMs of SGLang's workers on B200 in fp8, where they are full; empty: as tables
// say. Scripts that spread experts over prefill workers turn DeepGEMM off (ishandhanani/srt-slurm
// @4aa224c, recipes/b200-fp8/8k1k/stp: SGLANG_ENABLE_JIT_DEEPGEMM). A prompt of 7,400 tokens then
// takes eight GPUs 340 ms: GEMMs reach 120 (attention DP) to 220 TFLOP/s (tensor parallel). Those
// that slice experts leave it on, and take 1.4 s for eight prompts, 1.0 s by the tables. Why is not
// known, and the rest is counted as GEMMs, too.
std::string_view prompt_gemms(const MeasuredPoint& point) {
  const bool in_fp8 = engine_of(point).name == "sglang" && point.gpu.starts_with("B200") &&
                      point.precision.starts_with("fp8");
  if (!in_fp8) return "";
  if (point.prefill.ep > 1) return "170 TFLOP/s";
  return point.prefill.dp > 1 ? "440 TFLOP/s" : "";
}

// Prompt tokens of a rank and step of SGLang's prefill workers: the least of its part of
// chunked-prefill-size and of max-prefill-tokens. Sources are recipes gb200-fp8, gb200-fp4,
// b200-fp8 and b200-fp4 of ishandhanani/srt-slurm@ab58651, @6951981, @4aa224c, @4bc1847. With
// attention DP that is two prompts of 8,192. It is one on B200 in fp4 where one worker prefills,
// and in fp8 where it slices experts. Tensor-parallel workers have 8,192 for short prompts and
// 32,768 for long ones. On GB200 it is 131,072 before decode ranks of a rack, and two prompts
// before those of a tray.
int prefill_tokens_of_sglang(const MeasuredPoint& point, const WorkerPlan& plan) {
  constexpr int one_long = 8192, two_long = 16384;
  const bool b200 = point.gpu.starts_with("B200"), fp8 = point.precision.starts_with("fp8");
  if (plan.dp > 1) {
    const bool alone = b200 && (fp8 ? plan.ep == 1 : plan.workers == 1);
    return alone ? one_long : two_long;
  }
  if (point.prompt < 8192) return one_long;
  if (b200 || fp8) return 32768;
  return point.decode.dp > 1 ? 131072 : two_long;
}

// TensorRT-LLM's workers compute eight short prompts of a rank together. Of long ones they compute
// two, on B200 and GB300 one. vLLM's take 16,384 tokens. None cuts prompts (max_batch_size,
// max_num_tokens, enable_chunked_prefill of the recipes above; recipes/trtllm/gb300-fp8/8k1k;
// ishandhanani/srt-slurm@e71238b, recipes/trtllm/b200-fp8/8k1k).
Json prefill_limits(const MeasuredPoint& point, const WorkerPlan& plan) {
  const std::string engine = engine_of(point).name;
  const bool is_long = point.prompt >= 8192;
  const bool one_by_one = point.gpu.starts_with("B200") || point.gpu.starts_with("GB300");
  if (client_of(point).recipe && engine == "trtllm" && is_long && one_by_one)
    return {{"max_num_batched_tokens", 8320}, {"max_num_seqs", 1}};
  if (client_of(point).recipe && engine == "trtllm")
    return {{"max_num_batched_tokens", is_long ? 16640 : 8192}, {"max_num_seqs", is_long ? 2 : 8}};
  if (client_of(point).recipe && engine == "vllm") return {{"max_num_batched_tokens", 16384}};
  if (client_of(point).recipe && engine == "sglang")
    return {{"max_num_batched_tokens", prefill_tokens_of_sglang(point, plan)}};
  const auto tokens = static_cast<std::int64_t>(std::max(1, plan.batch) * point.prompt);
  return {{"max_num_batched_tokens", std::max<std::int64_t>(8192, tokens)}};
}

// Seats of a rank that decodes; 0: more than ever come (H200's recipes have 16 to 512). vLLM's
// tensor-parallel workers have 16 for prompts of 8,192.
int decode_seats(const MeasuredPoint& point, const WorkerPlan& plan) {
  const std::string engine = engine_of(point).name;
  const bool fp8 = point.precision.starts_with("fp8");
  if (engine == "trtllm" && is_rack(point) && !fp8 && point.prompt >= 8192 && plan.dp == 1)
    if (const int seats = seats_for_long_prompts(point); seats > 0) return seats;
  if (engine == "trtllm" && !point.gpu.starts_with("H200")) return seats_for(plan.batch, fp8);
  const bool few = engine == "vllm" && client_of(point).recipe && point.prompt >= 8192;
  return few && plan.dp == 1 ? 16 : 0;
}

Json pool_json(const MeasuredPoint& point, const WorkerPlan& plan, bool decodes) {
  Json pool{{"parallel", {{"dp", plan.dp}, {"tp", plan.tp}, {"ep", expert_ranks(plan)}}},
            {"instances", plan.workers}};
  // Front ends of Dynamo take workers in turn. srt-slurm puts ten of them behind nginx, each with a
  // turn of its own. Exceptions are vLLM, and TensorRT-LLM on H200, B200 and GB300
  // (enable_multiple_frontends of their recipes).
  pool["request_routing"] = {{"type", "round_robin"}};
  const std::string engine = engine_of(point).name;
  const bool one = engine == "vllm" || point.gpu.starts_with("H200") ||
                   (engine == "trtllm" && !point.gpu.starts_with("GB200"));
  if (client_of(point).recipe && !one) pool["request_routing"]["front_ends"] = 10;
  if (plan.dp > 1 && (sends_tokens(point) || (!decodes && prefills_by_deepep(point))))
    pool["dispatch"] = dispatch_of_pool(point);
  const int seats = decodes && plan.batch > 0 ? decode_seats(point, plan) : 0;
  if (!decodes) pool["scheduling"] = prefill_limits(point, plan);
  if (seats > 0) pool["scheduling"] = {{"max_num_seqs", seats}};
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
  // srt-slurm's client sends five prompts for each in flight, ten later on (ishandhanani/srt-slurm
  // @09211b6 and @2ef1b6d, sa-bench/bench.sh).
  if (apart && client.date.starts_with("2025")) client.waves = 5;
  return client;
}

double tokens_of_prefill(const MeasuredPoint& point) {
  constexpr double published = 16384;
  return point.tokens > 0 ? point.tokens : published;
}

EngineVersion engine_of(const MeasuredPoint& point) {
  // The engine that its authors call a reproduction of DeepSeek's.
  if (point.operation.starts_with("DeepSeek ")) return {"sglang", ""};
  const std::string operation = lower(point.operation);
  for (const ServingEngine& engine : serving_engines()) {
    const std::size_t place = operation.find(engine.name);
    if (place == std::string::npos) continue;
    const std::size_t begin = std::min(operation.size(), place + engine.name.size() + 1);
    std::string version = operation.substr(begin, operation.find_first_of(", ", begin) - begin);
    if (version.starts_with('v')) version.erase(0, 1);  // of a tag
    const bool number = !version.empty() && std::isdigit(static_cast<unsigned char>(version[0]));
    version = number ? within_product(engine, version) : version_on(engine, client_of(point).date);
    return {std::string(engine.name), version};
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
    // trtllm-bench's Qwen3-235B-A22B is NVIDIA's, in fp8 by tensor (perf-overview.md, FP8 Models).
    const bool by_tensor =
        is("Mixtral") || is("Llama") || is_dense(point) || (is("Qwen3") && is_trtllm_bench(point));
    const char* fp8 = by_tensor ? "fp8" : "fp8_block";
    return stored(fp8, fp8, fp8);
  }
  // Only routed experts are in four bits, and weights alone.
  if (p.starts_with("int4")) return stored(is("Kimi") ? "int4_g32" : "int4", "bf16", "bf16");
  if (p == "fp4" || p == "nvfp4") {
    // What ModelOpt's checkpoints leave in bf16, by their hf_quant_config.json.
    if (is("Qwen3.5")) return stored("nvfp4", "bf16", "bf16");
    const bool attention_kept = is("DeepSeek") || is("Kimi") || is("GLM") || is("MiniMax");
    return stored("nvfp4", attention_kept ? "bf16" : "nvfp4", "nvfp4");
  }
  return std::nullopt;
}

double bytes_of_weight(const Json& checkpoint) {
  const auto precision = checkpoint.at("experts").get<std::string>();
  const auto place = std::ranges::find(precision_names, precision);
  return place == precision_names.end()
             ? 0
             : bytes_per_element(static_cast<Precision>(place - precision_names.begin()));
}

/// Plan as stated. Otherwise it is one GPU for what fits into it (Mixtral in fp8), else
/// data-parallel attention and expert parallelism over a node, or the group.
ServingPlan plan_of(const MeasuredPoint& point) {
  if (point.tp == 0 && point.model.starts_with("Mixtral")) return {1, 1, 1, point.gpus};
  if (point.tp > 0) {
    const int dp = std::max(1, point.dp);
    return {dp, point.tp, is_dense(point) ? 1 : std::max(1, point.ep), 1};
  }
  const int group = point.ep > 0 ? point.ep : std::min(8, point.gpus);
  return {group, 1, group, point.gpus / group};
}

DeploymentJson deployment_json(const MeasuredPoint& point, const std::filesystem::path& root,
                               const GpuFiles& gpus) {
  const auto checkpoint = checkpoint_of(point);
  const std::string model = model_file(point.model);
  const std::filesystem::path model_path = root / "models/zoo" / (model + ".json");
  const std::filesystem::path gpu = gpu_path(point.gpu, root, gpus);
  if (gpu.empty()) return {{}, "GPU unknown"};
  if (model.empty()) return {{}, "model unknown"};
  if (!checkpoint) return {{}, "precision unknown"};
  if (drafts_unsaid(point)) return {{}, "drafts (MTP), whose acceptance is not stated"};
  const ServingPlan plan = plan_of(point);
  const EngineVersion engine = engine_of(point);
  const ServingClient client = client_of(point);
  Json named{{"name", engine.name},
             {"recipe", is_trtllm_bench(point) || mlperf_task(point) ? "trtllm_bench"
                        : client.recipe                              ? "inferencex"
                                                                     : "none"}};
  if (!engine.version.empty()) named["version"] = engine.version;
  if (!client.date.empty()) named["date"] = client.date;
  Json json{{"engine", named},
            {"cluster", cluster_of(point, gpu, plan, root)},
            {"model", model_path.string()},
            {"precision", *checkpoint},
            {"parallel", {{"dp", plan.dp}, {"tp", plan.tp}, {"ep", plan.ep}}},
            {"workload", {{"gating", gating_of(point, model_path)}}},
            {"placement", "linear"},
            {"measurement", {{"expert_counts", false}}}};
  if (has_whole_prompts(point)) {
    // The share of memory stays that of the default chunk.
    json["kv_cache"] = with_preset(ConfigNode(json, "validate.json")).json().at("kv_cache");
    json["scheduling"] = {{"max_num_batched_tokens", 16384}};
  }
  if (is_wide_ep(point)) {
    json["dispatch"] = {{"prefill", {{"type", "all_to_all"}, {"precision", "fp8_block"}}},
                        {"decode", {{"type", "low_latency"}, {"precision", "fp8_block"}}}};
    // Within a rack SGLang found it of no use (LMSYS blog 2025-09-25).
    if (!is_rack(point)) json["overlap"] = "two_batch";
    json["expert_buffers"] = {{"tokens_per_rank", buffered_tokens(point)}};
  }
  if (contains(point.operation, "EPLB") || contains(point.operation, "production"))
    json["placement"] = {{"type", "eplb"}, {"replication", 1.125}};
  return {json, ""};
}

DeploymentJson pools_json(MeasuredPoint point, const std::filesystem::path& root,
                          const GpuFiles& gpus) {
  const bool recipe = client_of(point).recipe;
  for (const bool decodes : {false, true}) {
    WorkerPlan& plan = decodes ? point.decode : point.prefill;
    plan = as_launched(plan);
    if (recipe) plan = with_attention_of_recipe(point, plan, decodes);
  }
  MeasuredPoint decode = point;
  decode.tp = point.decode.tp;
  decode.dp = point.decode.dp;
  decode.ep = expert_ranks(point.decode);
  DeploymentJson deployment = deployment_json(decode, root, gpus);
  if (!deployment.unknown.empty()) return deployment;
  Json& json = deployment.experiment;
  json["cluster"] = cluster_of_pools(point, gpu_path(point.gpu, root, gpus), root);
  // Launch scripts of workers apart are others than those of one server.
  if (client_of(point).recipe) json["engine"]["recipe"] = "srt_slurm";
  if (uses_deepep(point) && json.at("/precision/experts"_json_pointer) == "fp8_block")
    json["engine"]["expert_kernel"] = "deepgemm";
  if (const auto rate = prompt_gemms(point); !rate.empty()) json["engine"]["prompt_gemms"] = rate;
  // The worker that decodes answers the client, once it has the prompt's KV cache.
  json["api_server"] = {{"first_chunk", 2}};
  // --mem-fraction-static of DeepSeek-R1 in fp8 on four GPUs.
  if (engine_of(point).name == "sglang") json["kv_cache"] = {{"gpu_memory_utilization", 0.95}};
  json["pools"] = {{"prefill", pool_json(point, point.prefill, false)},
                   {"decode", pool_json(point, point.decode, true)}};
  return deployment;
}

}  // namespace moesim
