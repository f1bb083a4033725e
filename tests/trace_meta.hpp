// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "traces/routing_trace.hpp"

namespace moesim::test {

/// The head of a trace that a test writes row by row.
inline TraceMeta trace_meta(std::string model, int experts, int experts_per_token,
                            std::vector<int> layer_ids,
                            std::vector<std::string> phases = {"decode"}) {
  TraceMeta meta;
  meta.model = std::move(model);
  meta.num_experts = experts;
  meta.experts_per_token = experts_per_token;
  meta.layer_ids = std::move(layer_ids);
  meta.phases = std::move(phases);
  return meta;
}

}  // namespace moesim::test
