// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_client.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/shipped.hpp"
#include "hardware/text.hpp"
#include "models/checkpoints.hpp"
#include "models/moe_model.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/report/objectives.hpp"
#include "sim/serving/simulator.hpp"

namespace moesim {

// ---- what a client measures: vllm/benchmarks/serve.py, calculate_metrics() ----

void BenchClient::step_ended(const StepRecord& record, Time) {
  for (const TokenGap& gap : record.gaps)
    itl_.insert(itl_.end(), gap.tokens, to_seconds(gap.length).count() * 1e3);
}

void BenchClient::request_left(std::uint32_t, const RequestRecord& request) {
  if (request.state != RequestLife::State::finished) return;
  const Latency latency = latency_of(request, anchored_ttft_);
  ttft_.push_back(latency.ttft);
  if (latency.tpot) tpot_.push_back(*latency.tpot);
  e2el_.push_back(latency.e2el);
  prompts_ += request.prompt_tokens;
  outputs_ += request.output_tokens;
  first_sent_ = std::min(first_sent_, request.arrival);
  ended_s_ = std::max(ended_s_, to_seconds(request.arrival - Time{}).count() + latency.e2el / 1e3);
}

double BenchClient::seconds() const { return ended_s_ - to_seconds(first_sent_ - Time{}).count(); }

double BenchClient::in_flight() const {
  return std::accumulate(e2el_.begin(), e2el_.end(), 0.0) / 1e3 / seconds();
}

namespace {

std::optional<double> statistic(const std::vector<double>& values, std::string_view name) {
  if (values.empty()) return std::nullopt;
  if (name == "median") return interpolated(values, .5);
  if (name == "min") return std::ranges::min(values);
  if (name == "max") return std::ranges::max(values);
  const Summary summary = summarize(values);
  if (name == "mean") return summary.mean;
  if (name == "std") return summary.std;
  if (!name.starts_with('p')) return std::nullopt;
  const auto percent = try_number<double>(name.substr(1));
  if (!percent || !(*percent >= 0 && *percent <= 100)) return std::nullopt;
  return interpolated(values, *percent / 100);
}

}  // namespace

std::optional<double> BenchClient::figure(std::string_view name) const {
  if (e2el_.empty()) return std::nullopt;
  if (name == "request_throughput") return double(e2el_.size()) / seconds();
  if (name == "input_throughput") return prompts_ / seconds();
  if (name == "output_throughput") return outputs_ / seconds();
  if (name == "total_token_throughput") return (prompts_ + outputs_) / seconds();
  const std::size_t cut = name.find('_');
  if (cut == name.npos) return std::nullopt;
  const std::string_view of = name.substr(cut + 1);
  const std::vector<double>* values = of == "ttft_ms"   ? &ttft_
                                      : of == "tpot_ms" ? &tpot_
                                      : of == "itl_ms"  ? &itl_
                                      : of == "e2el_ms" ? &e2el_
                                                        : nullptr;
  return values == nullptr ? std::nullopt : statistic(*values, name.substr(0, cut));
}

namespace {

Experiment loaded(const BenchRun& measured, const ConfigNode& experiment, TraceLibrary& traces,
                  bool bare) {
  const ConfigNode under(under_load_of(measured, experiment.json(), bare), experiment.file());
  return load_experiment(under, traces);
}

BenchClient simulated(const BenchRun& measured, const Experiment& experiment) {
  BenchClient client(experiment.decode().anchored_ttft);
  RunObserver* const observers[] = {&client};
  run(experiment, {}, observers);
  if (!client.figure("mean_e2el_ms"))
    throw ConfigError(
        "{}: none of its {} requests, of {:.0f} and {:.0f} tokens, can be served by "
        "the experiment: they are longer than its context or its KV cache",
        measured.where, measured.requests, measured.prompt, measured.output);
  return client;
}

}  // namespace

namespace {

// Remark on a benchmark of another model, or of a checkpoint in another precision. Empty where the
// model is the deployment's, or not known.
std::string served_otherwise(const BenchRun& measured, const Deployment& deployment) {
  const auto file = shipped_file(Shipped::model, measured.model);
  if (measured.model.empty() || !file) return "";
  const ConfigNode node = ConfigNode::from_file(*file);
  const double theirs = count_parameters(read_model(node)).total,
               ours = count_parameters(deployment.model).total;
  if (std::abs(theirs / ours - 1) > .01)
    return fmt::format("the benchmark was of {}, the deployment is of {}", measured.model,
                       deployment.model.name);
  for (const auto& [precision, id] : read_checkpoints(node))
    if (lower(id) == lower(measured.model) && precision != deployment.precision.experts)
      return fmt::format(
          "the benchmark was of {}, whose experts are in {}; the deployment's are in {}",
          measured.model, precision_names[at(precision)],
          precision_names[at(deployment.precision.experts)]);
  return "";
}

}  // namespace

BenchComparison compare_with_bench(const BenchRun& measured, const ConfigNode& experiment,
                                   TraceLibrary& traces) {
  BenchComparison comparison{measured.where, {}, measured.remarks};
  comparison.remarks.insert(
      comparison.remarks.begin(),
      fmt::format("simulated: {}, {} requests, each of {:.0f} and {:.0f} tokens",
                  load_text(measured.load), measured.requests, measured.prompt, measured.output));
  const Experiment loaded_here = loaded(measured, experiment, traces, false);
  if (std::string other = served_otherwise(measured, loaded_here.decode()); !other.empty())
    comparison.remarks.push_back(std::move(other));
  const BenchClient client = simulated(measured, loaded_here);
  for (const std::string_view of : {"_throughput", "_ttft_ms", "_tpot_ms", "_itl_ms", "_e2el_ms"})
    for (const auto& [name, value] : measured.figures)
      if (const auto predicted = client.figure(name); predicted && name.ends_with(of))
        comparison.rows.push_back({name, value, *predicted});
  if (comparison.rows.empty())
    throw ConfigError(
        "{}: has no figure to compare with a simulated run, such as \"median_tpot_ms\"",
        measured.where);
  return comparison;
}

// ---- what runs say of predictions ----

namespace {

enum class Kind { tpot, ttft };

// The name of the figure that a run has of a kind; null: none.
const char* figure_of(const BenchRun& measured, Kind kind) {
  constexpr std::array<std::array<const char*, 2>, 2> names{
      {{"median_tpot_ms", "mean_tpot_ms"}, {"median_ttft_ms", "mean_ttft_ms"}}};
  for (const char* name : names[at(kind)])
    if (measured.figures.contains(name)) return name;
  return nullptr;
}

// A run whose steps take so many times as long as predicted.
struct Stretched {
  double factor = 1;
  BenchClient client{};
};

// Finds the run with the TPOT that was measured. TPOT grows as much as the factor on step times in
// a closed loop. In an open one it grows more: longer steps mean more requests in flight. So the
// factor is searched: regula falsi (Illinois) in logarithms. It is 1 where predictions are right.
Stretched stretched_to(const BenchRun& measured, Experiment experiment) {
  constexpr double same = 1e-6, near = 3e-4;
  constexpr int most_runs = 14;
  struct End {
    double x, y;  // logarithms: of the factor, and of the TPOT over the one that was measured
  };
  const char* const figure = figure_of(measured, Kind::tpot);
  Stretched best;
  double least = std::numeric_limits<double>::infinity(), x = 0;
  std::array<std::optional<End>, 2> ends;  // too short, too long
  std::optional<std::size_t> last;
  for (int runs = 0; runs < most_runs; ++runs) {
    for (Deployment& pool : experiment.pools) pool.anchored_tpot = std::exp(x);
    Stretched tried{std::exp(x), simulated(measured, experiment)};
    const double y =
        std::log(tried.client.figure(figure).value_or(0) / measured.figures.at(figure));
    if (!std::isfinite(y))
      throw ConfigError("{}: the simulated run has no {}", measured.where, figure);
    if (std::abs(y) < least) least = std::abs(y), best = std::move(tried);
    if (least <= (runs == 0 ? same : near)) break;
    const std::size_t side = y > 0 ? 1 : 0;
    if (last == side && ends[1 - side]) ends[1 - side]->y /= 2;
    ends[side] = End{x, y}, last = side;
    if (!ends[1 - side]) {
      x -= y;
      continue;
    }
    const auto [low, high] = std::pair(*ends[0], *ends[1]);
    if (high.x - low.x <= near) break;
    x = (low.x * high.y - high.x * low.y) / (high.y - low.y);
  }
  return best;
}

// A run that was measured, and what it says.
struct Lesson {
  const BenchRun& measured;
  Experiment experiment;  // bare
  AnchorRun tpot;
  std::optional<AnchorRun> ttft;
};

Lesson lesson_of(const BenchRun& measured, const ConfigNode& node, TraceLibrary& traces) {
  Lesson lesson{measured, loaded(measured, node, traces, true), {}, {}};
  if (const std::string other = served_otherwise(measured, lesson.experiment.decode());
      !other.empty())
    throw ConfigError("{}: {}; an anchor is of one model", measured.where, other);
  const Stretched found = stretched_to(measured, lesson.experiment);
  const char* const tpot = figure_of(measured, Kind::tpot);
  require_ms(measured.where, tpot, measured.figures.at(tpot),
             measured.figures.at(tpot) / found.factor);
  const auto in_flight = measured.load.in_flight.value_or(measured.requests);
  const ServingLoad load{measured.load.rate ? found.client.in_flight() : double(in_flight),
                         measured.prompt, measured.output};
  lesson.tpot = {load, found.factor, 1};
  const char* const first = figure_of(measured, Kind::ttft);
  if (first == nullptr) return lesson;
  if (const auto simulated = found.client.figure(first); simulated && *simulated > 0) {
    require_ms(measured.where, first, measured.figures.at(first), *simulated);
    lesson.ttft = AnchorRun{load, found.factor * measured.figures.at(first), *simulated};
  }
  return lesson;
}

Anchor fitted(const std::vector<Lesson>& lessons, const Lesson* without) {
  std::vector<AnchorRun> tpot, ttft;
  for (const Lesson& lesson : lessons) {
    if (&lesson == without) continue;
    tpot.push_back(lesson.tpot);
    if (lesson.ttft) ttft.push_back(*lesson.ttft);
  }
  return {.deployment = "", .tpot = fit_anchor(tpot), .ttft = fit_anchor(ttft)};
}

// How far off runs are that are simulated with the corrections of the others.
void leave_one_out(const std::vector<Lesson>& lessons, Anchor& anchor) {
  std::array<std::vector<double>, 2> errors;
  for (const Lesson& left : lessons) {
    Experiment experiment = left.experiment;
    const Anchor others = fitted(lessons, &left);
    const double in_flight = left.measured.load.rate ? 0 : left.tpot.load.concurrency;
    for (Deployment& pool : experiment.pools)
      pool.correct(others, {in_flight, left.tpot.load.prompt, left.tpot.load.output});
    const BenchClient client = simulated(left.measured, experiment);
    for (const Kind kind : {Kind::tpot, Kind::ttft}) {
      const char* const figure = figure_of(left.measured, kind);
      if (figure == nullptr) continue;
      if (const auto predicted = client.figure(figure))
        errors[at(kind)].push_back(std::abs(*predicted / left.measured.figures.at(figure) - 1));
    }
  }
  anchor.tpot.leave_one_out = interpolated(errors[0], .5);
  anchor.ttft.leave_one_out = interpolated(errors[1], .5);
}

}  // namespace

Anchor unfitted_anchor(const Experiment& experiment) {
  const Deployment& e = experiment.decode();
  Anchor anchor;
  anchor.model = e.model.name;
  anchor.gpu = e.cluster.gpu.name;
  anchor.layouts = {layout_of(experiment)};
  anchor.deployment = fmt::format("{} on {} x {}, {}", anchor.model, gpus_of(experiment),
                                  anchor.gpu, e.engine.empty() ? "no engine" : e.engine);
  return anchor;
}

Anchor anchor_of_bench(const std::vector<BenchRun>& runs, const ConfigNode& experiment,
                       TraceLibrary& traces) {
  std::vector<Lesson> lessons;
  for (const BenchRun& measured : runs)
    if (figure_of(measured, Kind::tpot) != nullptr)
      lessons.push_back(lesson_of(measured, experiment, traces));
  if (lessons.empty())
    throw ConfigError("{}: no run has median_tpot_ms or mean_tpot_ms",
                      runs.empty() ? "--bench" : runs.front().where);
  const Experiment& first = lessons.front().experiment;
  Anchor anchor = unfitted_anchor(first);
  const Anchor fits = fitted(lessons, nullptr);
  anchor.tpot = fits.tpot;
  anchor.ttft = fits.ttft;
  leave_one_out(lessons, anchor);
  return anchor;
}

}  // namespace moesim
