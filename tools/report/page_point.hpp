// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/sweep/store.hpp"

namespace moesim {

/// Number in as many digits as a chart can show.
OrderedJson rounded(double value, int digits);

/// Mean step of each kind in ms by part, in the order of part_names. Where prefill has a pool of
/// its own the report's own steps are those of the decode pool, and this adds "prefill pool: KIND".
OrderedJson parts_of(const StoredPoint&);

/// Rows of a point's EP groups, if it has more than one. Each has the pool ("" if there are none)
/// and its number, then of instance_columns what its row in the report says.
OrderedJson instances_of(const StoredPoint&);

/// Loads for each kind of step: tokens and activated slots per step, [layer x rank]. Also their
/// means over steps and layers on the busiest and the average rank.
OrderedJson loads_of(const StoredPoint&);
/// Number of cells in loads_of().
std::size_t cells_of(const OrderedJson& loads);

/// Sessions where a run tells them one by one. "over_time" has a row for each part of the run:
/// begin and end in s, prompt tokens, those from HBM and from tiers. "slowest" has each session's
/// number, begin and end, and a row for each turn: agent, turn, when it was sent. Then come the
/// begins of its load from a tier, its prefill and its decode, its end, prompt and output tokens.
OrderedJson sessions_of(const StoredPoint&);
/// Number of turns in sessions_of().
std::size_t turns_of(const OrderedJson& sessions);

/// The command that runs one point: the base, and what the sweep sets in it.
std::string reproduce_command(const StoredSweep&, const StoredPoint&, const std::string& base);

}  // namespace moesim
