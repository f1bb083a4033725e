// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sim/serving/typical_step.hpp"

namespace moesim {

/// Text of what a step costs, a row for each operation. `own_load`: the step is the mean batch of
/// the experiment's own load.
std::string step_text(const ExplainedStep&, const Deployment&, bool own_load);
/// The same as JSON.
OrderedJson step_json(const ExplainedStep&, const Deployment&);

}  // namespace moesim
