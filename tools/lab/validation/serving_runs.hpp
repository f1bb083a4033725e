// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/bench/validation.hpp"

namespace moesim {

/// How fast a deployment served. An offline run has no latencies: 0.
struct ServingSpeed {
  double ttft_ms = 0, tpot_ms = 0;
  double per_gpu = 0;  ///< output tokens/s of one GPU
};

/// A measured run of a deployment with its prediction: what the rows of one run say together.
struct ServingRun {
  std::string id;  ///< of its rows, without -tpot and -ttft
  std::string gpu, model;
  EngineVersion engine;
  std::string precision;  ///< how the checkpoint stores experts, and activations if it says so
  std::string layout;     ///< "TP8 EP8"; "pools" where prefill and decode are apart
  int gpus = 0;
  double concurrency = 0, prompt = 0, output = 0;  ///< concurrency 0: offline
  bool pools = false;
  bool fitted = false;       ///< constants are fitted on it
  double hbm_bandwidth = 0;  ///< bytes/s of a GPU, by its data sheet
  double weight_bytes = 0;   ///< of one weight of an expert
  ServingSpeed measured{}, predicted{};
};

/// Output tokens/s of one GPU where so many requests are always in flight:
/// concurrency x output / (TTFT + TPOT x (output - 1)) / GPUs.
double tokens_per_gpu(const ServingRun&, double ttft_ms, double tpot_ms);

/// The runs among these points, in order: TPOT and TTFT of one run are two points whose ids differ
/// in their ending alone, and offline throughput per GPU is one point. Left out are runs that are
/// not predicted whole, or by a data sheet alone. `root` and the files hold the data sheets of
/// GPUs. Throws ConfigError if one run has a figure twice.
std::vector<ServingRun> serving_runs(const std::vector<ValidatedPoint>&,
                                     const std::filesystem::path& root, const GpuFiles& = {});

}  // namespace moesim
