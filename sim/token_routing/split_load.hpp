// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "hardware/at.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// Tokens on the slots of a layer, and what each GPU has of them, for searches that move tokens.
class SplitLoad {
 public:
  /// Room of one thread, kept between searches.
  struct Workspace {
    std::vector<std::int32_t> active, tokens;  // [GPUs]
  };

  SplitLoad(const LayerPlacement& placement, Workspace& workspace,
            std::span<std::int32_t> tokens_of_slot)
      : active(workspace.active),
        tokens(workspace.tokens),
        of_slot(tokens_of_slot),
        placement_(placement) {
    active.assign(at(placement.gpus()), 0);
    tokens.assign(at(placement.gpus()), 0);
    for (std::size_t slot = 0; slot < of_slot.size(); ++slot)
      add(static_cast<std::int32_t>(slot), std::exchange(of_slot[slot], 0));
  }

  void add(std::int32_t slot, std::int32_t more) {
    const auto gpu = at(placement_.gpu_of_slot(slot));
    const bool was_active = of_slot[at(slot)] > 0;
    of_slot[at(slot)] += more;
    tokens[gpu] += more;
    active[gpu] += (of_slot[at(slot)] > 0 ? 1 : 0) - (was_active ? 1 : 0);
  }

  void move(std::int32_t from, std::int32_t to, std::int32_t moved) {
    add(from, -moved);
    add(to, moved);
  }

  std::vector<std::int32_t>& active;  ///< [GPUs] slots with tokens
  std::vector<std::int32_t>& tokens;  ///< [GPUs]
  std::span<std::int32_t> of_slot;    ///< [slots] tokens

 private:
  const LayerPlacement& placement_;
};

}  // namespace moesim
