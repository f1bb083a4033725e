// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/memory.hpp"

namespace moesim {

constinit const Kernel memory_kernel{
    .name = "memory",
    .summary = "bytes moved through HBM: norms, permutes, top-k",
    .law = Law::roofline,
};

Cost memory_op(Bytes moved, const GpuSpec& gpu) {
  return roofline({.hbm = moved}, {}, memory_kernel, gpu);
}

}  // namespace moesim
