// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/spec.hpp"

namespace moesim {

/// Reads "dispatch" and "token_routing" of an experiment, with the rule of mixed steps. Throws
/// ConfigError.
void read_phases(ConfigReader& experiment, PoolSpec&);
std::span<const Key> dispatch_keys();
std::span<const Key> token_routing_keys();

}  // namespace moesim
