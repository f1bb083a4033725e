// SPDX-License-Identifier: Apache-2.0
#include "sim/capacity/capacity.hpp"

namespace moesim {

// Every selection runs: there is no rule to ask.
std::unique_ptr<CapacityRule> make_dropless(ConfigReader&) { return nullptr; }

}  // namespace moesim
