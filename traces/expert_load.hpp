// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace moesim {

/// Tokens of each expert of a layer: counts, means or shares.
using ExpertLoad = std::vector<double>;

class NpyArray;
struct MoeModel;

/// Reads an observed load, [layers][experts]. Forms: {"load": [[tokens of each expert] per layer]};
/// SGLang's {"logical_count": the same, or a list of such over steps} as JSON or .pt. Also an .npy
/// file of shape [layers, experts] or [steps, layers, experts]; steps are summed. Throws
/// ConfigError with the pointer if it is no such thing or not finite and >= 0.
std::vector<ExpertLoad> read_load(const std::filesystem::path& file);
/// The load in an array of such a shape; `file` stands in messages.
std::vector<ExpertLoad> load_in(const std::filesystem::path& file, const NpyArray&);

/// Rows of a load that are of a model's layers with experts. Engines dump zeros for dense layers,
/// and layers that draft (MTP) behind all others. Empty if the load has another number of rows.
/// Throws ConfigError, `place` in front, if a dense layer has tokens.
std::vector<ExpertLoad> moe_rows(const std::string& place, const std::vector<ExpertLoad>&,
                                 const MoeModel&);

}  // namespace moesim
