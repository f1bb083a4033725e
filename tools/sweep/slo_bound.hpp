// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/experiment.hpp"
#include "tools/sweep/tune.hpp"

namespace moesim {

/// Use of the steps of a steady state that hold prompts and decodes as a bound of a deployment. The
/// bound is good to some ten per cent, for load comes in waves; the others hold.
struct MixedSteps {
  bool bound = false;
  double worth = 0;  ///< a bound below so many requests/s need not be exact, only below
};

/// Bound of a deployment by the time of its steps under its SLO, whatever the load; a few exact
/// steps say that. Throws ConfigError if there is no "slo".
TuneBound bound_of(const Experiment&, double attainment, MixedSteps);

}  // namespace moesim
