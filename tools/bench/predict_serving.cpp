// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/predict_serving.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "sim/engines/serving_engine.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/step/step_model.hpp"
#include "tools/bench/impossible.hpp"
#include "tools/bench/mlperf.hpp"
#include "tools/bench/serving_deployment.hpp"
#include "tools/bench/trtllm_bench.hpp"

namespace moesim {

namespace {

/// Lengths that sources give elsewhere than in the row.
struct PublishedLengths {
  std::string_view operation, model;
  double prompt, output, context;
};
constexpr std::array<PublishedLengths, 1> published_lengths{{
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

int at_least_one(double tokens) { return std::max(1, static_cast<int>(tokens)); }

/// Waves of requests that are simulated of a run: all of a short one. Of a long one it is the
/// first, which finds the engine empty, the last, and one between for all those between.
int simulated_waves(const MeasuredPoint& point, int waves) {
  constexpr double requests_enough = 32;
  const double wanted = std::max(3.0, std::ceil(requests_enough / point.concurrency));
  return std::min(waves, static_cast<int>(wanted));
}

/// Clients whose requests are all of one length get out of step as prompts and outputs share steps.
/// Groups whose prompts were computed in the same steps do not. Measured first tokens grow with the
/// root of what is in flight. Of 455 such runs of TensorRT-LLM in serving_calibrate.csv they are
/// 29, 24, 20 and 22 % off in groups of .5, .7, 1 and 1.4 times the root. In fours it is 22 %. TPOT
/// is 5.2, 5.3, 5.9 and 6.6 % off.
int clients_in_step(int concurrency) {
  return static_cast<int>(std::lround(std::sqrt(concurrency)));
}

/// The requests of a closed loop: the benchmark's own distribution of lengths. Where all prompts go
/// first, those that began together end together.
Json online_workload(const MeasuredPoint& point, const ServingClient& client, int waves) {
  const int concurrency = at_least_one(point.concurrency);
  Json arrivals = {{"type", "closed_loop"}, {"concurrency", concurrency}};
  if (!client.recipe && !find_engine(engine_of(point).name)->prompts_first) {
    arrivals["staggered"] = true;
    arrivals["clients_in_step"] = clients_in_step(concurrency);
  }
  return {{"arrivals", std::move(arrivals)},
          {"lengths",
           {{"type", client.recipe ? "uniform" : "fixed"},
            {"prompt", at_least_one(point.prompt)},
            {"output", at_least_one(point.output)}}},
          {"requests", concurrency * waves}};
}

Json fixed_workload(const MeasuredPoint& point, int concurrency, int requests) {
  return {{"arrivals", {{"type", "closed_loop"}, {"concurrency", concurrency}}},
          {"lengths",
           {{"type", "fixed"},
            {"prompt", at_least_one(point.prompt)},
            {"output", at_least_one(point.output)}}},
          {"requests", requests}};
}

/// Latencies that the client saw.
struct Latencies {
  double ttft_ms = 0, tpot_ms = 0;
  double output_rate = 0;  ///< tokens per second, in the waves between
};

/// Means over a run of `waves` waves, of which fewer were simulated: those between the first and
/// the last stand for more. The first, which finds the engine empty, counts for clients that begin
/// to measure with it. Others measure long after, when requests of one length have got out of step.
Latencies mean_latencies(std::span<const RequestRecord> requests, std::size_t concurrency,
                         const ServingClient& client) {
  const int waves = client.waves;
  const std::size_t simulated = requests.size() / concurrency;
  const double between = simulated > 2 ? (waves - 2.0) / static_cast<double>(simulated - 2) : 1;
  Latencies mean;
  double ttfts = 0, tpots = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& r = requests[i];
    if (r.state != RequestRecord::State::finished) continue;
    const std::size_t wave = i / concurrency;
    if (wave == 0 && !client.recipe && simulated > 1) continue;
    const double weight = wave == 0 || wave + 1 >= simulated ? 1 : between;
    mean.ttft_ms += weight * to_seconds(r.first_token - r.arrival).count() * 1e3;
    ttfts += weight;
    if (r.output_tokens < 2) continue;
    mean.tpot_ms +=
        weight * to_seconds(r.last_token - r.first_token).count() * 1e3 / (r.output_tokens - 1);
    tpots += weight;
  }
  mean.ttft_ms /= std::max(ttfts, 1e-9);
  mean.tpot_ms /= std::max(tpots, 1e-9);
  return mean;
}

/// Runs whose mean is taken: where few requests meet on front ends that begin at random, how long
/// they wait for a seat is chance.
int draws_of(const Json& config, std::size_t concurrency) {
  constexpr std::size_t few = 64;
  constexpr int draws = 5;
  const bool chance = config.value("/pools/decode/request_routing/front_ends"_json_pointer, 1) > 1;
  return chance && concurrency <= few ? draws : 1;
}

/// A step: every rank decodes `sequences` at `context` and computes `prompt_tokens` of prompts.
struct SteadyStep {
  int sequences = 0;
  double context = 0;
  double prompt = 0;         ///< new tokens of one prompt
  double cached = 0;         ///< tokens before them that another request has left in the KV cache
  double prompt_tokens = 0;  ///< per rank
};

double step_seconds(const Deployment& e, const SteadyStep& step) {
  RowSource rows = typical_rows(e);
  StepModel model = step_model(e);
  StepBatch batch;
  std::int64_t prompt_tokens = 0;
  for (int r = 0; r < e.parallel.dp; ++r) {
    batch.ranks.emplace_back();
    double left = step.prompt_tokens;
    while (left >= 1) {
      const double chunk = std::min(left, step.prompt);
      const auto tokens = static_cast<std::int32_t>(std::llround(std::max(2.0, chunk)));
      // A chunk stands halfway into its prompt, on average.
      const auto before = static_cast<std::int32_t>(step.cached + (step.prompt - chunk) / 2);
      add_sequence(batch, rows, rows.bind(), Phase::prefill, {tokens, before}, 0);
      prompt_tokens += tokens;
      left -= step.prompt;
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
  model.price({batch, e.rules.of(rule_kind(e.mixed, kind, prompt_tokens)), e.placement, rows},
              cost);
  return cost.total.count();
}

/// Unit of a rate: a node of 8 GPUs, the whole deployment, or one GPU.
struct RateOf {
  std::string_view what;
  double gpus;
};
RateOf rate_of(const MeasuredPoint& point) {
  constexpr double gpus_per_node = 8;
  if (contains(point.unit, "/node") || contains(point.metric, "per_node"))
    return {"node", gpus_per_node};
  if (point.metric == "output_tok_s_total") return {"deployment", double(point.gpus)};
  return {"GPU", 1};
}

Prediction best_throughput(const Deployment& e, const MeasuredPoint& point,
                           const ServingPlan& plan) {
  const double context = point.context > 0 ? point.context : point.prompt + point.output / 2;
  // TensorRT-LLM admits a request when its whole output will fit (GUARANTEED_NO_EVICT, its
  // default).
  const double held = point.output > 0 ? point.prompt + point.output : context;
  const std::int64_t blocks = e.kv_layout.blocks_for(static_cast<std::int64_t>(held));
  const RateOf of = rate_of(point);
  Prediction best;
  for (int sequences = point.batch > 0 ? static_cast<int>(point.batch) : 16;
       (best.value == 0 || sequences * blocks <= e.memory.kv_blocks) && sequences <= 4096;
       sequences *= 2) {
    SteadyStep step{.sequences = sequences, .context = context, .prompt = point.prompt};
    // Who only decodes gets prompts computed.
    if (point.output > 0 && !contains(point.operation, "decode"))
      step.prompt_tokens = sequences * point.prompt / point.output;
    const double seconds = step_seconds(e, step);
    const double rate = sequences * plan.dp / seconds / plan.gpus() * of.gpus;
    if (rate > best.value)
      best = {rate, fmt::format("tokens/s of a {}; {} sequences per rank; step {:.2f} ms", of.what,
                                sequences, seconds * 1e3)};
    if (point.batch > 0) break;
  }
  return best;
}

/// Prompt tokens per second. DeepSeek's day (open-infra-index): 608 G tokens in, 56.3 % cached, 168
/// G out at a mean context of 4,989; so prompts of 4,989 / (1 + 168 / 608 / 2) tokens.
Prediction prefill_rate(const Deployment& e, const MeasuredPoint& point) {
  const double tokens = tokens_of_prefill(point);
  const RateOf of = rate_of(point);
  const bool production = point.prompt <= 0;
  const double whole = production ? 4989 / (1 + 168.0 / 608 / 2) : point.prompt;
  const double cached = production ? std::round(.563 * whole) : 0;
  const double prompt = std::round(whole - cached);
  const double seconds =
      step_seconds(e, {.prompt = prompt, .cached = cached, .prompt_tokens = tokens});
  return {
      tokens * e.parallel.dp / seconds / e.parallel.gpus() * of.gpus,
      fmt::format("tokens/s of a {}; {} tokens per rank in prompts of {} after {}; step {:.2f} ms",
                  of.what, tokens, prompt, cached, seconds * 1e3)};
}

}  // namespace

struct ServingPredictor::Runs {
  TraceLibrary traces;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<std::once_flag>> flags;
  std::map<std::string, Latencies> seen;
  std::set<std::shared_ptr<const KernelTables>> tables;  // kept for the runs that follow

  /// A run's output tokens a second and GPU from its start to its last token, and how long that is.
  struct Rate {
    double per_gpu = 0, seconds = 0;
  };
  Rate output_rate(const Json& config) {
    const Experiment e = load_experiment(ConfigNode(config, "validate.json"), traces);
    RequestLog log;
    std::array<RunObserver*, 1> observers{&log};
    run(e, {}, observers);
    double tokens = 0, seconds = 0;
    for (const RequestRecord& r : log.requests()) {
      tokens += r.output_tokens;
      seconds = std::max(seconds, to_seconds(r.last_token).count());
    }
    return {tokens / seconds / gpus_of(e), seconds};
  }

  /// Latencies that clients of a run see, simulated for the first point that asks.
  Latencies of(const Json& config, const ServingClient& client) {
    const std::string key = config.dump();
    std::shared_ptr<std::once_flag> flag;
    {
      const std::lock_guard lock(mutex);
      auto& known = flags[key];
      if (!known) known = std::make_shared<std::once_flag>();
      flag = known;
    }
    std::call_once(*flag, [&] {
      const auto concurrency =
          config.at("/workload/arrivals/concurrency"_json_pointer).get<std::size_t>();
      Latencies mean;
      const int draws = draws_of(config, concurrency);
      for (int draw = 1; draw <= draws; ++draw) {
        Json drawn = config;
        drawn["seed"] = draw;
        const Experiment e = load_experiment(ConfigNode(drawn, "validate.json"), traces);
        RequestLog log;
        std::array<RunObserver*, 1> observers{&log};
        run(e, {}, observers);
        const Latencies latencies = mean_latencies(log.requests(), concurrency, client);
        mean.ttft_ms += latencies.ttft_ms / draws;
        mean.tpot_ms += latencies.tpot_ms / draws;
        const std::lock_guard lock(mutex);
        tables.insert(e.decode().cluster.gpu.tables);
      }
      const std::lock_guard lock(mutex);
      seen[key] = mean;
    });
    const std::lock_guard lock(mutex);
    return seen.at(key);
  }
};

ServingPredictor::ServingPredictor(const std::filesystem::path& root, Json overrides, GpuFiles gpus)
    : root_(std::filesystem::absolute(root)),
      overrides_(std::move(overrides)),
      gpus_(std::move(gpus)),
      runs_(std::make_unique<Runs>()) {}
ServingPredictor::~ServingPredictor() = default;

Predicted ServingPredictor::online(const MeasuredPoint& point, Json config) {
  const ServingClient client = client_of(point);
  config["workload"].update(online_workload(point, client, simulated_waves(point, client.waves)));
  config["fidelity"] = "sampled";
  const Latencies seen = runs_->of(config, client);
  return Prediction{point.metric == "TTFT" ? seen.ttft_ms : seen.tpot_ms,
                    fmt::format("ttft {:.1f} ms; tpot {:.3f} ms", seen.ttft_ms, seen.tpot_ms)};
}

/// All requests wait as the run begins.
Predicted ServingPredictor::bench(const MeasuredPoint& point, Json config) {
  const int requests = requests_of_bench(point);
  config["workload"].update(fixed_workload(point, requests, requests));
  config["fidelity"] = "sampled";
  const Experiment first = load_experiment(ConfigNode(config, "validate.json"), runs_->traces);
  const BenchLimits limits = trtllm_bench_limits(first.decode(), point);
  config["scheduling"] = {{"max_num_seqs", limits.max_batch_size},
                          {"max_num_batched_tokens", limits.max_num_tokens}};
  config["cuda_graph"] = {{"sizes", limits.graph_sizes}};
  const double rate = runs_->output_rate(config).per_gpu;
  return Prediction{
      rate, fmt::format("tokens/s of a GPU; {} requests; {} sequences and {} tokens per rank",
                        requests, limits.max_batch_size, limits.max_num_tokens)};
}

std::string_view ServingPredictor::why_impossible(const MeasuredPoint& point,
                                                  const Json& config) const {
  return moesim::why_impossible(
      point, read_model(ConfigNode::from_file(config.at("model").get<std::string>())),
      read_gpu(ConfigNode::from_file(gpu_path(point.gpu, root_, gpus_))),
      bytes_of_weight(*checkpoint_of(point)));
}

/// Predicts one replica with its share of the data set, several times where that takes less than
/// the rules ask for. A longer run is faster, as its end is a smaller part, so that one more try is
/// not always enough.
Predicted ServingPredictor::mlperf(const MeasuredPoint& point, Json config) {
  if (is_mlperf_server(point))
    return Skipped{"how long the run took is not stated, and its end decides the rate"};
  const MlperfTask task = *mlperf_task(point);
  config["fidelity"] = "sampled";
  int requests = at_least_one(double(task.samples) * plan_of(point).gpus() / point.gpus);
  Runs::Rate rate;
  for (int tries = 0; tries < 5 && rate.seconds < mlperf_seconds; ++tries) {
    if (tries > 0) requests = static_cast<int>(std::ceil(requests * mlperf_seconds / rate.seconds));
    config["workload"].update(mlperf_workload(task, requests));
    rate = runs_->output_rate(config);
  }
  const RateOf of = rate_of(point);
  return Prediction{rate.per_gpu * of.gpus,
                    fmt::format("tokens/s of a {}; {} requests of a replica in {:.0f} s", of.what,
                                requests, rate.seconds)};
}

Predicted ServingPredictor::predict(const MeasuredPoint& point) {
  const MeasuredPoint stated = with_published_lengths(point);
  const bool lengths =
      mlperf_task(stated) || (stated.prompt > 0 && (stated.output > 0 || stated.context > 0));
  if (!lengths && stated.category != "prefill")
    return Skipped{"lengths of prompts and outputs not stated"};
  const bool apart = stated.category == "disaggregated";
  DeploymentJson deployment =
      apart ? pools_json(stated, root_, gpus_) : deployment_json(stated, root_, gpus_);
  if (!deployment.unknown.empty()) return Skipped{deployment.unknown};
  if (const auto why = why_impossible(stated, deployment.experiment); !why.empty())
    return Skipped{std::string(why)};
  deployment.experiment.merge_patch(overrides_);
  if (is_trtllm_bench(stated)) return bench(stated, std::move(deployment.experiment));
  if (mlperf_task(stated)) return mlperf(stated, std::move(deployment.experiment));
  if (stated.concurrency > 0) return online(stated, std::move(deployment.experiment));
  Json& config = deployment.experiment;
  config["workload"].update(fixed_workload(stated, 1, 2));
  config["scheduling"]["max_num_seqs"] = 4096;
  const Experiment e = load_experiment(ConfigNode(config, "validate.json"), runs_->traces);
  if (point.category == "prefill") return prefill_rate(e.decode(), stated);
  return best_throughput(e.decode(), stated, plan_of(stated));
}

}  // namespace moesim
