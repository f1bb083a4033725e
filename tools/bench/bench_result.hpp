// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/experiment/anchor.hpp"

namespace moesim {

/// A run of an engine's benchmark, whoever wrote it: figures by the names of a report's metrics
/// (median_tpot_ms), and the load.
struct BenchRun {
  std::string where;  ///< its file, and its line where the file has several runs
  std::map<std::string, double> figures;
  double prompt = 0, output = 0;      ///< mean tokens of a request
  std::int64_t requests = 0;          ///< that were completed
  std::optional<double> in_flight{};  ///< at most
  std::optional<double> rate{};       ///< requests per second; none: as soon as others leave
  std::vector<std::string> remarks{};
};

/// The runs of what `vllm bench serve --save-result` (a JSON object), SGLang's bench_serving (JSON
/// lines, a run each) or genai-perf and AIPerf (profile_export*.json) wrote. Throws ConfigError if
/// a file has no figure, or not the lengths and number of its requests.
std::vector<BenchRun> read_bench(const std::filesystem::path&);

/// The experiment under the load of a run: closed loop or Poisson, its mean lengths, as many
/// requests. Corrections ("anchor") are left out where `bare`.
Json under_load_of(const BenchRun&, Json experiment, bool bare = false);

/// What corrections go by.
ServingLoad load_of(const BenchRun&);

/// A benchmark's figures beside those of a report.
struct BenchComparison {
  struct Row {
    std::string metric;
    double measured = 0, predicted = 0;
    double error_pct() const { return (predicted / measured - 1) * 100; }
  };
  std::string where;
  std::vector<Row> rows;
  std::vector<std::string> remarks;  ///< where the two did not do the same work
};
BenchComparison compare_with_bench(const BenchRun&, const OrderedJson& metrics);

}  // namespace moesim
