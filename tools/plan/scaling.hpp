// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "tools/plan/plan.hpp"

namespace moesim {

/// Best deployment of a plan. Paths in its config are relative to `folder`.
struct ScaledRun {
  const SloRun* run;
  std::string cluster;  ///< "16 x H200"
  int gpus;
  std::filesystem::path folder;
};

/// Text of why more GPUs sustain more than in proportion, a line: KV cache beside the weights,
/// GPUs that decode, sequences on each. Empty where each GPU sustains no more than with fewer.
std::string superlinear_text(const ScaledRun& fewer, const ScaledRun& more);

/// Plan for requests, and its question.
struct ScaledPlan {
  const PlanSearch& search;
  const Plan& plan;
};
/// Table of how requests/s grow with GPUs, or differ by their kind, and why.
std::string scaling_text(std::span<const ScaledPlan>);

}  // namespace moesim
