// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/expert_layout.hpp"

#include <algorithm>
#include <utility>

namespace moesim {

ExpertLayout::ExpertLayout(const Deployment& deployment)
    : deployment_(deployment),
      rules_(deployment.rules),
      mover_(mover_of(deployment)),
      rebalancer_(deployment.rebalancer()),
      relocation_(deployment.movement.link_share),
      recovery_(deployment.failures, deployment.placement_problem, deployment.parallel.ep) {
  if (deployment.failures.placer) {
    constexpr std::size_t steps = 1000;  // vLLM's window
    recent_.emplace(steps, deployment.model.moe_layers(), deployment.model.experts);
  }
}

void ExpertLayout::take(ExpertPlacement placement) {
  moved_ = std::move(placement);
  rules_ = rules_over(deployment_, *moved_);
}

void ExpertLayout::pass(Seconds idle) { relocation_.pass(idle); }

void ExpertLayout::switch_arrived() {
  std::vector<RebalancePlan::Change> layers = relocation_.take_arrived();
  if (layers.empty()) return;
  if (!moved_) moved_ = deployment_.placement;
  for (RebalancePlan::Change& change : layers) {
    (*moved_)[at(change.layer)] = std::move(change.placement);
  }
  rules_ = rules_over(deployment_, *moved_);
}

// Counts what the gate chose for real tokens, as engines record: without dummies, and before a
// capacity drops or moves any.
void ExpertLayout::count_real_tokens(const StepBatch& batch,
                                     std::span<const std::uint32_t> request_of_range,
                                     std::span<const std::int32_t> tokens_of_expert,
                                     const RowSource& rows) {
  real_tokens_.assign(tokens_of_expert.begin(), tokens_of_expert.end());
  const bool all_real =
      std::ranges::find(request_of_range, StepSeen::no_request) == request_of_range.end();
  if (all_real && !deployment_.capacity->limits() && deployment_.keep_experts == 0) return;
  std::ranges::fill(real_tokens_, 0);
  const auto experts = static_cast<std::size_t>(deployment_.model.experts);
  const auto k = static_cast<std::size_t>(deployment_.model.experts_per_token);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    if (request_of_range[i] == StepSeen::no_request) continue;
    const RoutingTrace& trace = rows.trace(batch.rows[i].phase);
    const auto row_ids = static_cast<std::size_t>(trace.row_ids());
    const auto first = static_cast<std::size_t>(batch.rows[i].first_row) * row_ids;
    trace.visit([&](auto ids) {
      const auto chosen =
          ids.subspan(first, static_cast<std::size_t>(batch.rows[i].count) * row_ids);
      for (std::size_t j = 0; j < chosen.size(); ++j)
        ++real_tokens_[j % row_ids / k * experts + static_cast<std::size_t>(chosen[j])];
    });
  }
}

void ExpertLayout::after_step(const StepBatch& batch,
                              std::span<const std::uint32_t> request_of_range,
                              const RowSource& rows, Time now, StepCost& cost) {
  relocation_.beside(cost);
  if (recent_ || rebalancer_->watches())
    count_real_tokens(batch, request_of_range, cost.tokens_of_expert, rows);
  if (recent_) recent_->add(real_tokens_);
  if (rebalancer_->watches()) {
    const StepSeen seen{steps_++,          now + to_duration(cost.total),
                        real_tokens_,      batch.rows,
                        request_of_range,  rows,
                        placement(),       recovery_.live(),
                        relocation_.busy()};
    if (auto plan = rebalancer_->after_step(seen)) {
      relocation_.start(std::move(*plan), seen, mover_);
    }
  }
  relocation_.stall(cost);
}

ExpertPlacement ExpertLayout::placed_anew() const {
  return recovery_.placed_anew(recent_ ? recent_->loads() : std::vector<ExpertLoad>{});
}

// Layer after layer, and what has no copy left from outside, every GPU for itself.
MoveCost ExpertLayout::move_all(ExpertPlacement to, std::span<const char> sources) {
  MoveCost all;
  all.reloaded.resize(sources.size());
  for (std::size_t layer = 0; layer < to.size(); ++layer) {
    to[layer] = mover_.arranged(placement()[layer], std::move(to[layer]));
    const MoveCost cost = mover_.cost(placement()[layer], to[layer], sources);
    all.time += cost.time;
    all.nvlink += cost.nvlink;
    all.network += cost.network;
    for (std::size_t rank = 0; rank < all.reloaded.size(); ++rank) {
      all.reloaded[rank] += cost.reloaded[rank];
    }
  }
  take(std::move(to));
  return all;
}

std::int64_t ExpertLayout::kv_blocks() const {
  return kv_blocks_for_experts(deployment_, std::ranges::count(recovery_.live(), 1));
}

OutageRecord& ExpertLayout::stop(const Outage& outage, Time now) {
  relocation_.cancel();
  return recovery_.stop(outage, placement(), now);
}

Seconds ExpertLayout::make_whole(OutageRecord& record) {
  if (!recovery_.any_live()) return {};
  const MoveCost moved = move_all(placed_anew(), recovery_.live());
  record.moved = moved.nvlink + moved.network;
  Bytes most{};
  for (const Bytes bytes : moved.reloaded) {
    record.reloaded += bytes * deployment_.parallel.moe_tp();
    most = std::max(most, bytes);
  }
  record.stopped = deployment_.failures.detection + moved.time + most / deployment_.failures.reload;
  return record.stopped;
}

Seconds ExpertLayout::recover(const Outage& outage, Time now) {
  relocation_.cancel();
  const std::vector<char> sources = recovery_.live();
  const bool starts_anew = !recovery_.any_live();
  OutageRecord& record = recovery_.end(outage, now);
  if (starts_anew) {
    // Every GPU loads all its weights from outside.
    const Bytes weights =
        deployment_.memory.weights + deployment_.memory.experts + deployment_.memory.replicas;
    record.reloaded = weights * deployment_.parallel.gpus();
    record.stopped_again = weights / deployment_.failures.reload;
    take(placed_anew());
    return record.stopped_again;
  }
  const MoveCost moved = move_all(placed_anew(), sources);
  record.moved_back = moved.nvlink + moved.network;
  record.stopped_again = moved.time;
  return moved.time;
}

}  // namespace moesim
