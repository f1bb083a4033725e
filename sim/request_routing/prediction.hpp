// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hardware/config.hpp"

namespace moesim {

/// A predictor of output lengths of a given quality: the truth times exp(error * z), z standard
/// normal and the same whenever one request is asked about. Reads the option "error" (0 = the
/// truth).
class OutputPrediction {
 public:
  OutputPrediction(ConfigReader& options, std::uint64_t seed);
  static constexpr Key error_key{"error", form::number(0, 10), "0",
                                 "sigma of predicted over true output, logarithm; 0 the truth"};
  /// At least 1.
  std::int32_t output(std::uint32_t request, std::int32_t output_tokens) const;

 private:
  double error_;
  std::uint64_t seed_;
};

}  // namespace moesim
