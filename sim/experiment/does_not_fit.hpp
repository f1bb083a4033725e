// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/config.hpp"

namespace moesim {

/// A deployment that is written right, but whose weights leave no memory for a KV cache. A
/// search through deployments passes over these; any other ConfigError is a mistake in the config.
class DoesNotFit final : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

}  // namespace moesim
