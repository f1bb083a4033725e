// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/impossible.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace moesim {

std::string_view why_impossible(const MeasuredPoint& point, const MoeModel& model,
                                const GpuSpec& gpu, double bytes_per_weight) {
  if (point.gpus < 1) return {};
  const double active = count_parameters(model).active;
  // The LM head is needed for the last one of a prompt's tokens alone.
  const double flops_of_token = 2 * (active - double(model.vocabulary) * model.hidden);
  double peak = 0;
  for (const auto& [precision, rate] : gpu.dense_peak) peak = std::max(peak, rate.value());
  if (point.metric.starts_with("TTFT") && point.unit == "ms") {
    if (point.value * 1e-3 * peak * point.gpus < flops_of_token * point.prompt)
      return "its TTFT is shorter than the prompt's arithmetic at the data sheet's peak";
  }
  if (point.metric.starts_with("TPOT") && point.unit == "ms") {
    const double read = point.value * 1e-3 * gpu.hbm_bandwidth.value() * point.gpus;
    if (read < active * bytes_per_weight)
      return "its TPOT is shorter than reading a token's weights at the data sheet's bandwidth";
  }
  if (point.metric == "output_tok_s_per_gpu" && point.output > 0) {
    if (point.value * (1 + point.prompt / point.output) * flops_of_token > peak)
      return "its rate needs more arithmetic than the data sheet's peak";
  }
  return {};
}

void skip_jumps(std::vector<ValidatedPoint>& points) {
  const auto all_but_load = [](const MeasuredPoint& p) {
    return fmt::format("{} {} tp{} ep{} dp{} {} {} {}", deployment_of(p), p.operation, p.tp, p.ep,
                       p.dp, p.gpus, p.prompt, p.output);
  };
  const auto is_tpot_at = [](const MeasuredPoint& p, double concurrency) {
    return p.category == "e2e" && p.metric.starts_with("TPOT") && p.concurrency == concurrency;
  };
  std::map<std::string, double> alone;
  for (const ValidatedPoint& p : points)
    if (is_tpot_at(p.point, 1)) alone.emplace(all_but_load(p.point), p.point.value);
  for (ValidatedPoint& p : points) {
    if (!is_tpot_at(p.point, 2)) continue;
    const auto one = alone.find(all_but_load(p.point));
    if (one == alone.end() || p.point.value <= 5 * one->second) continue;
    p.failure.clear();
    p.predicted = Skipped{"its TPOT is more than five times that of a single request"};
  }
}

}  // namespace moesim
