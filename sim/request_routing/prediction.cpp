// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/prediction.hpp"

#include <algorithm>
#include <cmath>

#include "hardware/rng.hpp"

namespace moesim {

OutputPrediction::OutputPrediction(ConfigReader& options, std::uint64_t seed)
    : error_(options.number("error")), seed_(seed) {}

std::int32_t OutputPrediction::output(std::uint32_t request, std::int32_t output_tokens) const {
  if (error_ == 0) return output_tokens;
  Rng rng(seed_ ^ (std::uint64_t{request} << 32), "request_routing/prediction");
  const double predicted = std::round(output_tokens * std::exp(error_ * rng.normal()));
  return static_cast<std::int32_t>(std::clamp(predicted, 1.0, 1e9));
}

}  // namespace moesim
