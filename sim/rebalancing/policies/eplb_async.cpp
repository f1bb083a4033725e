// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/periodic.hpp"

namespace moesim {

std::span<const Key> eplb_async_keys() { return periodic_keys; }

// vLLM's use_async: layer by layer beside the steps.
RebalancerFactory make_eplb_async(ConfigReader& options, const RebalancingContext& context) {
  RebalancePlan how;
  how.synchronous = false;
  return copies_of(Periodic(options, context, how));
}

}  // namespace moesim
