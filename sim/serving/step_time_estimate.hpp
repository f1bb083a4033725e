// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"

namespace moesim {

/// What steps of this experiment cost as it starts, for schedulers that plan by time: steps of 1,
/// 2, 4, .. decodes on every rank, up to max_num_seqs, taken at random from its trace. Where the
/// scheduler asks for them, steps of 1, 2, 4, .. prompt tokens as well.
StepPrice price_steps(const Deployment&);

}  // namespace moesim
