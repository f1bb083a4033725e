// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hardware/rng.hpp"

namespace moesim {

/// exp(normal(log(median), sigma)), clipped to `max`. With sigma 0 always the median.
struct Lognormal {
  double median = 1;
  double sigma = 0;
  double max = std::numeric_limits<double>::infinity();

  double draw(Rng& rng) const { return std::min(unclipped(rng), max); }
  /// A whole number of at least 1, as tokens are counted; max is below 2^31.
  std::int32_t draw_count(Rng& rng) const {
    return static_cast<std::int32_t>(std::clamp(std::round(unclipped(rng)), 1.0, max));
  }

 private:
  double unclipped(Rng& rng) const { return median * std::exp(sigma * rng.normal()); }
};

}  // namespace moesim
