// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/anchors.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <Eigen/Dense>
#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "hardware/text.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/report/statistics.hpp"
#include "tools/bench/serving_deployment.hpp"

namespace moesim {

namespace {

// Ridge chosen on serving_calibrate.csv. With three or five runs of each deployment as anchors (ten
// draws) TPOT of its other runs is off by 5.7 and 5.2 % in the median. With 1 or 4 it is up to 0.1
// more, with 0.25 it is 6.0 and 5.5, without slopes 6.3 and 6.2 %. Three anchors cannot choose it
// themselves, as two have no slopes. Five and eight did worse when they did (5.3 and 5.1 %, not
// 5.2, 4.9).
constexpr double ridge = 2;
constexpr int slopes_from = 3;

double log_or_zero(double x) { return x > 0 ? std::log(x) : 0; }

Eigen::Vector3d logs(const ServingLoad& load) {
  return {log_or_zero(load.concurrency), log_or_zero(load.prompt), log_or_zero(load.output)};
}

double residual(const AnchorRun& run) { return std::log(run.measured / run.predicted); }

// The factor at the mean of the loads' logarithms, and slopes about it.
AnchorFit fit(std::span<const AnchorRun> runs) {
  Eigen::Vector3d center = Eigen::Vector3d::Zero();
  double mean = 0;
  for (const AnchorRun& run : runs) {
    center += logs(run.load) / static_cast<double>(runs.size());
    mean += residual(run) / static_cast<double>(runs.size());
  }
  Eigen::Matrix3d gram = ridge * Eigen::Matrix3d::Identity();
  Eigen::Vector3d moment = Eigen::Vector3d::Zero();
  for (const AnchorRun& run : runs) {
    const Eigen::Vector3d x = logs(run.load) - center;
    gram += x * x.transpose();
    moment += x * (residual(run) - mean);
  }
  Eigen::Vector3d slope = Eigen::Vector3d::Zero();
  if (std::ssize(runs) >= slopes_from) slope = gram.ldlt().solve(moment);
  return {.factor = std::exp(mean),
          .center = {std::exp(center[0]), std::exp(center[1]), std::exp(center[2])},
          .slope = {slope[0], slope[1], slope[2]},
          .runs = static_cast<int>(runs.size())};
}

// With one run there is nothing to fit without it: the error is that of the bare prediction.
double leave_one_out(std::span<const AnchorRun> runs) {
  std::vector<double> errors;
  for (std::size_t left = 0; left < runs.size(); ++left) {
    std::vector<AnchorRun> others;
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (i != left) others.push_back(runs[i]);
    const double factor = others.empty() ? 1 : fit(others).at(runs[left].load);
    errors.push_back(std::abs(runs[left].predicted * factor / runs[left].measured - 1));
  }
  return median(std::move(errors));
}

bool is_tpot(const MeasuredPoint& point) { return point.metric.starts_with("TPOT"); }
bool is_ttft(const MeasuredPoint& point) { return point.metric.starts_with("TTFT"); }

ServingLoad load_of(const MeasuredPoint& point) {
  return {point.concurrency, point.prompt, point.output};
}

bool predicted(const ValidatedPoint& p) { return !p.skipped() && p.failure.empty(); }

// Key of one deployment's runs: what is asked for and how the GPUs share it, without the figure.
std::string run_of(const MeasuredPoint& p) {
  return fmt::format("{} {} {} {} {} {} {}", p.tp, p.ep, p.dp, p.concurrency, p.prompt, p.output,
                     p.notes);
}

}  // namespace

AnchorFit fit_anchor(std::span<const AnchorRun> runs) {
  if (runs.empty()) return {};
  AnchorFit all = fit(runs);
  all.leave_one_out = leave_one_out(runs);
  return all;
}

void require_ms(std::string_view place, std::string_view figure, double measured,
                double predicted) {
  constexpr double most = 50;  // no prediction of a system that runs is so far off
  if (measured > most * predicted || predicted > most * measured)
    throw ConfigError("{}: {} is {:.4g}, and {:.4g} ms are predicted; ms are expected", place,
                      figure, measured, predicted);
}

std::map<std::string, Anchor> anchors_of(const std::vector<ValidatedPoint>& points) {
  std::map<std::string, std::array<std::vector<AnchorRun>, 2>> runs;
  for (const ValidatedPoint& p : points) {
    if (!predicted(p) || !(is_tpot(p.point) || is_ttft(p.point))) continue;
    const double value = std::get<Prediction>(p.predicted).value;
    runs[deployment_of(p.point)][is_tpot(p.point) ? 0 : 1].push_back(
        {load_of(p.point), p.point.value, value});
  }
  std::map<std::string, Anchor> anchors;
  for (const auto& [deployment, both] : runs)
    anchors[deployment] = {deployment, fit_anchor(both[0]), fit_anchor(both[1])};
  return anchors;
}

namespace {

template <class... Values>
[[noreturn]] void refuse(const MeasuredPoint& p, fmt::format_string<Values...> what,
                         Values&&... values) {
  throw ConfigError("{}: {}", p.place, fmt::format(what, std::forward<Values>(values)...));
}

// "TPOT" or "TTFT", however it is spelled: "tpot", "median_ttft_ms"; "" for anything else.
std::string metric_of(std::string_view name) {
  std::string plain;
  for (const char c : lower(name))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) plain += c;
  for (const std::string_view word : {"median", "mean", "avg", "p50", "ms"})
    if (const std::size_t at = plain.find(word); at != plain.npos) plain.erase(at, word.size());
  return plain == "tpot" ? "TPOT" : plain == "ttft" ? "TTFT" : "";
}

bool names_engine(const MeasuredPoint& p) {
  const std::string operation = lower(p.operation);
  return std::ranges::any_of(serving_engines(), [&](const ServingEngine& engine) {
    return contains(operation, engine.name);
  });
}

std::string zoo_name(const std::string& model, const std::filesystem::path& root) {
  return read_model(ConfigNode::from_file(root / "models/zoo" / (model_file(model) + ".json")))
      .name;
}

// Rules of engines go by how a family's name begins, which an id on HuggingFace or other letters
// hide: the zoo's name then.
std::string as_rules_spell(const std::string& model, const std::filesystem::path& root) {
  constexpr std::size_t beginning = 4;
  const std::string name = zoo_name(model, root);
  const bool is_id = model.find('/') != model.npos;
  return !is_id && model.starts_with(name.substr(0, beginning)) ? model : name;
}

// A row of a run as the rest of the program spells it.
MeasuredPoint stated(MeasuredPoint p, const std::filesystem::path& root) {
  if (p.category != "e2e" && p.category != "disaggregated")
    refuse(p, "category \"{}\" is no serving run; \"e2e\" is expected", p.category);
  const std::string metric = metric_of(p.metric);
  if (metric.empty())
    refuse(p, "metric \"{}\" is not known; TPOT and TTFT are corrected", p.metric);
  p.metric = metric;
  if (const std::string unit = lower(p.unit); !unit.empty() && unit != "ms")
    refuse(p, "unit \"{}\" is not known; ms is expected", p.unit);
  if (gpu_path(p.gpu, root, {}).empty())
    refuse(p, "gpu \"{}\" is not known; `moesim list gpus` names those that are", p.gpu);
  if (model_file(p.model).empty())
    refuse(p, "model \"{}\" is not known; `moesim list models` names those that are", p.model);
  p.model = as_rules_spell(p.model, root);
  p.precision = lower(p.precision);
  std::ranges::replace(p.precision, '-', '_');
  if (!checkpoint_of(p))
    refuse(p,
           "precision \"{}\" of this model is not known; bf16, fp8, fp8_block, nvfp4 and int4 are",
           p.precision);
  if (!names_engine(p))
    refuse(p, "op \"{}\" names no engine, such as \"online serving vllm 0.19.0\"", p.operation);
  constexpr double most = 1e6;
  if (!(p.concurrency >= 1 && p.concurrency <= most) || p.concurrency != std::floor(p.concurrency))
    refuse(p, "concurrency is {}; requests in flight, 1 to 1000000, are expected", p.concurrency);
  constexpr double longest = 1e7;
  if (!(p.prompt >= 1 && p.prompt <= longest && p.output >= 1 && p.output <= longest))
    refuse(p, "isl is {} and osl {}; each is at least 1 token, and at most 10000000", p.prompt,
           p.output);
  if (metric == "TPOT" && p.output < 2)
    refuse(p, "osl is 1: a request of one output token has no TPOT");
  if (p.category == "e2e" && contains(lower(p.operation), "disaggregated"))
    refuse(p,
           "op \"{}\" is of pools; a row of columns such as decode_num_workers "
           "(hardware/README.md) says which",
           p.operation);
  if (p.category == "e2e" && p.tp < 1)
    refuse(p, "tp is 0 or missing: say how the GPUs share the model");
  if (p.category == "e2e" && p.gpus < p.tp * std::max(1, p.dp))
    refuse(p, "n_gpu is {}, but tp {} x dp {} take {}", p.gpus, p.tp, std::max(1, p.dp),
           p.tp * std::max(1, p.dp));
  return p;
}

// Rows of one GPU or model may spell it otherwise: the first spelling counts.
void spell_alike(std::vector<MeasuredPoint>& points) {
  for (MeasuredPoint& p : points) {
    const MeasuredPoint& first = points.front();
    if (gpu_file(p.gpu) == gpu_file(first.gpu)) p.gpu = first.gpu;
    if (model_file(p.model) == model_file(first.model)) p.model = first.model;
    if (deployment_of(p) != deployment_of(first))
      refuse(p, "is of {}, the first row of {}; a file corrects one deployment", deployment_of(p),
             deployment_of(first));
  }
}

std::string layout_of(const MeasuredPoint& p) {
  const ServingPlan plan = plan_of(p);
  const std::string text =
      layout_text({.dp = plan.dp, .tp = plan.tp, .ep = plan.ep}, plan.replicas);
  return p.nodes > 1 ? fmt::format("{} on {} nodes", text, p.nodes) : text;
}

}  // namespace

