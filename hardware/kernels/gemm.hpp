// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/kernel.hpp"

namespace moesim {

extern const Kernel gemm_kernel;

/// [m, k] x [k, n] in a format of the tables (table_names()).
struct GemmCall {
  std::string_view precision;
  double m = 0, n = 0, k = 0;
};
Question ask(const GemmCall&, const GpuSpec&);

/// Work of [m, k] x [k, n] on a GPU of so many SMs.
TiledWork gemm_work(double m, double n, double k, Operands, Tile, int sms);

/// Prices a dense GEMM [m, k] x [k, n]: from the tables where they have its format, else the
/// roofline of its tiles.
Cost gemm(double m, double n, double k, Precision weights, Precision activations, const GpuSpec&);

}  // namespace moesim
