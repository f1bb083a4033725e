// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/mlperf.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace moesim {

namespace {

constexpr std::array<MlperfTask, 2> tasks{{
    // Means: notes of the published rows. Samples: loadgen/mlperf.conf, performance_sample_count.
    // Longest output: the rule of the benchmark, v5.1.
    {"DeepSeek", 800, 3900, .6, 1, 20000, 4388},
    // Output and data set: mlcommons/inference, language/mixtral-8x7b/README.md. Prompts: a third
    // each of GSM8K (665), OpenOrca (265) and MBXP (195), means of samples from the published
    // lengths of the data set (openshift-psap/performance-dashboard, mlperf-data/summaries).
    {"Mixtral", 375, 145, .8, .8, 1024, 15000},
}};

// A lognormal of this mean, before its longest are cut.
Json lengths_of(double mean, double sigma, int most) {
  return {{"median", mean / std::exp(sigma * sigma / 2)}, {"sigma", sigma}, {"max", most}};
}

}  // namespace

std::optional<MlperfTask> mlperf_task(const MeasuredPoint& point) {
  if (!contains(point.operation, "MLPerf")) return std::nullopt;
  const auto found = std::ranges::find_if(
      tasks, [&](const MlperfTask& task) { return point.model.starts_with(task.model); });
  return found == tasks.end() ? std::nullopt : std::optional(*found);
}

bool is_mlperf_server(const MeasuredPoint& point) {
  return contains(point.operation, "MLPerf") && contains(point.operation, "Server");
}

Json mlperf_workload(const MlperfTask& task, int requests) {
  constexpr int most_prompt = 4096;
  return {{"arrivals", {{"type", "closed_loop"}, {"concurrency", requests}}},
          {"lengths",
           {{"type", "lognormal"},
            {"prompt", lengths_of(task.prompt, task.prompt_sigma, most_prompt)},
            {"output", lengths_of(task.output, task.output_sigma, task.most_output)}}},
          {"requests", requests}};
}

}  // namespace moesim
