// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/lab/validation/serving_runs.hpp"

namespace moesim {

/// A page in Markdown: errors of tokens/s per GPU, TPOT and TTFT by model, GPU, engine with version
/// and precision, the worst first. Held-out runs come before fitted ones, then the contrasts.
/// `files` are named as the source of the runs.
std::string scorecard(const std::vector<ServingRun>& runs, const std::vector<std::string>& files);

}  // namespace moesim
