// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hardware/registry.hpp"
#include "hardware/rng.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// How long prompts and outputs are.
class Lengths {
 public:
  virtual ~Lengths() = default;
  /// The lengths of the index-th request sent, from 0.
  virtual Request request(std::int64_t index, Rng& rng) const = 0;
  /// Tokens of the longest prompt and the longest output together, where the config says them; 0:
  /// lengths are drawn without a bound or recorded.
  virtual std::int64_t longest() const { return 0; }
};

/// The table: fixed, uniform, lognormal, trace.
const Registry<Lengths>& request_lengths();

}  // namespace moesim
