// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// The slot of `expert` on that of its GPUs that has the fewest active experts so far, ties to the
/// lowest GPU.
inline std::int32_t least_active_host(const LayerPlacement& placement, std::int32_t expert,
                                      std::span<const std::int32_t> active_on_gpu) {
  const auto hosts = placement.hosts_of(expert);
  const auto active = [&](std::int32_t slot) {
    return active_on_gpu[static_cast<std::size_t>(placement.gpu_of_slot(slot))];
  };
  std::int32_t best = hosts[0];
  for (const std::int32_t slot : hosts.subspan(1)) {
    if (active(slot) < active(best)) best = slot;
  }
  return best;
}

std::unique_ptr<TokenRouter> make_even(ConfigReader&, const ExpertPlacement&);
std::unique_ptr<TokenRouter> make_static_primary(ConfigReader&, const ExpertPlacement&);
std::unique_ptr<TokenRouter> make_metro(ConfigReader&, const ExpertPlacement&);
std::unique_ptr<TokenRouter> make_optimal(ConfigReader&, const ExpertPlacement&);

}  // namespace moesim
