// SPDX-License-Identifier: Apache-2.0
#include "sim/step/routed_layer.hpp"

#include "sim/dispatch/token_traffic.hpp"
#include "sim/step/reselection.hpp"

namespace moesim {

void RoutedLayer::take(const RoutingProblem& problem, std::span<const std::int32_t> source_gpu) {
  choices_.ids.assign(problem.rows.ids.begin(), problem.rows.ids.end());
  choices_.source_rank.assign(problem.rows.source_rank.begin(), problem.rows.source_rank.end());
  choices_.source_gpu.assign(source_gpu.begin(), source_gpu.end());
}

RoutingProblem RoutedLayer::left(const RoutingProblem& problem,
                                 std::span<const std::int32_t> tokens) const {
  return {problem.placement,
          tokens,
          problem.layer,
          problem.step,
          {choices_.ids, choices_.source_rank, choices_.dropped}};
}

RoutingProblem RoutedLayer::keep_active(int keep, const RoutingProblem& problem,
                                        std::span<const std::int32_t> source_gpu,
                                        std::span<std::int32_t> tokens, CapacityTally& tally) {
  take(problem, source_gpu);
  moesim::keep_active(keep, choices_, tokens, tally);
  return left(problem, tokens);
}

RoutingProblem RoutedLayer::limit(const CapacityRule& rule, const RoutingProblem& problem,
                                  std::span<const std::int32_t> source_gpu,
                                  std::vector<DelayedSelection>& backlog,
                                  std::span<std::int32_t> tokens, CapacityTally& tally) {
  take(problem, source_gpu);
  limit_choices(rule, choices_, backlog, tokens, tally);
  return left(problem, tokens);
}

void RoutedLayer::route(const TokenRouter& router, const RoutingProblem& problem, LayerLoad& load) {
  tokens_of_slot_.resize(at(problem.placement.slots()));
  slot_of_selection_.resize(router.needs_token_rows() ? problem.rows.ids.size() : 0);
  copies_.clear();
  router.route(problem,
               {tokens_of_slot_, slot_of_selection_, router.step_slots() > 0 ? &copies_ : nullptr});
  placement_ = &problem.placement;
  give_slices(problem);
  if (!copies_.empty()) add_copies(problem.placement);
  layer_load(*placement_, tokens_of_slot_, load);
}

// All slices of an expert compute all of its tokens.
void RoutedLayer::give_slices(const RoutingProblem& problem) {
  const LayerPlacement& placement = problem.placement;
  for (int gpu = 0; placement.cut() > 0 && gpu < placement.gpus(); ++gpu) {
    for (int slot = placement.first_slice(gpu); slot < placement.first_slot(gpu + 1); ++slot)
      tokens_of_slot_[at(slot)] = problem.tokens[at(placement.expert_of_slot(slot))];
  }
}

void RoutedLayer::add_copies(const LayerPlacement& standing) {
  std::vector<std::vector<int>> experts_on_gpu(at(standing.gpus()));
  std::vector<std::int32_t> tokens;
  for (int gpu = 0; gpu < standing.gpus(); ++gpu) {
    std::vector<int>& experts = experts_on_gpu[at(gpu)];
    for (int slot = standing.first_slot(gpu); slot < standing.first_slot(gpu + 1); ++slot) {
      experts.push_back(standing.expert_of_slot(slot));
      tokens.push_back(tokens_of_slot_[at(slot)]);
    }
    for (const StepCopy& copy : copies_) {
      if (copy.gpu != gpu) continue;
      experts.push_back(copy.expert);
      tokens.push_back(copy.tokens);
    }
  }
  placement_ = &with_copies_.emplace(standing.experts(), experts_on_gpu);
  tokens_of_slot_ = std::move(tokens);
}

std::span<const std::int32_t> RoutedLayer::slot_of_selection(const TokenRouter& router,
                                                             const RoutingProblem& problem) {
  if (!copies_.empty()) {
    slots_near_first(*placement_, tokens_of_slot_, problem.rows.ids, problem.rows.source_rank,
                     problem.rows.dropped, slot_of_selection_);
  } else if (!router.needs_token_rows()) {
    slots_in_order(problem.placement, tokens_of_slot_, problem.rows.ids, problem.rows.dropped,
                   slot_of_selection_);
  }
  return slot_of_selection_;
}

}  // namespace moesim
