// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/step_copies.hpp"

#include <algorithm>

#include "hardware/at.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

void CopyPlan::start(const RoutingProblem& problem, int slots_of_gpu) {
  placement_ = &problem.placement;
  tokens_of_slot_.resize(at(placement_->slots()));
  split_evenly(problem, tokens_of_slot_);
  first_tokens_ = tokens_of_slot_;
  load_.assign(at(placement_->gpus()), 0);
  room_.assign(at(placement_->gpus()), slots_of_gpu);
  copies_.clear();
  hottest_first_.clear();
  for (std::int32_t slot = 0; slot < placement_->slots(); ++slot) {
    load_[at(placement_->gpu_of_slot(slot))] += tokens(slot);
    if (tokens(slot) > 0) hottest_first_.push_back(slot);
  }
  std::ranges::stable_sort(hottest_first_, std::greater<>(),
                           [&](std::int32_t slot) { return tokens(slot); });
}

bool CopyPlan::takes(int expert, int gpu) const {
  if (room_[at(gpu)] == 0) return false;
  const auto hosts = placement_->host_gpus_of(expert);
  return std::ranges::find(hosts, gpu) == hosts.end() &&
         std::ranges::none_of(copies_, [&](const StepCopy& copy) {
           return copy.expert == expert && copy.gpu == gpu;
         });
}

void CopyPlan::bring(int slot, int gpu, std::int32_t tokens) {
  copies_.push_back({placement_->expert_of_slot(slot), gpu, tokens});
  tokens_of_slot_[at(slot)] -= tokens;
  load_[at(placement_->gpu_of_slot(slot))] -= tokens;
  load_[at(gpu)] += tokens;
  --room_[at(gpu)];
}

void CopyPlan::write(SlotChoice choice) const {
  std::ranges::copy(tokens_of_slot_, choice.tokens_of_slot.begin());
  if (copies_.empty()) return;
  check(choice.copies != nullptr, "a routing that brings copies has no place to say which");
  *choice.copies = copies_;
}

}  // namespace moesim
