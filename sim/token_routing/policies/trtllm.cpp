// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/per_thread.hpp"
#include "sim/token_routing/row_router.hpp"

namespace moesim {

namespace {

// The j-th occurrence of an expert among 1,024 consecutive selections of a rank takes replica
// (j + block + rank) mod r: a round robin per expert. [TensorRT-LLM]
class Trtllm final : public RowRouter {
  void choose(const RoutingProblem& problem,
              std::span<std::int32_t> slot_of_selection) const override {
    std::vector<std::int32_t>& seen = seen_of_expert_.local();
    const std::size_t k = problem.rows.k();
    for_each_token(problem.rows,
                   [&](std::int32_t rank, std::uint32_t row, std::size_t first, std::size_t last) {
                     for (std::size_t i = first; i < last; ++i) {
                       const std::size_t position = row * k + i - first;
                       if (position % block_size == 0) seen.assign(problem.tokens.size(), 0);
                       const std::uint16_t expert = problem.rows.ids[i];
                       const auto slots = problem.placement.slots_of(expert);
                       const auto turn = at(seen[expert]++) + position / block_size + at(rank);
                       slot_of_selection[i] = slots[turn % slots.size()];
                     }
                   });
  }

  static constexpr std::size_t block_size = 1024;
  PerThread<std::vector<std::int32_t>> seen_of_expert_;  // [experts]
};

}  // namespace

TokenRouterFactory make_trtllm(ConfigReader&) {
  return [](const RoutingContext&) { return std::make_unique<Trtllm>(); };
}

}  // namespace moesim
