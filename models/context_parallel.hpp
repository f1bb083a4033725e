// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/moe_model.hpp"

namespace moesim {

/// Reason why `dcp` of `tp` GPUs cannot stripe the KV cache by tokens (decode context parallelism,
/// DCP), with what is possible; empty: they can. GPUs share a cache where they hold the same heads
/// of keys: tp / KV heads of them do, and dcp divides those. (vLLM,
/// docs/serving/context_parallel_deployment.md; SGLang, docs/advanced_features/dcp.)
std::string stripe_fault(const MoeModel&, int tp, int dcp);

/// The most GPUs that can share a KV cache by tokens; 1: none can.
int most_stripes(const MoeModel&, int tp);

}  // namespace moesim
