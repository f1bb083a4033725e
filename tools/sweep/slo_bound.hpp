// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/experiment.hpp"
#include "tools/sweep/tune.hpp"

namespace moesim {

/// What the time of a deployment's steps allows under its SLO, whatever the load; a few exact steps
/// say that. `mixed_steps`: the steps of a steady state that hold prompts and decodes bound it too.
/// That bound is good to some ten per cent, for load comes in waves, the others hold. Throws
/// ConfigError if there is no "slo".
TuneBound bound_of(const Experiment&, double attainment, bool mixed_steps);

}  // namespace moesim
