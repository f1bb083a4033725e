// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sim/report/report.hpp"

namespace moesim {

/// Value of a summary with two decimals; "-" where nothing was summarised.
std::string ms_text(const Summary&, double Summary::*value);

/// Line that says what stopped, for how long, and what it cost. Ends with a newline.
std::string outage_text(const OutageStats&);

/// Text of a report for a terminal: load, latencies, steps, where their time goes, and what failed
/// or moved. `rejections` says why requests were rejected; empty: none was.
std::string report_text(const Report&, const Deployment&, const std::string& rejections);

}  // namespace moesim
