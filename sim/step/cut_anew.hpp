// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/fabric.hpp"
#include "models/deployment.hpp"

namespace moesim {

/// Returns the cost of cutting experts over the GPUs of a group as another plan does. It is an
/// all-to-all of what each GPU is to hold and does not. `weights` are those of all experts, one
/// copy of each. EP rank r of a plan has the r-th of equal shares of the experts, GPU i of a rank
/// the i-th of equal slices of their width. Plans of the same GPUs, without pipelines and AFD.
CollectiveCost cut_anew(const Fabric&, const ParallelPlan& from, const ParallelPlan& to,
                        Bytes weights);

}  // namespace moesim
