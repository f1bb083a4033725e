// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/serving_runs.hpp"

#include <fmt/format.h>

#include "tools/bench/serving_deployment.hpp"

namespace moesim {

namespace {

enum class Figure { ttft, tpot, per_gpu, other };

Figure figure_of(const MeasuredPoint& point) {
  if (point.category != "e2e" && point.category != "disaggregated") return Figure::other;
  if (point.metric.starts_with("TTFT")) return Figure::ttft;
  if (point.metric.starts_with("TPOT")) return Figure::tpot;
  return point.metric == "output_tok_s_per_gpu" ? Figure::per_gpu : Figure::other;
}

std::string name_of_run(const std::string& id) {
  return id.ends_with("-tpot") || id.ends_with("-ttft") ? id.substr(0, id.size() - 5) : id;
}

std::string layout_of(const MeasuredPoint& point) {
  if (point.category == "disaggregated") return "pools";
  const ServingPlan plan = plan_of(point);
  std::string text = plan.replicas > 1 ? fmt::format("{} x ", plan.replicas) : "";
  if (plan.dp > 1) text += fmt::format("DP{}", plan.dp);
  if (plan.tp > 1 || plan.dp == 1) text += fmt::format("{}TP{}", plan.dp > 1 ? " " : "", plan.tp);
  if (plan.ep > 1) text += fmt::format(" EP{}", plan.ep);
  return text;
}

// All but the speeds. Precisions that are one checkpoint are one: gpt-oss's "fp4" is its "mxfp4
// w4a16".
ServingRun described(const MeasuredPoint& point) {
  ServingRun run{.id = name_of_run(point.id),
                 .gpu = gpu_file(point.gpu),
                 .model = point.model,
                 .engine = engine_of(point),
                 .precision = point.precision,
                 .layout = layout_of(point),
                 .gpus = point.gpus,
                 .concurrency = point.concurrency,
                 .prompt = point.prompt,
                 .output = point.output,
                 .pools = point.category == "disaggregated",
                 .fitted = point.fitted};
  if (run.gpu.empty()) run.gpu = point.gpu;
  if (run.gpus == 0) run.gpus = plan_of(point).gpus() * plan_of(point).replicas;
  if (const auto checkpoint = checkpoint_of(point)) {
    const auto experts = checkpoint->at("experts").get<std::string>();
    run.weight_bytes = bytes_of_weight(*checkpoint);
    run.precision = experts;
    if (checkpoint->contains("activations"))
      run.precision += "-" + checkpoint->at("activations").get<std::string>();
  }
  return run;
}

void set(ServingSpeed& speed, Figure figure, double value, const std::string& id) {
  double& place = figure == Figure::ttft   ? speed.ttft_ms
                  : figure == Figure::tpot ? speed.tpot_ms
                                           : speed.per_gpu;
  if (place > 0) throw ConfigError("points: a figure of run {} is there twice", id);
  place = value;
}

bool whole(const ServingSpeed& speed) {
  return speed.per_gpu > 0 || (speed.ttft_ms > 0 && speed.tpot_ms > 0);
}

}  // namespace

double tokens_per_gpu(const ServingRun& run, double ttft_ms, double tpot_ms) {
  const double request_s = (ttft_ms + tpot_ms * (run.output - 1)) / 1e3;
  return run.concurrency * run.output / request_s / run.gpus;
}

std::vector<ServingRun> serving_runs(const std::vector<ValidatedPoint>& points,
                                     const std::filesystem::path& root, const GpuFiles& gpus) {
  std::vector<ServingRun> runs;
  std::map<std::string, std::size_t> place_of;
  std::map<std::string, double> bandwidths;
  for (const ValidatedPoint& p : points) {
    const Figure figure = figure_of(p.point);
    if (figure == Figure::other || p.skipped() || !p.failure.empty() || p.by_sheet) continue;
    ServingRun run = described(p.point);
    const std::string name = fmt::format("{} {} {} {} {} {}", run.id, deployment_of(p.point),
                                         run.layout, run.concurrency, run.prompt, run.output);
    const auto [place, is_new] = place_of.emplace(name, runs.size());
    if (is_new) runs.push_back(std::move(run));
    ServingRun& known = runs[place->second];
    set(known.measured, figure, p.point.value, known.id);
    set(known.predicted, figure, std::get<Prediction>(p.predicted).value, known.id);
    if (const auto file = gpu_path(p.point.gpu, root, gpus); is_new && !file.empty()) {
      double& bandwidth = bandwidths[p.point.gpu];
      if (bandwidth == 0) bandwidth = read_gpu(ConfigNode::from_file(file)).hbm_bandwidth.value();
      known.hbm_bandwidth = bandwidth;
    }
  }
  std::erase_if(runs, [](const ServingRun& run) { return !whole(run.measured); });
  for (ServingRun& run : runs) {
    for (ServingSpeed* speed : {&run.measured, &run.predicted}) {
      if (speed->per_gpu == 0) speed->per_gpu = tokens_per_gpu(run, speed->ttft_ms, speed->tpot_ms);
    }
  }
  return runs;
}

}  // namespace moesim
