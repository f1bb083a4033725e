// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "traces/gating/gating.hpp"

namespace moesim {

// One constructor per row of the table in gating.cpp; the options stand above each.
std::unique_ptr<Gating> make_uniform_gating(ConfigReader& options);
std::unique_ptr<Gating> make_popularity_gating(ConfigReader& options);
std::unique_ptr<Gating> make_topical_gating(ConfigReader& options);
std::unique_ptr<Gating> make_recorded_gating(ConfigReader& options);

}  // namespace moesim
