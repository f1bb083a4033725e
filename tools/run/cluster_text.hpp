// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sim/report/cluster_report.hpp"

namespace moesim {

/// Tables for a terminal: a row for each deployment, their sums, and what the spine carries.
std::string cluster_text(const ClusterReport&);

}  // namespace moesim
