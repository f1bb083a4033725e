// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace moesim {

/// The kernels of expert layers: grouped_gemm_kernel, masked_grouped_gemm_kernel, mega_moe_kernel.
enum class ExpertKernel { grouped_gemm, masked, mega_moe };
inline constexpr std::size_t expert_kernels = 3;

}  // namespace moesim
