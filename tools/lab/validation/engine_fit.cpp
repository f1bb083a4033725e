// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/engine_fit.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "models/launches.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/engine.hpp"
#include "sim/report/statistics.hpp"
#include "tools/bench/serving_deployment.hpp"
#include "tools/bench/validation.hpp"
#include "tools/lab/validation/calibration.hpp"

namespace moesim {

namespace {

constexpr double us = 1e-3;  // in ms

std::map<std::string, double> runs_by_deployment(std::span<const EngineRun> runs) {
  std::map<std::string, double> counts;
  for (const EngineRun& run : runs) ++counts[run.deployment];
  return counts;
}

// Between two steps Python prepares and ends each sequence: some tens of microseconds, no more.
// The typical ones are means of what vLLM's and TensorRT-LLM's runs give.
constexpr std::array<Unknown, 3> of_steps{{{9, 0.1, 60}, {140, 1, 5000}, {20, 0.1, 40}}};
// A kernel that Python launches takes the host some tens of microseconds.
constexpr std::array<Unknown, 2> of_front{{{50, 0.1, 1000}, {5, 0.1, 100}}};

// First tokens are near the sum of sizes. So a run that is 10 % off pulls as hard as one that is
// hundred times as long because its queue overflowed.
constexpr double near_sizes = 1e-3;

// Adds weights of constants that are not the typical ones.
void add_distances(std::span<const Unknown> typical, std::span<const double> x,
                   std::vector<double>& residuals) {
  constexpr double of_a_factor_of_e = 0.1;
  for (std::size_t i = 0; i < x.size(); ++i)
    residuals.push_back(of_a_factor_of_e * std::log(x[i] / typical[i].start));
}

// Counts what the model of a run is made of, served as the engine's preset says.
void count_work(const MeasuredPoint& point, const std::filesystem::path& root, EngineRun& run) {
  const ConfigNode config =
      with_preset(ConfigNode(deployment_json(point, root, {}).experiment, "validate.json"));
  const auto file = root / "models/zoo" / (model_file(point.model) + ".json");
  const MoeModel model = read_model(ConfigNode::from_file(file));
  run.layers = static_cast<double>(model.layers.size());
  run.launches = kernel_launches(model, read_parallel(config.child("parallel"), model),
                                 read_precision(config.child("precision")),
                                 fusions_of(read_engine(config.child("engine"))));
}

// The constants that are fitted, where presets have them: times in us, steps by number.
struct PresetConstant {
  const char* key;
  double EngineConstants::*value;
  bool is_time = true;
};
constexpr std::array<PresetConstant, 5> preset_constants{{
    {"/charges/host_overhead", &EngineConstants::per_step_us},
    {"/charges/per_layer", &EngineConstants::per_layer_us},
    {"/charges/per_sequence", &EngineConstants::per_sequence_us},
    {"/api_server/latency_per_launch", &EngineConstants::latency_per_launch_us},
    {"/api_server/admission_steps", &EngineConstants::admission_steps, false},
}};

}  // namespace

double EngineConstants::added_tpot_ms(const EngineRun& run) const {
  return us * (per_layer_us * run.layers + per_step_us + per_sequence_us * run.sequences);
}

double EngineConstants::tpot_ms(const EngineRun& run) const {
  return run.bare_tpot_ms + added_tpot_ms(run);
}

double EngineConstants::ttft_ms(const EngineRun& run) const {
  return run.bare_ttft_ms + us * latency_per_launch_us * run.launches +
         admission_steps * tpot_ms(run);
}

EngineConstants fit_engine(std::span<const EngineRun> runs) {
  const auto counts = runs_by_deployment(runs);
  const std::vector<double> steps = fit_least_squares(of_steps, [&](std::span<const double> x) {
    const EngineConstants tried{x[0], x[1], x[2], 0, 0};
    std::vector<double> residuals;
    for (const EngineRun& run : runs)
      residuals.push_back(std::log(tried.tpot_ms(run) / run.tpot_ms) /
                          std::sqrt(counts.at(run.deployment)));
    add_distances(of_steps, x, residuals);
    return residuals;
  });
  EngineConstants fitted{steps[0], steps[1], steps[2], 0, 0};
  const auto with_front = [&](std::span<const double> x) {
    EngineConstants tried = fitted;
    tried.latency_per_launch_us = x[0];
    tried.admission_steps = x[1];
    return tried;
  };
  const bool none_known = std::ranges::none_of(runs, &EngineRun::knows_client);
  const auto misses = [&](std::span<const double> x) {
    std::vector<double> residuals;
    for (const EngineRun& run : runs) {
      if (run.knows_client || none_known)
        residuals.push_back(std::log(with_front(x).ttft_ms(run) / run.ttft_ms) /
                            counts.at(run.deployment));
    }
    add_distances(of_front, x, residuals);
    return residuals;
  };
  fitted = with_front(fit_least_squares(of_front, misses, near_sizes));
  fitted.admission_steps = std::round(fitted.admission_steps);
  return fitted;
}

HeldOutErrors held_out_errors(std::span<const EngineRun> runs) {
  std::set<std::string> groups;
  for (const EngineRun& run : runs) groups.insert(run.group);
  std::vector<double> tpot, ttft;
  for (const std::string& left_out : groups) {
    std::vector<EngineRun> others;
    for (const EngineRun& run : runs)
      if (run.group != left_out) others.push_back(run);
    if (others.empty()) continue;
    const EngineConstants fitted = fit_engine(others);
    for (const EngineRun& run : runs) {
      if (run.group != left_out) continue;
      tpot.push_back(fitted.tpot_ms(run) / run.tpot_ms - 1);
      ttft.push_back(fitted.ttft_ms(run) / run.ttft_ms - 1);
    }
  }
  return {median(absolute(tpot)), median(absolute(ttft)), median(tpot), median(ttft)};
}

EngineConstants constants_of(const OrderedJson& preset) {
  EngineConstants constants;
  for (const OrderedJson& setting : preset.at("settings")) {
    if (setting.contains("when")) continue;
    const OrderedJson& set = setting.at("set");
    for (const auto& [key, value, is_time] : preset_constants) {
      if (!set.contains(key)) continue;
      constexpr double per_second = 1e6;
      constants.*value =
          is_time ? parse_quantity<Seconds>(set.at(key).get<std::string>()).count() * per_second
                  : set.at(key).get<double>();
    }
  }
  return constants;
}

std::vector<EngineRun> runs_of_engine(const std::vector<MeasuredPoint>& points,
                                      const std::string& engine,
                                      const std::filesystem::path& root) {
  std::vector<MeasuredPoint> wanted;
  for (const MeasuredPoint& point : points)
    if (point.category == "e2e" && point.concurrency > 0 && engine_of(point).name == engine)
      wanted.push_back(point);
  const EngineConstants known = constants_of(OrderedJson::parse(find_engine(engine)->preset));
  const Json without_front{
      {"api_server", {{"latency_per_launch", "0 us"}, {"admission_steps", 0}}}};
  std::map<std::string, EngineRun> runs;
  for (const ValidatedPoint& p : validate(wanted, root, without_front)) {
    if (p.skipped() || !p.failure.empty()) continue;
    const bool tpot = p.point.metric == "TPOT";
    EngineRun& run = runs[p.point.id.substr(0, p.point.id.rfind('-'))];
    (tpot ? run.tpot_ms : run.ttft_ms) = p.point.value;
    (tpot ? run.bare_tpot_ms : run.bare_ttft_ms) = std::get<Prediction>(p.predicted).value;
    run.deployment = deployment_of(p.point);
    run.group = p.point.gpu + " " + p.point.model;
    if (run.layers == 0) count_work(p.point, root, run);
    run.knows_client = client_of(p.point).recipe;
    run.sequences = p.point.concurrency / std::max(1, p.point.dp);
  }
  std::vector<EngineRun> whole;
  for (auto& [id, run] : runs) {
    run.bare_tpot_ms -= known.added_tpot_ms(run);
    if (run.tpot_ms > 0 && run.ttft_ms > 0 && run.bare_tpot_ms > 0) whole.push_back(run);
  }
  return whole;
}

OrderedJson with_constants(OrderedJson preset, const EngineConstants& c,
                           const std::string& source) {
  for (OrderedJson& setting : preset.at("settings")) {
    if (setting.contains("when")) continue;
    OrderedJson& set = setting.at("set");
    for (const auto& [key, value, is_time] : preset_constants) {
      if (!set.contains(key)) continue;
      if (is_time) {
        set[key] = fmt::format("{:.1f} us", c.*value);
      } else {
        set[key] = static_cast<int>(c.*value);
      }
      setting["source"] = source;
    }
  }
  return preset;
}

}  // namespace moesim
