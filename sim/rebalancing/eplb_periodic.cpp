// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/periodic.hpp"

namespace moesim {

// The engine stops for all of it, or, with layers_per_chunk, after every step for so many layers
// (SGLang's eplb_rebalance_layers_per_chunk).
std::unique_ptr<Rebalancer> make_eplb_periodic(ConfigReader& options,
                                               const RebalancingContext& context) {
  RebalancePlan how;
  how.layers_per_chunk = static_cast<int>(options.integer_or("layers_per_chunk", 0, {0, 1e6}));
  return std::make_unique<Periodic>(options, context, how);
}

}  // namespace moesim
