// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "hardware/keys.hpp"

namespace moesim {

enum class BindingKind { random, by_workload, by_session };
inline constexpr std::array<std::string_view, 3> binding_names{"random", "by_workload",
                                                               "by_session"};
enum class Fidelity { exact, sampled };
inline constexpr std::array<std::string_view, 2> fidelity_names{"exact", "sampled"};

/// Tables of objects in an experiment that no part of the program reads for itself.
Keys binding_keys, workload_keys, site_power_keys, background_keys;

}  // namespace moesim
