// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/anchors.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <Eigen/Dense>
#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/report/statistics.hpp"

namespace moesim {

namespace {

// Chosen on serving_calibrate.csv: with three or five runs of each deployment as anchors (ten
// draws) TPOT of its other runs is off by 5.7 and 5.2 % in the median; with 1 or 4 by up to 0.1
// more, with 0.25 by 6.0 and 5.5, without slopes by 6.3 and 6.2 %. Three anchors cannot choose it
// themselves, as two have no slopes, and five and eight did worse when they did (5.3 and 5.1 %,
// not 5.2, 4.9).
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

// One deployment's runs: what is asked for and how the GPUs share it, without the figure.
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
      const std::size_t which = static_cast<std::size_t>(rng.below(names.size()));
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
