// SPDX-License-Identifier: Apache-2.0
#include "sim/step/routed_layer.hpp"

#include "sim/dispatch/token_traffic.hpp"

namespace moesim {

RoutingProblem RoutedLayer::limit(const CapacityRule& rule, const RoutingProblem& problem,
                                  std::span<const std::int32_t> source_gpu,
                                  std::vector<DelayedSelection>& backlog,
                                  std::span<std::int32_t> tokens, CapacityTally& tally) {
  choices_.ids.assign(problem.rows.ids.begin(), problem.rows.ids.end());
  choices_.source_rank.assign(problem.rows.source_rank.begin(), problem.rows.source_rank.end());
  choices_.source_gpu.assign(source_gpu.begin(), source_gpu.end());
  limit_choices(rule, choices_, backlog, tokens, tally);
  return {problem.placement,
          tokens,
          problem.layer,
          problem.step,
          {choices_.ids, choices_.source_rank, choices_.dropped}};
}

void RoutedLayer::route(const TokenRouter& router, const RoutingProblem& problem, LayerLoad& load) {
  tokens_of_slot_.resize(static_cast<std::size_t>(problem.placement.slots()));
  slot_of_selection_.resize(router.needs_token_rows() ? problem.rows.ids.size() : 0);
  router.route(problem, {tokens_of_slot_, slot_of_selection_});
  layer_load(problem.placement, tokens_of_slot_, load);
}

std::span<const std::int32_t> RoutedLayer::slot_of_selection(const TokenRouter& router,
                                                             const RoutingProblem& problem) {
  if (!router.needs_token_rows()) {
    slots_in_order(problem.placement, tokens_of_slot_, problem.rows.ids, problem.rows.dropped,
                   slot_of_selection_);
  }
  return slot_of_selection_;
}

}  // namespace moesim
