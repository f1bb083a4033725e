// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// The load that a benchmark sent. Neither a rate nor a limit: all requests at once.
struct BenchLoad {
  enum class Gaps { poisson, gamma, constant };
  std::optional<double> rate{};             ///< requests per second; none: as others leave
  std::optional<std::int64_t> in_flight{};  ///< at most
  Gaps gaps = Gaps::poisson;                ///< of a rate
  double burstiness = 1;                    ///< of gamma gaps
  bool catches_up = true;                   ///< requests that a limit held back follow at once
  bool rescaled = false;                    ///< gaps add up to requests / rate
};

/// A run of an engine's benchmark, whoever wrote it: figures by the names of a report's metrics
/// (median_tpot_ms), and the load.
struct BenchRun {
  std::string where;  ///< its file, and its line where the file has several runs
  std::string model;  ///< that was served, as the client called it; empty: not said
  std::map<std::string, double> figures;
  double prompt = 0, output = 0;  ///< mean tokens of a request
  std::int64_t requests = 0;      ///< that were completed
  BenchLoad load{};
  std::vector<std::string> remarks{};  ///< where the run is not what is simulated
};

/// The runs of what `vllm bench serve --save-result`, SGLang's bench_serving, genai-perf and AIPerf
/// (profile_export*.json) wrote: one run, a line each (--append-result), or several in a list.
/// Throws ConfigError if a file has no figure, does not say its load, or says what cannot be.
std::vector<BenchRun> read_bench(const std::filesystem::path&);

/// "20 requests/s, at most 8 in flight".
std::string load_text(const BenchLoad&);

/// The experiment under the load of a run: its arrivals, its mean lengths, as many requests.
/// Corrections ("anchor") are left out where `bare`.
Json under_load_of(const BenchRun&, Json experiment, bool bare = false);

}  // namespace moesim
