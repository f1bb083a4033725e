// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/capacity/capacity.hpp"
#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// The way of one layer's tokens after the gate: what a capacity lets run, which slots serve it,
/// and what that is for every GPU. Memory is used again from layer to layer; one per thread.
class RoutedLayer {
 public:
  /// Puts selections to a capacity. `source_gpu` [tokens] is where each token is; `backlog` holds
  /// the selections of the step before and afterwards those that wait for the next one; `tokens`
  /// [experts] is overwritten with the selections that run. Answers the problem that is left, good
  /// until the next call.
  RoutingProblem limit(const CapacityRule&, const RoutingProblem&,
                       std::span<const std::int32_t> source_gpu,
                       std::vector<DelayedSelection>& backlog, std::span<std::int32_t> tokens,
                       CapacityTally&);
  /// The same for keep_active() in the place of a capacity: tokens stay where they are.
  RoutingProblem keep_active(int keep, const RoutingProblem&,
                             std::span<const std::int32_t> source_gpu,
                             std::span<std::int32_t> tokens, CapacityTally&);
  /// GPUs that hold the tokens of the limited problem, [tokens].
  std::span<const std::int32_t> source_gpu() const { return choices_.source_gpu; }

  /// Chooses the slots, and adds up what they are for every GPU.
  void route(const TokenRouter&, const RoutingProblem&, LayerLoad&);
  /// Placement of the experts while the layer runs: the problem's, or the one with copies that the
  /// step brings. Copies follow the slots of their GPU. Good until the next call.
  const LayerPlacement& placement() const { return *placement_; }
  /// Tokens of each slot by the last choice, [slots of placement()].
  const std::vector<std::int32_t>& tokens_of_slot() const { return tokens_of_slot_; }
  /// The copies that the step brings for this layer.
  std::span<const StepCopy> copies() const { return copies_; }
  /// Returns the slot of every selection, [tokens, k], -1 for those that do not run. Slots are the
  /// router's where it needs token rows. Else they are dealt out in order, or where copies are
  /// brought to the nearest first.
  std::span<const std::int32_t> slot_of_selection(const TokenRouter&, const RoutingProblem&);

 private:
  void give_slices(const RoutingProblem&);
  void add_copies(const LayerPlacement& standing);
  void take(const RoutingProblem&, std::span<const std::int32_t> source_gpu);
  RoutingProblem left(const RoutingProblem&, std::span<const std::int32_t> tokens) const;

  LayerChoices choices_;
  std::vector<std::int32_t> tokens_of_slot_, slot_of_selection_;
  std::vector<StepCopy> copies_;
  std::optional<LayerPlacement> with_copies_;
  const LayerPlacement* placement_ = nullptr;
};

}  // namespace moesim
