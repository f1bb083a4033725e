// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "sim/placement/placement.hpp"

namespace moesim {

/// A layer placed over the ranks that are live; the others hold nothing. With all ranks live it is
/// placer.place(); with fewer, nodes and expert groups no longer divide evenly and are ignored, as
/// in SGLang's elasticity_aware algorithm.
LayerPlacement place_on_live(const Placer&, const PlacementProblem&, const LayerStatistics&,
                             int layer, std::span<const char> live);

/// The slots of live ranks as they stand. An expert that has none left takes, lowest id first, the
/// last slot of the expert with the most copies (ties: lowest id).
LayerPlacement on_survivors(const LayerPlacement&, std::span<const char> live);

}  // namespace moesim
