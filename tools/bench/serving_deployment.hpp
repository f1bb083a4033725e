// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "hardware/config.hpp"
#include "tools/bench/predict_operation.hpp"

namespace moesim {

/// How a measured deployment was driven.
struct ServingClient {
  bool recipe = false;  ///< InferenceX: its launch scripts and its client
  std::string date;     ///< of the run, or empty
  int waves = 10;       ///< prompts over concurrency
};
ServingClient client_of(const MeasuredPoint&);

/// An engine and its version, as a point's operation names them: "online serving vllm 0.19.0, ..".
EngineVersion engine_of(const MeasuredPoint&);

/// How the checkpoint of a model in a precision is stored: the keys of "precision" that no engine
/// decides. Nothing for an unknown precision.
std::optional<Json> checkpoint_of(const MeasuredPoint&);
/// Bytes of a weight of an expert in such a checkpoint.
double bytes_of_weight(const Json& checkpoint);

/// Experiment of a measured deployment, but for its requests: cluster, model, precision, parallel,
/// engine, gating, placement. A string says why it cannot be one.
struct DeploymentJson {
  Json experiment;
  std::string unknown;
};
DeploymentJson deployment_json(const MeasuredPoint&, const std::filesystem::path& root,
                               const GpuFiles& = {});

/// Experiment with two pools of a measured deployment with prefill and decode apart.
DeploymentJson pools_json(MeasuredPoint, const std::filesystem::path& root, const GpuFiles& = {});

/// Prompt tokens of a rank and step of a prefill instance: 16,384 where the row does not say (LMSYS
/// blog 2025-05-05, of SGLang's deployment and of DeepSeek's).
double tokens_of_prefill(const MeasuredPoint&);

/// GPUs of one replica, and the number of replicas.
struct ServingPlan {
  int dp, tp, ep, replicas;
  int gpus() const { return dp * tp; }
};
ServingPlan plan_of(const MeasuredPoint&);

}  // namespace moesim
