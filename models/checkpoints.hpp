// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "models/deployment.hpp"

namespace moesim {

/// HuggingFace ids of a model's weights, by the precision of the experts.
using Checkpoints = std::map<Precision, std::string>;
/// The "checkpoints" of a zoo file; of another file none. Throws ConfigError.
Checkpoints read_checkpoints(const ConfigNode& model);
std::span<const Key> checkpoint_keys();

}  // namespace moesim
