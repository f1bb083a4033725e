// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/kernel.hpp"

namespace moesim {

/// NVLinkOneSided of TensorRT-LLM, which vLLM calls flashinfer_nvlink_one_sided. A GPU writes a
/// token once into the memory of each GPU that has one of its experts, and reads the results from
/// there. All GPUs are in one NVLink domain. Their price is Fabric::exchange.
extern const Kernel one_sided_all_to_all_kernel, one_sided_combine_kernel;

/// A way of such an exchange.
struct OneSidedCall {
  bool combine = false;
  double gpus = 1;   ///< of the group
  double bytes = 0;  ///< that the busiest GPU sends to, or reads from, the others
};
Question ask(const OneSidedCall&, const GpuSpec&);

/// GPUs other than its own to which a token goes where its experts are on as many as can be.
double spread_copies(double top_k, double gpus);

}  // namespace moesim
