// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/hybrid_ep.hpp"

namespace moesim {

constinit const Kernel hybrid_all_to_all_kernel{
    .name = "hybrid_all_to_all",
    .summary = "tokens to experts, one message for each node and GPU, in one pipelined kernel",
    .law = Law::links,
    .points = {"moe_a2a", "HybridEP dispatch"},
    .power = PowerClass::exchanges,
};

constinit const Kernel hybrid_combine_kernel{
    .name = "hybrid_combine",
    .summary = "the same tokens on their way back",
    .law = Law::links,
    .points = {"moe_a2a", "HybridEP combine"},
    .power = PowerClass::exchanges,
};

}  // namespace moesim
