// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"

namespace moesim {

/// What a request router is built with in this deployment: the size of the world, and about how
/// long a prompt token, a token sent away, an expert's weights and a cached token take.
RouterContext router_context(const Deployment&);

}  // namespace moesim
