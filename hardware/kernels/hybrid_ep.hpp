// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/kernel.hpp"

namespace moesim {

/// NVIDIA's Hybrid-EP (DeepEP, branch hybrid-ep): a token crosses the network once for each NVLink
/// domain that has one of its experts, and NVLink once for each GPU there, in one pipelined kernel.
/// Their price is Fabric::exchange.
extern const Kernel hybrid_all_to_all_kernel, hybrid_combine_kernel;

}  // namespace moesim
