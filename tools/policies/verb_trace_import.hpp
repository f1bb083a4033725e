// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/cli/verbs.hpp"

namespace moesim {

/// Adds `import` to the verb `trace`: an engine's recordings become a native trace.
void add_trace_import(CLI::App& trace, const std::shared_ptr<Action>& chosen);

}  // namespace moesim
