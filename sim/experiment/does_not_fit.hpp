// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// A deployment that is written right, but whose weights leave no memory for a KV cache. A
/// search through deployments passes over these; any other ConfigError is a mistake in the config.
class DoesNotFit final : public ConfigError {
 public:
  DoesNotFit(const std::string& message, Bytes per_gpu) : ConfigError(message), missing(per_gpu) {}
  Bytes missing;  ///< per GPU, at least
};

}  // namespace moesim
