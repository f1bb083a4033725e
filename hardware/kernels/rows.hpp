// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "hardware/tables/measured_kernel.hpp"

namespace moesim {

/// The table: every kernel that tables of measured times are read of.
std::span<const MeasuredKernel* const> measured_kernels();
/// Null where no row has the name.
const MeasuredKernel* measured_kernel(std::string_view name);

}  // namespace moesim
