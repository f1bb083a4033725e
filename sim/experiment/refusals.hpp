// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/spec.hpp"

namespace moesim {

/// Refuses combinations of keys that are not modelled, or make no sense. Throws ConfigError at the
/// key that has to go.
void refuse_combinations(ConfigReader&, const PoolSpec&);
/// The same of decode steps with experts cut otherwise.
void refuse_with_decode_cut(ConfigReader&, const PoolSpec&);

}  // namespace moesim
