// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/kernel.hpp"

namespace moesim {

/// Hybrid-EP of NVIDIA (DeepEP, branch hybrid-ep), one pipelined kernel. A token crosses the
/// network once for each NVLink domain that has one of its experts, and NVLink once for each GPU
/// there. Their price is Fabric::exchange.
extern const Kernel hybrid_all_to_all_kernel, hybrid_combine_kernel;

}  // namespace moesim
