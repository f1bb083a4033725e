// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/predict_serving.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "sim/serving/simulator.hpp"
#include "sim/step/step_model.hpp"

namespace moesim {

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// An engine as far as a step sees it.
struct Engine {
  std::string_view name;       ///< part of a point's operation
  std::string_view scheduler;  ///< sim/scheduling
  std::string_view kv_cache;   ///< with weights of eight bits and less
  /// Between two steps: sampling results to the host, the next batch to the GPU, a graph's launch.
  /// All three engines schedule the next step while one runs. An estimate, fitted on nothing: no
  /// point to fit on is end to end.
  std::string_view host_overhead;
};

constexpr std::array<Engine, 3> engines{{{"sglang", "prefill_first", "bf16", "300 us"},
                                         {"vllm", "chunked_prefill", "bf16", "300 us"},
                                         {"trtllm", "chunked_prefill", "fp8", "300 us"}}};

const Engine& engine_of(const MeasuredPoint& point) {
  std::string name = point.operation;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto found = std::find_if(engines.begin(), engines.end(),
                                  [&](const Engine& e) { return contains(name, e.name); });
  return found == engines.end() ? engines.back() : *found;
}

/// How checkpoints of these names are stored: attention of DeepSeek's fp4 checkpoint and of gpt-oss
/// stays in bf16 (their model cards), on Hopper the KV cache of gpt-oss too (TensorRT-LLM,
/// perf-overview.md).
std::optional<Json> precision_of(const MeasuredPoint& point, const Engine& engine) {
  const auto stored = [&](const char* experts, const char* attention, const char* activations) {
    return Json{{"experts", experts},
                {"attention", attention},
                {"activations", activations},
                {"kv_cache", engine.kv_cache}};
  };
  const std::string& p = point.precision;
  if (p == "fp8_block" || p == "fp8") {
    if (point.model.starts_with("Mixtral")) return stored("fp8", "fp8", "fp8");
    return stored("fp8_block", "fp8_block", "fp8_block");
  }
  if (p == "mxfp4 w4a16") return stored("mxfp4", "bf16", "bf16");
  if (p == "w4a8") {
    return Json{
        {"experts", "mxfp4"}, {"attention", "bf16"}, {"activations", "fp8"}, {"kv_cache", "bf16"}};
  }
  if (p == "fp4") {
    if (point.model.starts_with("gpt-oss")) return stored("mxfp4", "bf16", "mxfp4");
    const bool latent = point.model.starts_with("DeepSeek");
    return stored("nvfp4", latent ? "bf16" : "nvfp4", "nvfp4");
  }
  if (p == "bfloat16") return stored("bf16", "bf16", "bf16");
  return std::nullopt;
}

/// MiniMax-M2.5 has as many experts as DeepSeek-R1 and the same gating, sigmoid scores with a bias
/// that balances; nobody publishes its statistics.
const char* gating_preset(const MeasuredPoint& point) {
  if (point.model.starts_with("DeepSeek") || point.model.starts_with("MiniMax"))
    return "deepseek_r1";
  if (point.model.starts_with("gpt-oss")) return "gpt_oss";
  return "qwen3";
}

/// "Simulated perfect EPLB" chooses experts at random (LMSYS blog 2025-05-05), and Mixtral takes
/// its eight about equally often (arXiv:2401.04088, figure 7).
Json gating_of(const MeasuredPoint& point) {
  if (contains(point.operation, "perfect EPLB") || point.model.starts_with("Mixtral"))
    return "uniform";
  return {{"type", "topical"}, {"preset", gating_preset(point)}};
}

/// SGLang's deployments with wide expert parallelism and DeepSeek's own, which it follows:
/// DeepGEMM, and DeepEP with tokens in fp8 on the way out.
bool is_wide_ep(const MeasuredPoint& point) {
  return contains(point.operation, "SGLang") || contains(point.operation, "DeepSeek production");
}

/// Lengths that sources give elsewhere than in the row.
struct PublishedLengths {
  std::string_view operation, model;
  double prompt, output, context;
};
constexpr std::array<PublishedLengths, 3> published_lengths{{
    {"MLPerf", "DeepSeek", 800, 3900, 0},  // the row's note
    // Output: mlcommons/inference, language/mixtral-8x7b/README.md. Prompts: a third each of GSM8K
    // (665), OpenOrca (265) and MBXP (195), means of samples from the published lengths of the data
    // set (openshift-psap/performance-dashboard, mlperf-data/summaries).
    {"MLPerf", "Mixtral", 375, 145, 0},
    // Decode GPUs of a disaggregated deployment, 1,000 in and 1,000 out (llm-d blog 2026-02-04).
    {"llm-d", "DeepSeek", 1000, 0, 1500},
}};

MeasuredPoint with_published_lengths(MeasuredPoint point) {
  if (point.prompt > 0) return point;
  for (const PublishedLengths& known : published_lengths) {
    if (!contains(point.operation, known.operation) || !contains(point.model, known.model))
      continue;
    point.prompt = known.prompt;
    point.output = known.output;
    point.context = known.context;
  }
  return point;
}

struct Plan {
  int dp, tp, ep, replicas;
  int gpus() const { return dp * tp; }
};

/// As stated; otherwise one GPU for what fits into it (Mixtral in fp8), else data-parallel
/// attention and expert parallelism over a node, or the group.
Plan plan_of(const MeasuredPoint& point) {
  if (point.tp == 0 && point.model.starts_with("Mixtral")) return {1, 1, 1, point.gpus};
  if (point.tp > 0) {
    const int dp = std::max(1, point.dp);
    return {dp, point.tp, std::max(1, point.ep), 1};
  }
  const int group = point.ep > 0 ? point.ep : std::min(8, point.gpus);
  return {group, 1, group, point.gpus / group};
}

/// The experiment that a point describes, at this many sequences per rank and this many requests.
std::optional<Json> experiment_json(const MeasuredPoint& point, const std::filesystem::path& root,
                                    int sequences, int requests) {
  const Engine& engine = engine_of(point);
  const auto precision = precision_of(point, engine);
  const std::string gpu = gpu_file(point.gpu);
  const std::string model = model_file(point.model);
  if (!precision || gpu.empty() || model.empty()) return std::nullopt;
  const Plan plan = plan_of(point);
  const int nodes = std::max(1, point.nodes);
  const int per_node = std::max(1, point.gpus / nodes);
  const bool rack = point.gpu.starts_with("GB200");
  Json gpu_json = ConfigNode::from_file(root / "hardware/gpus" / (gpu + ".json")).json();
  Json dispatch = "all_to_all";
  if (is_wide_ep(point)) {
    dispatch = {{"type", "all_to_all"}, {"precision", "fp8_block"}};
    Json& kernels = gpu_json["kernels"];
    if (kernels.contains("masked_grouped_gemm"))
      kernels["grouped_gemm"] = kernels["masked_grouped_gemm"];
  }
  const Json network =
      ConfigNode::from_file(root / "hardware/clusters/h100x32.json").json().at("network");
  const int used = plan.gpus() > per_node ? plan.gpus() : per_node;
  Json json{
      {"cluster",
       {{"name", point.gpu},
        {"source", point.id},
        {"gpu", gpu_json},
        {"gpus_per_node", per_node},
        {"nodes", std::max(1, used / per_node)},
        {"scale_up_domain", rack ? used : per_node},
        {"network", network}}},
      {"model", (root / "models/zoo" / (model + ".json")).string()},
      {"precision", *precision},
      {"parallel", {{"dp", plan.dp}, {"tp", plan.tp}, {"ep", plan.ep}}},
      {"scheduling",
       {{"type", engine.scheduler}, {"max_num_batched_tokens", 8192}, {"max_num_seqs", sequences}}},
      {"workload",
       {{"arrivals", {{"type", "closed_loop"}, {"concurrency", std::max(1, requests / 2)}}},
        {"lengths",
         {{"type", "fixed"},
          {"prompt", std::max(1, static_cast<int>(point.prompt))},
          {"output", std::max(1, static_cast<int>(point.output))}}},
        {"gating", gating_of(point)},
        {"requests", requests}}},
      {"placement", "linear"},
      {"token_routing", {{"prefill", "even"}, {"decode", "even"}}},
      {"dispatch", {{"prefill", dispatch}, {"decode", dispatch}}},
      {"charges", {{"host_overhead", engine.host_overhead}}},
      {"measurement", {{"expert_counts", false}}}};
  // 0.95 of what the weights leave free, hence at least 0.95 of all (perf-overview.md).
  if (contains(point.operation, "trtllm-bench"))
    json["kv_cache"] = {{"gpu_memory_utilization", .95}};
  if (contains(point.operation, "EPLB") || contains(point.operation, "production"))
    json["placement"] = {{"type", "eplb"}, {"replication", 1.125}};
  return json;
}

/// One step: every rank decodes `sequences` at `context` and computes `prompt_tokens` of prompts.
struct SteadyStep {
  int sequences = 0;
  double context = 0;
  double prompt = 0;         ///< new tokens of one prompt
  double cached = 0;         ///< tokens before them that another request has left in the KV cache
  double prompt_tokens = 0;  ///< per rank
};

double step_seconds(const Experiment& e, const SteadyStep& step) {
  RowSource rows(e.trace, e.prefill_trace, e.bind_odd_only, e.seed);
  StepModel model = step_model(e);
  StepBatch batch;
  std::int64_t prompt_tokens = 0;
  for (int r = 0; r < e.parallel.dp; ++r) {
    batch.ranks.emplace_back();
    for (double left = step.prompt_tokens; left >= 1; left -= step.prompt) {
      const double chunk = std::min(left, step.prompt);
      const auto tokens = static_cast<std::int32_t>(std::llround(std::max(2.0, chunk)));
      // A chunk stands halfway into its prompt, on average.
      const auto before = static_cast<std::int32_t>(step.cached + (step.prompt - chunk) / 2);
      add_sequence(batch, rows, rows.bind(), Phase::prefill, {tokens, before}, 0);
      prompt_tokens += tokens;
    }
    for (int i = 0; i < step.sequences; ++i) {
      const auto context = static_cast<std::int32_t>(step.context);
      add_sequence(batch, rows, rows.bind(), Phase::decode, {1, context}, i);
    }
  }
  const StepKind kind = step.sequences == 0  ? StepKind::prefill
                        : prompt_tokens == 0 ? StepKind::decode
                                             : StepKind::mixed;
  StepCost cost;
  model.price(batch, e.rules.of(rule_kind(e.mixed, kind, prompt_tokens)), e.placement, rows, cost);
  return cost.total.count();
}

/// Two micro-batches like `half`, one computing while the other is on the links. Measured on
/// SGLang's prefill with as many tokens: 27 to 35 % more throughput than one after the other (LMSYS
/// blog 2025-05-05, "Ablation Study: Two-batch Overlap").
double two_batch_seconds(const Experiment& e, const SteadyStep& half) {
  constexpr double gain = 1.31;
  return 2 * step_seconds(e, half) / gain;
}

/// Requests of a run of trtllm-bench, which all wait at its start, by their lengths (TensorRT-LLM,
/// perf-overview.md, "Preparing a Dataset"); 0: the run is long.
int requests_of(const MeasuredPoint& point) {
  if (!contains(point.operation, "trtllm-bench")) return 0;
  return std::max(point.prompt, point.output) > 4096 ? 1500 : 3000;
}

/// Seconds in which a rank with room for `room` sequences answers all its `requests`: as all have
/// the same length, they come and go in waves.
double seconds_of_waves(const Experiment& e, const MeasuredPoint& point, int room, int requests) {
  const auto wave_seconds = [&](int sequences) {
    const double tokens = sequences * point.prompt;
    const double chunk = std::min<double>(tokens, e.scheduler->max_num_batched_tokens());
    const double chunk_seconds = step_seconds(e, {.prompt = point.prompt, .prompt_tokens = chunk});
    const double decode_seconds =
        step_seconds(e, {.sequences = sequences, .context = point.prompt + point.output / 2});
    return tokens / chunk * chunk_seconds + point.output * decode_seconds;
  };
  const int full = requests / room;
  const int last = requests % room;
  return (full > 0 ? full * wave_seconds(room) : 0) + (last > 0 ? wave_seconds(last) : 0);
}

/// MLPerf's limit on the time per output token of its Server scenario, v5.1.
double step_limit(const MeasuredPoint& point) {
  if (!contains(point.operation, "Server")) return 1e9;
  return contains(point.model, "Mixtral") ? 0.200 : 0.080;
}

Prediction best_throughput(const Experiment& e, const MeasuredPoint& point, const Plan& plan) {
  const double context = point.context > 0 ? point.context : point.prompt + point.output / 2;
  // TensorRT-LLM admits a request when its whole output will fit (GUARANTEED_NO_EVICT, its
  // default).
  const double held = point.output > 0 ? point.prompt + point.output : context;
  const std::int64_t blocks = e.kv_layout.blocks_for(static_cast<std::int64_t>(held));
  const int ranks = plan.dp * plan.replicas;
  const int requests = (requests_of(point) + ranks - 1) / ranks;  // of one rank
  const bool total = point.metric == "output_tok_s_total";
  Prediction best;
  for (int sequences = point.batch > 0 ? static_cast<int>(point.batch) : 16;
       (best.value == 0 || sequences * blocks <= e.memory.kv_blocks) && sequences <= 4096;
       sequences *= 2) {
    SteadyStep step{.sequences = sequences, .context = context, .prompt = point.prompt};
    if (point.output > 0) step.prompt_tokens = sequences * point.prompt / point.output;
    const double seconds = requests > 0 ? seconds_of_waves(e, point, sequences, requests) /
                                              requests / point.output * sequences
                                        : step_seconds(e, step);
    const double rate = sequences * plan.dp / seconds / plan.gpus() * (total ? point.gpus : 1);
    if (rate > best.value && seconds <= step_limit(point))
      best = {rate, fmt::format("{} sequences per rank; step {:.2f} ms", sequences, seconds * 1e3)};
    if (point.batch > 0 || (requests > 0 && sequences >= requests)) break;
  }
  return best;
}

/// Prompt tokens per second and node of 8 GPUs, 16,384 tokens per rank and step in two
/// micro-batches of half of them (LMSYS blog 2025-05-05, of SGLang's and of DeepSeek's
/// deployments). DeepSeek's day (open-infra-index): 608 G tokens in, 56.3 % of them cached, 168 G
/// out at a mean context of 4,989; so prompts of 4,989 / (1 + 168 / 608 / 2) tokens.
Prediction prefill_rate(const Experiment& e, const MeasuredPoint& point) {
  constexpr int gpus_per_node = 8;
  const double tokens = point.tokens > 0 ? point.tokens : 16384;
  const bool production = point.prompt <= 0;
  const double whole = production ? 4989 / (1 + 168.0 / 608 / 2) : point.prompt;
  const double cached = production ? std::round(.563 * whole) : 0;
  const double prompt = std::round(whole - cached);
  const double seconds =
      two_batch_seconds(e, {.prompt = prompt, .cached = cached, .prompt_tokens = tokens / 2});
  return {tokens * e.parallel.dp / seconds / e.parallel.gpus() * gpus_per_node,
          fmt::format("{} tokens per GPU in prompts of {} after {}; step {:.2f} ms", tokens, prompt,
                      cached, seconds * 1e3)};
}

}  // namespace

