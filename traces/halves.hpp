// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "traces/routing_trace.hpp"

namespace moesim {

/// Flags of the requests of a trace that policies are fitted on, [requests]; on the others they are
/// tried. Requests of a workload go to either half in turn. The first goes to the half that has
/// fewer so far (ties: the fitted one). So both halves hold every workload of two requests. Where
/// the requests of a workload follow each other this is every even-numbered request.
std::vector<char> fitted_half(const RoutingTrace&);

}  // namespace moesim
