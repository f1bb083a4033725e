// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/placement/placement.hpp"

namespace moesim {

/// Throws ConfigError if the experts do not fit into the slots, or `load` is not one finite number
/// >= 0 per expert.
void require_sound(const PlacementProblem&, std::span<const double> load);

/// Cuts a rank-major slot map into GPUs: slot s stands on GPU s / slots_per_gpu.
LayerPlacement placement_of_slots(const PlacementProblem&, std::span<const int> expert_of_slot);

// One constructor per row of the table in placement.cpp; the options stand above each.
std::unique_ptr<Placer> make_linear(ConfigReader& options);
std::unique_ptr<Placer> make_round_robin(ConfigReader& options);
std::unique_ptr<Placer> make_random(ConfigReader& options);
std::span<const Key> random_placement_keys();
std::unique_ptr<Placer> make_eplb(ConfigReader& options);
std::unique_ptr<Placer> make_eplb_distinct(ConfigReader& options);
std::span<const Key> eplb_distinct_placement_keys();
std::unique_ptr<Placer> make_flat(ConfigReader& options);
std::unique_ptr<Placer> make_coactivation(ConfigReader& options);
std::span<const Key> coactivation_placement_keys();
std::unique_ptr<Placer> make_joint(ConfigReader& options);
std::span<const Key> joint_placement_keys();
std::unique_ptr<Placer> make_from_file(ConfigReader& options);
std::span<const Key> from_file_placement_keys();

}  // namespace moesim
