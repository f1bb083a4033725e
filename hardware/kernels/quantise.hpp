// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/roofline.hpp"
#include "hardware/tables/measured_kernel.hpp"

namespace moesim {

/// Computing the scales of [m, k] activations and writing them in fp8 or narrower.
Cost quantise(double m, double k, Precision, const GpuSpec&);

struct QuantiseCall {
  double m = 0, k = 0;
};
const MeasuredKernel& quantise_table();
Question ask(const QuantiseCall&, const GpuSpec&);

}  // namespace moesim
