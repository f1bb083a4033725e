// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"

namespace moesim {

/// Returns what a request router is built with. It has the size of the world, and the rough times
/// of a prompt token, a token sent away, an expert's weights and a cached token.
RouterContext router_context(const Deployment&);

}  // namespace moesim
