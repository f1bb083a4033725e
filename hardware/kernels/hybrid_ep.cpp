// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/hybrid_ep.hpp"

#include "hardware/kernels/collectives.hpp"

namespace moesim {

constinit const Kernel hybrid_all_to_all_kernel =
    link_kernel("hybrid_all_to_all",
                "tokens to experts, one message for each node and GPU, in one pipelined kernel",
                {"moe_a2a", "HybridEP dispatch"});

constinit const Kernel hybrid_combine_kernel = link_kernel(
    "hybrid_combine", "the same tokens on their way back", {"moe_a2a", "HybridEP combine"});

}  // namespace moesim
