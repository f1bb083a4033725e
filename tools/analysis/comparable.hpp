// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/sweep/store.hpp"

namespace moesim {

/// Reads of a sweep what the pointers lead to, without the points whose rates cannot be compared:
/// where requests arrive by themselves and more left than arrived, because a queue of before the
/// measured time was drained in it. Warns of how many these are.
StoredSweep read_comparable(const Store&, std::vector<std::string> pointers);

}  // namespace moesim
