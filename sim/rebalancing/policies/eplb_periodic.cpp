// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/periodic.hpp"

namespace moesim {

std::span<const Key> eplb_periodic_keys() {
  static constexpr Key keys[] = {periodic_keys[0],
                                 periodic_keys[1],
                                 periodic_keys[2],
                                 periodic_keys[3],
                                 periodic_keys[4],
                                 periodic_keys[5],
                                 periodic_keys[6],
                                 {"layers_per_chunk", form::integer(0, 1e6), "0",
                                  "layers moved after a step, 0 for all at once"}};
  return keys;
}

// The engine stops for all of it, or, with layers_per_chunk, after every step for so many layers
// (SGLang's eplb_rebalance_layers_per_chunk).
RebalancerFactory make_eplb_periodic(ConfigReader& options, const RebalancingContext& context) {
  RebalancePlan how;
  how.layers_per_chunk = static_cast<int>(options.integer("layers_per_chunk"));
  return copies_of(Periodic(options, context, how));
}

}  // namespace moesim