Anchor anchor_of_serving(const std::filesystem::path& file, const std::filesystem::path& root) {
  std::vector<MeasuredPoint> points;
  for (const MeasuredPoint& p : read_points(file)) points.push_back(stated(p, root));
  if (points.empty()) throw ConfigError("{}: holds no measured run", file.string());
  spell_alike(points);
  const std::vector<ValidatedPoint> runs = validate(points, root);
  for (const ValidatedPoint& run : runs) {
    if (run.skipped())
      refuse(run.point, "cannot be predicted: {}", std::get<Skipped>(run.predicted).reason);
    if (!run.failure.empty()) refuse(run.point, "cannot be predicted: {}", run.failure);
    const double predicted = std::get<Prediction>(run.predicted).value;
    require_ms(run.point.place, run.point.metric, run.point.value, predicted);
  }
  Anchor anchor = anchors_of(runs).begin()->second;
  const MeasuredPoint& first = points.front();
  anchor.model = zoo_name(first.model, root);
  anchor.gpu = read_gpu(ConfigNode::from_file(gpu_path(first.gpu, root, {}))).name;
  std::set<std::string> layouts;
  for (const MeasuredPoint& p : points)
    if (p.category == "e2e") layouts.insert(layout_of(p));
  anchor.layouts.assign(layouts.begin(), layouts.end());
  return anchor;
}

