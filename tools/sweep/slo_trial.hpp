// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/sweep/slo_search.hpp"

namespace moesim {

/// Trial of a run under a load (requests/s, or sessions alive): what a search asks. Its goodput is
/// at most what arrives. While a short run drains, more requests end in the measured time than came
/// in it, and the search would take that for merit. The goodput of sessions are those that are
/// alive, by the share of their turns that met the SLO.
Trial trial_of(const Json& config, const Json& report, double rate, const SloSearch&);

/// Returns what a run that misses lacks: where a backlog grows, "capacity"; else the latency that
/// fewest requests keep. For sessions it is the latency that is furthest beyond its limit.
std::string lack_of(const SloRun&, const SloSearch&);

}  // namespace moesim
