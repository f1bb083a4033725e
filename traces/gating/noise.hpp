// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "hardware/rng.hpp"

namespace moesim {

/// Adds `spread` times a normal number to each value: those of Rng::normal() in order, but for
/// their last digits, in a quarter of the time. The same bits on every CPU.
void add_normals(std::span<double> values, double spread, Rng& rng);

}  // namespace moesim
