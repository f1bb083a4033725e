// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Tokens per expert over the last steps, as the circular window of [vLLM] keeps them.
class LoadWindow {
 public:
  /// `steps` >= 1 are remembered.
  LoadWindow(std::size_t steps, int layers, int experts);

  /// Adds one step's tokens, [layers, experts]; a full window forgets the oldest step.
  void add(std::span<const std::int32_t> tokens);
  /// Sums over the window, [layers][experts].
  std::vector<ExpertLoad> loads() const;

 private:
  std::size_t steps_, cells_, experts_;
  std::vector<std::int32_t> ring_;  // [steps held, cells]
  std::size_t next_ = 0;
  std::vector<std::int64_t> sum_;  // [cells]
};

}  // namespace moesim
