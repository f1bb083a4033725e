// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "traces/gating/gating.hpp"

namespace moesim {

// One constructor per row of the table in gating.cpp; the options stand above each.
std::unique_ptr<Gating> make_uniform_gating(ConfigReader& options);
std::span<const Key> uniform_gating_keys();
std::unique_ptr<Gating> make_popularity_gating(ConfigReader& options);
std::span<const Key> popularity_gating_keys();
std::unique_ptr<Gating> make_topical_gating(ConfigReader& options);
std::span<const Key> topical_gating_keys();
std::unique_ptr<Gating> make_recorded_gating(ConfigReader& options);
std::span<const Key> recorded_gating_keys();

}  // namespace moesim