struct ServingPredictor::Runs {
  TraceLibrary traces;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<std::once_flag>> flags;
  std::map<std::string, Json> metrics;

  /// The metrics of a run, simulated by whoever asks first.
  Json of(const Json& config) {
    const std::string key = config.dump();
    std::shared_ptr<std::once_flag> flag;
    {
      const std::lock_guard lock(mutex);
      auto& known = flags[key];
      if (!known) known = std::make_shared<std::once_flag>();
      flag = known;
    }
    std::call_once(*flag, [&] {
      const Experiment e = load_experiment(ConfigNode(config, "validate.json"), traces);
      Json result = run(e).document.at("metrics");
      const std::lock_guard lock(mutex);
      metrics[key] = std::move(result);
    });
    const std::lock_guard lock(mutex);
    return metrics.at(key);
  }
};

ServingPredictor::ServingPredictor(std::filesystem::path root)
    : root_(std::filesystem::absolute(root)), runs_(std::make_unique<Runs>()) {}
ServingPredictor::~ServingPredictor() = default;

Predicted ServingPredictor::predict(const MeasuredPoint& point) {
  const MeasuredPoint stated = with_published_lengths(point);
  const bool online = stated.concurrency > 0;
  const bool lengths = stated.prompt > 0 && (stated.output > 0 || stated.context > 0);
  if (!lengths && stated.category != "prefill")
    return Skipped{"lengths of prompts and outputs not stated"};
  const int concurrency = static_cast<int>(point.concurrency);
  // Two requests for each place in the loop; one is enough where outputs are long, because prompts
  // then take little of the time.
  const auto config = experiment_json(stated, root_, online ? std::max(concurrency, 1) : 4096,
                                      online ? 2 * concurrency : 2);
  if (!config) return Skipped{"GPU, model or precision unknown"};
  if (online) {
    Json run = *config;
    if (stated.output > 4096) run["workload"]["requests"] = concurrency;
    const Json metrics = runs_->of(run);
    const char* name = point.metric == "TTFT" ? "mean_ttft_ms" : "mean_tpot_ms";
    return Prediction{
        metrics.at(name).get<double>(),
        fmt::format("ttft {:.1f} ms; tpot {:.2f} ms", metrics.at("mean_ttft_ms").get<double>(),
                    metrics.at("mean_tpot_ms").get<double>())};
  }
  const Experiment e = load_experiment(ConfigNode(*config, "validate.json"), runs_->traces);
  if (point.category == "prefill") return prefill_rate(e, stated);
  return best_throughput(e, stated, plan_of(stated));
}

}  // namespace moesim
