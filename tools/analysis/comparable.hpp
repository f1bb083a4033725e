// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/sweep/store.hpp"

namespace moesim {

/// Reads of a sweep what the pointers lead to, without the points whose rates cannot be compared.
/// These are runs without a steady state that serve more than is offered, from a queue that drains
/// after the last arrival. Warns of how many these are. If all points are such, none is left out.
StoredSweep read_comparable(const Store&, std::vector<std::string> pointers);

/// Takes a value that is there out of a config. An element of a list becomes null.
void erase_at(Json& config, const std::string& pointer);

/// The axis over which points are averaged: runs that differ in nothing else are one point.
inline constexpr const char* seed_pointer = "/seed";

/// Text of what the points of a store differ in, for a caller who has named no part of it yet:
/// "/token_routing/decode (even, metro), /placement/replication (1, 1.5, 2, ...)".
std::string axes_text(const Store&);

}  // namespace moesim
