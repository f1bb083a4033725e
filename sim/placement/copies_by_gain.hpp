// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/placement/placement.hpp"

namespace moesim {

/// Places all layers that were seen in as many slots as place_all() fills, with more of them in
/// layers where copies gain more (CRAFT, arXiv:2603.28768). Slots go to a layer one on each GPU at
/// a time: every GPU holds layers * slots_per_gpu slots over all layers.
///
/// The next slots go where the fullest GPU's tokens fall most. For placers that sample batches they
/// go where the mean of the busiest GPU's fewest activated experts falls most. A layer's gain
/// counts as no larger than that of its slots before. Similar layers get equal numbers, one more
/// for the first where the budget does not divide. Ties: the layer with the fewest slots, then the
/// lowest. Throws as Placer::place() does.
ExpertPlacement place_by_gain(const Placer&, const PlacementProblem&, const ExpertStatistics& seen);

}  // namespace moesim
