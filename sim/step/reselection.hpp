// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "hardware/config.hpp"
#include "hardware/keys.hpp"
#include "sim/capacity/capacity.hpp"

namespace moesim {

/// {"keep": 2}: so many experts of a token stay whatever other tokens choose; 0 where all do.
/// Throws ConfigError if a token has fewer.
int read_reselection(const ConfigNode&, int experts_per_token);
std::span<const Key> reselection_keys();

/// Drops what a layer's tokens chose beyond their first `keep` experts, unless some token keeps the
/// expert. `tokens` [experts] is overwritten with the selections that run. Lossy: a model answers
/// otherwise after it.
void keep_active(int keep, LayerChoices&, std::span<std::int32_t> tokens, CapacityTally&);

}  // namespace moesim
