// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/row_router.hpp"

namespace moesim {

namespace {

// replica = ((row * 2654435769) mod 2^32) mod r, Knuth's multiplicative hash of the token's row:
// all experts of a token with equally many replicas take the same one. [vLLM]
class Vllm final : public RowRouter {
  void choose(const RoutingProblem& problem,
              std::span<std::int32_t> slot_of_selection) const override {
    for_each_token(problem.rows,
                   [&](std::int32_t, std::uint32_t row, std::size_t first, std::size_t last) {
                     const std::uint32_t hash = row * 2654435769U;
                     for (std::size_t i = first; i < last; ++i) {
                       const auto slots = problem.placement.slots_of(problem.rows.ids[i]);
                       slot_of_selection[i] = slots[hash % slots.size()];
                     }
                   });
  }
};

// Rule of vLLM before: replica = (row * k + place in the top-k) mod r. With even k and two replicas
// that is the parity of the place, whatever the token. [vLLM]
class VllmLegacy final : public RowRouter {
  void choose(const RoutingProblem& problem,
              std::span<std::int32_t> slot_of_selection) const override {
    for_each_token(
        problem.rows, [&](std::int32_t, std::uint32_t row, std::size_t first, std::size_t last) {
          for (std::size_t i = first; i < last; ++i) {
            const auto slots = problem.placement.slots_of(problem.rows.ids[i]);
            slot_of_selection[i] = slots[(row * (last - first) + i - first) % slots.size()];
          }
        });
  }
};

}  // namespace

TokenRouterFactory make_vllm(ConfigReader&) {
  return [](const RoutingContext&) { return std::make_unique<Vllm>(); };
}

TokenRouterFactory make_vllm_legacy(ConfigReader&) {
  return [](const RoutingContext&) { return std::make_unique<VllmLegacy>(); };
}

}  // namespace moesim
