// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/placement/placement.hpp"

namespace moesim {

/// All layers that were seen, placed in as many slots as place_all() fills, but with more of them
/// in layers where copies gain more (CRAFT, arXiv:2603.28768). Slots go to a layer one on each GPU
/// at a time: every GPU holds layers * slots_per_gpu slots over all layers.
///
/// The next slots go where the fullest GPU's tokens fall most; for placers that sample batches
/// where the fewest activated experts of the busiest GPU fall most, in the mean over the batches. A
/// layer's gain counts as no larger than that of its slots before: layers alike get equal numbers,
/// one more for the first where the budget does not divide. Ties: the layer with the fewest slots,
/// then the lowest. Throws as Placer::place() does.
ExpertPlacement place_by_gain(const Placer&, const PlacementProblem&, const ExpertStatistics& seen);

}  // namespace moesim
