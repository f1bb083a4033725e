// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sim/experiment/deployment.hpp"

namespace moesim {

/// Answers batches, a line each, with what an EP group of the deployment takes for them: from stdin
/// to stdout, until the input ends. Throws ConfigError at the first line that is wrong.
void price_stdin(const Deployment&);

/// The same on a Unix socket of this path, until SIGINT or SIGTERM: one caller after another, each
/// begins anew. A line that is wrong is answered with an error. Throws ConfigError where the socket
/// cannot be made.
void serve_prices(const Deployment&, const std::string& path);

}  // namespace moesim
