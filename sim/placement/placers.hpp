// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/placement/placement.hpp"

namespace moesim {

/// Throws ConfigError if the experts do not fit into the slots, or `load` is not one finite number
/// >= 0 per expert.
void require_sound(const PlacementProblem&, std::span<const double> load);

/// Cuts a rank-major slot map into GPUs: slot s stands on GPU s / slots_per_gpu.
LayerPlacement placement_of_slots(const PlacementProblem&, std::span<const int> expert_of_slot);

}  // namespace moesim