void correct(std::vector<ValidatedPoint>& points, const Anchor& anchor) {
  for (ValidatedPoint& p : points) {
    if (!predicted(p) || deployment_of(p.point) != anchor.deployment) continue;
    const AnchorFit* of = is_tpot(p.point) ? &anchor.tpot : nullptr;
    if (is_ttft(p.point)) of = &anchor.ttft;
    if (of != nullptr) std::get<Prediction>(p.predicted).value *= of->at(load_of(p.point));
  }
}

std::vector<ValidatedPoint> with_anchors(const std::vector<ValidatedPoint>& points, int count) {
  std::map<std::string, std::set<std::string>> runs;
  for (const ValidatedPoint& p : points)
    if (predicted(p)) runs[deployment_of(p.point)].insert(run_of(p.point));
  std::map<std::string, std::set<std::string>> chosen;
  for (const auto& [deployment, all] : runs) {
    if (std::ssize(all) <= count) continue;
    Rng rng(1, "anchors " + deployment);
    std::vector<std::string> names(all.begin(), all.end());
    for (int i = 0; i < count; ++i) {
      const std::size_t which = at(rng.below(names.size()));
      chosen[deployment].insert(names[which]);
      names.erase(names.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  std::vector<ValidatedPoint> anchors, others;
  for (const ValidatedPoint& p : points) {
    const auto found = chosen.find(deployment_of(p.point));
    if (found == chosen.end()) continue;
    (found->second.contains(run_of(p.point)) ? anchors : others).push_back(p);
  }
  for (const auto& [deployment, anchor] : anchors_of(anchors)) correct(others, anchor);
  return others;
}

}  // namespace moesim
