// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "sim/token_routing/routers.hpp"

namespace moesim {

/// A routing that gives every selection a slot by itself, as engines' kernels do: each rank on its
/// own tokens, without the group's counts. Balance is at best statistical. Replicas are numbered in
/// slot order.
class RowRouter : public TokenRouter {
 public:
  void route(const RoutingProblem& problem, SlotChoice choice) const final {
    check(!problem.rows.source_rank.empty() ||
              std::all_of(problem.tokens.begin(), problem.tokens.end(),
                          [](std::int32_t tokens) { return tokens == 0; }),
          "a routing that needs token rows was given counts alone");
    choose(problem, choice.slot_of_selection);
    for (std::size_t i = 0; i < problem.rows.dropped.size(); ++i) {
      if (problem.rows.dropped[i] != 0) choice.slot_of_selection[i] = -1;
    }
    std::fill(choice.tokens_of_slot.begin(), choice.tokens_of_slot.end(), 0);
    for (const std::int32_t slot : choice.slot_of_selection) {
      if (slot >= 0) ++choice.tokens_of_slot[at(slot)];
    }
  }
  bool needs_global_counts() const final { return false; }
  bool needs_token_rows() const final { return true; }

 protected:
  /// Calls visit(rank, row, first, last) for each token: its row on its source rank and its
  /// selections.
  template <class Visit>
  static void for_each_token(const TokenRows& rows, Visit&& visit) {
    const std::size_t k = rows.k();
    std::uint32_t row = 0;
    for (std::size_t token = 0; token < rows.source_rank.size(); ++token, ++row) {
      if (token > 0 && rows.source_rank[token] != rows.source_rank[token - 1]) row = 0;
      visit(rows.source_rank[token], row, token * k, (token + 1) * k);
    }
  }

 private:
  /// Writes the slot of every selection, [tokens, k].
  virtual void choose(const RoutingProblem&, std::span<std::int32_t> slot_of_selection) const = 0;
};

}  // namespace moesim
