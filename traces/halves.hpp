// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "traces/routing_trace.hpp"

namespace moesim {

/// Which requests of a trace policies are fitted on, [requests]; on the others they are tried.
/// Requests of a workload go to either half in turn, and the first of a workload to the half that
/// has fewer so far (ties: the fitted one), so that both halves hold every workload that has two
/// requests. Where the requests of a workload stand together this is every even-numbered request.
std::vector<char> fitted_half(const RoutingTrace&);

}  // namespace moesim
