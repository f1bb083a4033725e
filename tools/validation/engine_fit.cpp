// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/engine_fit.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "models/moe_model.hpp"
#include "sim/report/statistics.hpp"
#include "tools/validation/calibration.hpp"
#include "tools/validation/serving_deployment.hpp"
#include "tools/validation/validation.hpp"

namespace moesim {

namespace {

constexpr double us = 1e-3;  // in ms

std::map<std::string, double> runs_by_deployment(std::span<const EngineRun> runs) {
  std::map<std::string, double> counts;
  for (const EngineRun& run : runs) ++counts[run.deployment];
  return counts;
}

// The least of an unknown stands for nothing at all.
constexpr double nothing = 1e-6;

EngineConstants constants(std::span<const double> x) {
  const auto value = [](double y) { return y <= 2 * nothing ? 0 : y; };
  return {value(x[0]), value(x[1]), value(x[2]), 0, 0};
}

double model_layers(const MeasuredPoint& point, const std::filesystem::path& root) {
  const auto file = root / "models/zoo" / (model_file(point.model) + ".json");
  return static_cast<double>(read_model(ConfigNode::from_file(file)).layers.size());
}

}  // namespace

double EngineConstants::tpot_ms(const EngineRun& run) const {
  return run.bare_tpot_ms +
         us * (per_layer_us * run.layers + per_step_us + per_sequence_us * run.sequences);
}

double EngineConstants::ttft_ms(const EngineRun& run) const {
  return run.bare_ttft_ms + latency_ms + admission_steps * tpot_ms(run);
}

EngineConstants fit_engine(std::span<const EngineRun> runs) {
  const auto counts = runs_by_deployment(runs);
  const auto weighed = [&](const EngineRun& run, double predicted, double measured) {
    return std::log(predicted / measured) / std::sqrt(counts.at(run.deployment));
  };
  // Between two steps Python prepares and ends each sequence: some tens of microseconds, no more.
  constexpr std::array<Unknown, 3> of_steps{
      {{5, nothing, 60}, {300, nothing, 5000}, {10, nothing, 40}}};
  const std::vector<double> steps = fit_least_squares(of_steps, [&](std::span<const double> x) {
    std::vector<double> residuals;
    for (const EngineRun& run : runs)
      residuals.push_back(weighed(run, constants(x).tpot_ms(run), run.tpot_ms));
    return residuals;
  });
  EngineConstants fitted = constants(steps);
  constexpr std::array<Unknown, 2> of_front{{{20, nothing, 1000}, {5, nothing, 100}}};
  const std::vector<double> front = fit_least_squares(of_front, [&](std::span<const double> x) {
    EngineConstants tried = fitted;
    tried.latency_ms = x[0];
    tried.admission_steps = x[1];
    std::vector<double> residuals;
    for (const EngineRun& run : runs)
      residuals.push_back(weighed(run, tried.ttft_ms(run), run.ttft_ms));
    return residuals;
  });
  fitted.latency_ms = front[0];
  fitted.admission_steps = std::round(front[1]);
  return fitted;
}

double held_out_error(std::span<const EngineRun> runs) {
  std::vector<double> errors;
  for (const auto& [left_out, count] : runs_by_deployment(runs)) {
    std::vector<EngineRun> others;
    for (const EngineRun& run : runs)
      if (run.deployment != left_out) others.push_back(run);
    if (others.empty()) continue;
    const EngineConstants fitted = fit_engine(others);
    for (const EngineRun& run : runs)
      if (run.deployment == left_out)
        errors.push_back(std::abs(fitted.tpot_ms(run) / run.tpot_ms - 1));
  }
  return median(std::move(errors));
}

std::vector<EngineRun> runs_of_engine(const std::vector<MeasuredPoint>& points,
                                      const std::string& engine,
                                      const std::filesystem::path& root) {
  std::vector<MeasuredPoint> wanted;
  for (const MeasuredPoint& point : points)
    if (point.category == "e2e" && point.concurrency > 0 && engine_of(point).name == engine)
      wanted.push_back(point);
  const Json bare{
      {"charges", {{"host_overhead", "0 us"}, {"per_layer", "0 us"}, {"per_sequence", "0 us"}}},
      {"api_server", {{"latency", "0 us"}, {"admission_steps", 0}}}};
  std::map<std::string, EngineRun> runs;
  for (const ValidatedPoint& p : validate(wanted, root, bare)) {
    if (p.skipped() || !p.failure.empty()) continue;
    const bool tpot = p.point.metric == "TPOT";
    EngineRun& run = runs[p.point.id.substr(0, p.point.id.rfind('-'))];
    (tpot ? run.tpot_ms : run.ttft_ms) = p.point.value;
    (tpot ? run.bare_tpot_ms : run.bare_ttft_ms) = std::get<Prediction>(p.predicted).value;
    run.deployment = deployment_of(p.point);
    run.layers = model_layers(p.point, root);
    run.sequences = p.point.concurrency / std::max(1, p.point.dp);
  }
  std::vector<EngineRun> whole;
  for (const auto& [id, run] : runs)
    if (run.tpot_ms > 0 && run.ttft_ms > 0) whole.push_back(run);
  return whole;
}

OrderedJson with_constants(OrderedJson preset, const EngineConstants& c,
                           const std::string& source) {
  for (OrderedJson& setting : preset.at("settings")) {
    OrderedJson& set = setting.at("set");
    const auto quantity = [](double value, const char* unit) {
      return fmt::format("{:.1f} {}", value, unit);
    };
    if (set.contains("/charges/host_overhead")) {
      set["/charges/host_overhead"] = quantity(c.per_step_us, "us");
      set["/charges/per_layer"] = quantity(c.per_layer_us, "us");
      set["/charges/per_sequence"] = quantity(c.per_sequence_us, "us");
      setting["source"] = source;
    }
    if (set.contains("/api_server/latency") && !setting.contains("when")) {
      set["/api_server/latency"] = quantity(c.latency_ms, "ms");
      set["/api_server/admission_steps"] = static_cast<int>(c.admission_steps);
      setting["source"] = source;
    }
  }
  return preset;
}

}  // namespace moesim
