// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/spec.hpp"

namespace moesim {

/// Reads "placement": the placer, the slots that it fills, and what it is fitted on. Throws
/// ConfigError.
void read_placement(const ConfigNode&, PoolSpec&);
/// The keys beside those of the placer.
std::span<const Key> placement_keys();

}  // namespace moesim
