// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Slots of a layer on each rank while so many ranks are live, at least one. These are the slots of
/// the problem, or as many more as all experts need. Engines keep as many slots on every rank.
int slots_on_live(const PlacementProblem&, std::ptrdiff_t live);

/// A layer placed over the ranks that are live; the others hold nothing. With all ranks live it is
/// placer.place(); with fewer, nodes and expert groups no longer divide evenly and are ignored, as
/// in SGLang's elasticity_aware algorithm. A rank has slots_on_live().
LayerPlacement place_on_live(const Placer&, const PlacementProblem&, const LayerStatistics&,
                             int layer, std::span<const char> live);

/// Slots of live ranks as they are, of all layers. An expert that has none left takes, lowest id
/// first, the last slot of the expert with the most copies (ties: lowest id). If no expert has two,
/// it takes a further slot on the live rank with the fewest of the layer. Ties: the fewest further
/// slots of earlier layers, then the lowest rank. No rank gets beyond slots_on_live().
ExpertPlacement on_survivors(const ExpertPlacement&, std::span<const char> live);

}  // namespace moesim
