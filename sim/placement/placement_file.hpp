// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "hardware/config.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// Reads a placement: {"num_gpus": G, "physical_to_logical_map": [[expert of each slot, rank-major]
/// per layer]} (SGLang's key) or {"num_gpus": G, "experts_on_gpu": [layer][gpu][experts]} where
/// GPUs may hold unequal numbers. "num_experts" is optional: without it there are as many experts
/// as the largest id says. Throws ConfigError with the place if a layer loses an expert, an id is
/// out of range, or lengths do not fit.
ExpertPlacement read_placement(const ConfigNode&);
ExpertPlacement read_placement(const std::filesystem::path& file);

/// What read_placement() reads: "physical_to_logical_map" where all GPUs of all layers hold as many
/// slots, else "experts_on_gpu".
OrderedJson placement_json(const ExpertPlacement&);

/// Reads an observed load, [layers][experts]: {"load": [[tokens of each expert] per layer]}, or an
/// .npy file of shape [layers, experts], or [steps, layers, experts], which is summed over the
/// steps. Throws ConfigError with the place if it is no such thing or not finite and >= 0.
std::vector<ExpertLoad> read_load(const std::filesystem::path& file);

}  // namespace moesim
