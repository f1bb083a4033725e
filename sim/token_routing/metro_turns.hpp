// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/placement/placement.hpp"

namespace moesim {

/// METRO's greedy choice for one layer whose experts come in a fixed order (policies/metro.cpp):
/// what depends on the placement alone, laid out for it.
class MetroTurns {
 public:
  /// `order` has every expert once. `vectors`: with SSSE3 where the CPU has it and 16 GPUs or fewer
  /// have 127 slots or fewer each; the choices are the same.
  MetroTurns(const LayerPlacement&, std::span<const std::int32_t> order, bool vectors = true);

  std::size_t experts() const { return experts_; }
  /// Tokens of every expert [experts] to tokens of every slot [slots], which is overwritten.
  /// `active_on_gpu` is memory of the caller.
  void route(std::span<const std::int32_t> tokens, std::span<std::int32_t> tokens_of_slot,
             std::vector<std::int32_t>& active_on_gpu) const;

 private:
  // Only experts with several hosts choose, and each waits for the choices before it. Where the
  // others go is known: they are counted on their GPUs before the choice that follows them, in
  // turns of a fixed number, without a branch. A turn that has fewer counts on GPUs that are none.
  static constexpr std::uint32_t known_per_turn = 4;
  struct Known {
    std::uint32_t expert = 0;
    std::uint32_t place = 0;  // its GPU, or its slot
  };
  struct Place {
    std::uint32_t slot = 0, gpu = 0;
  };
  struct Turn {
    std::array<Known, known_per_turn> known{};
    std::int32_t chooses = -1;                   // the expert after them; none: -1
    std::uint32_t first_host = 0, end_host = 0;  // in hosts_: two at least
  };

  void route_plainly(std::span<const std::int32_t> tokens, std::span<std::int32_t> tokens_of_slot,
                     std::vector<std::int32_t>& active_on_gpu) const;
  void route_in_lanes(std::span<const std::int32_t> tokens,
                      std::span<std::int32_t> tokens_of_slot) const;

  std::size_t experts_;
  int gpus_;
  bool in_lanes_;
  std::vector<Known> sole_slots_;
  std::vector<Turn> turns_;
  std::vector<Place> hosts_;  // of experts that choose, ascending by GPU; an odd number each
};

}  // namespace moesim
