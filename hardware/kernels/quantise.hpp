// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/memory.hpp"

namespace moesim {

extern const Kernel quantise_kernel;

/// Computing the scales of [m, k] activations and writing them in fp8 or narrower.
Cost quantise(double m, double k, Precision, const GpuSpec&);

struct QuantiseCall {
  double m = 0, k = 0;
};
Question ask(const QuantiseCall&, const GpuSpec&);

}  // namespace moesim
