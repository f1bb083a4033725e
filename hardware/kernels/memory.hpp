// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/kernel.hpp"

namespace moesim {

extern const Kernel memory_kernel;

/// An operation that only moves memory: norms, permutes, top-k.
Cost memory_op(Bytes moved, const GpuSpec&);

}  // namespace moesim
