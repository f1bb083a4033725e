// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/experiment.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

/// Runs the points of a sweep as experiments, with policies that a program adds too. Names in them
/// are relative to the folder of `base_file`; remarks go to stderr.
PointRunner experiments_at(const std::filesystem::path& base_file, const Policies& = {});

}  // namespace moesim
