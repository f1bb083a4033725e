// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "tools/bench/predict_operation.hpp"

namespace moesim {

/// Predicts points of whole deployments, categories e2e and prefill. Online runs are simulated,
/// request by request, and so are runs of trtllm-bench, whose requests all wait as they begin.
/// Other runs at the greatest throughput, without a stated concurrency, are priced in their steady
/// state. Every step holds the same sequences and its share of prompts; the best over powers of two
/// that fit the KV cache. Thread-safe; equal runs are simulated once.
class ServingPredictor {
 public:
  /// Experiments are changed by the merge patch `overrides`.
  explicit ServingPredictor(const std::filesystem::path& root, Json overrides = Json::object(),
                            GpuFiles gpus = {});
  ~ServingPredictor();
  Predicted predict(const MeasuredPoint&);

 private:
  struct Runs;
  Predicted online(const MeasuredPoint&, Json config);
  Predicted bench(const MeasuredPoint&, Json config);
  Predicted mlperf(const MeasuredPoint&, Json config);
  std::string_view why_impossible(const MeasuredPoint&, const Json& config) const;
  std::filesystem::path root_;
  Json overrides_;
  GpuFiles gpus_;
  std::unique_ptr<Runs> runs_;
};

}  // namespace moesim
