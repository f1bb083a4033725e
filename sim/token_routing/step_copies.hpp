// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hardware/config.hpp"
#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// Tokens of a layer while a policy decides which copies this step brings. Tokens are on the
/// standing slots, split evenly to begin with, and on the copies so far. A value: a policy tries
/// moves on another plan and keeps the better one.
class CopyPlan {
 public:
  /// Begins anew, without copies. `slots_of_gpu`: how many copies a GPU has room for.
  void start(const RoutingProblem&, int slots_of_gpu);

  /// The standing slots with tokens, in order of what they began with, most first; ties to the
  /// lowest.
  std::span<const std::int32_t> hottest_first() const { return hottest_first_; }
  std::int32_t tokens(int slot) const { return tokens_of_slot_[at(slot)]; }
  /// Tokens that a slot began with.
  std::int32_t first_tokens(int slot) const { return first_tokens_[at(slot)]; }
  /// The tokens of a GPU, copies counted.
  std::int32_t load(int gpu) const { return load_[at(gpu)]; }
  /// True if a GPU has room for one more copy, and no slot or copy of the expert.
  bool takes(int expert, int gpu) const;
  /// Brings a copy of a standing slot's expert to a GPU that takes it, for some of the slot's
  /// tokens.
  void bring(int slot, int gpu, std::int32_t tokens);

  void write(SlotChoice) const;

 private:
  const LayerPlacement* placement_ = nullptr;
  std::vector<std::int32_t> tokens_of_slot_, first_tokens_, hottest_first_;
  std::vector<std::int32_t> load_, room_;  // [gpus]
  std::vector<StepCopy> copies_;
};

/// An option of policies that bring copies.
inline constexpr Key step_slots_key{"slots", form::integer(1, 64), "2",
                                    "copies that a GPU has room for; all layers share the room"};

}  // namespace moesim
