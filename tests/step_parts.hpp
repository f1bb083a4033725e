// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>

#include "sim/step/step_cost.hpp"

namespace moesim::test {

/// Seconds of all parts of a step's critical path.
inline double sum(const Breakdown& parts) {
  double seconds = 0;
  for (const auto& part : parts) seconds += std::accumulate(part.begin(), part.end(), 0.0);
  return seconds;
}

/// Seconds of one part of a step's critical path.
inline double seconds_of(const StepCost& cost, Part part) {
  const auto& row = cost.parts[static_cast<std::size_t>(part)];
  return std::accumulate(row.begin(), row.end(), 0.0);
}

}  // namespace moesim::test
