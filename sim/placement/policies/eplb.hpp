// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Map of a layer as DeepSeek's EPLB returns it.
struct EplbMap {
  std::vector<int> phy2log;               ///< the expert of each slot, rank-major: [slots]
  std::vector<std::vector<int>> log2phy;  ///< the slots of each expert, in the order of replication
  std::vector<int> logcnt;                ///< how many slots each expert has: [experts]
};

/// DeepSeek's EPLB, slot for slot: github.com/deepseek-ai/EPLB, eplb.py at d52c72d. In float32 as
/// there; where its sort leaves the order of equal weights to the platform, lowest index first. It
/// goes by node where nodes divide the expert groups, else over all GPUs at once. Throws
/// ConfigError where the original asserts: groups must divide the experts, nodes the GPUs.
EplbMap eplb(const PlacementProblem&, std::span<const double> load);

}  // namespace moesim
