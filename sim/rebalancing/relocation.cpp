// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/relocation.hpp"

#include <algorithm>

#include "hardware/at.hpp"
#include "hardware/sums.hpp"

namespace moesim {

namespace {

// Constants of links were fitted on exchanges in which every GPU sends.
constexpr Evidence moved = Evidence::extrapolated;

void charge(StepCost& step, Resource bound, Evidence evidence, Seconds time) {
  moesim::charge(step, Part::rebalancing, {time, bound, {}, evidence});
  step.total += time;
  if (!step.afd) return;
  step.afd->total += time;
  step.afd->stalls += time;
}

// Seconds of a step in which a link that bounds a transfer was what its own communication waited
// for.
Seconds contended(const StepCost& step, Resource link) {
  double seconds = 0;
  if (link != Resource::nvlink && link != Resource::network) return Seconds{};
  for (const Part part : {Part::all_reduce, Part::dispatch, Part::combine}) {
    seconds += step.parts[at(part)][at(link)];
  }
  return Seconds(seconds);
}

}  // namespace

void Relocation::start(RebalancePlan plan, const StepSeen& seen, const Mover& mover) {
  check(!busy(), "a rebalancing began before the last one had ended");
  synchronous_ = plan.synchronous;
  planning_ = plan.planning;
  log_.planning += plan.planning;
  RebalancingLog::Event event{
      seen.now, seen.step, plan.changes.size(), {}, plan.imbalance_before, plan.imbalance_after};
  for (RebalancePlan::Change& change : plan.changes) {
    MoveCost cost = mover.cost(seen.placement[at(change.layer)], change.placement);
    event.bytes += cost.nvlink + cost.network;
    const Seconds time = cost.time;
    layers_.push_back({std::move(change), std::move(cost), time});
  }
  chunk_ = plan.layers_per_chunk > 0 ? at(plan.layers_per_chunk) : layers_.size();
  ++(layers_.empty() ? log_.declined : log_.plans);
  if (!layers_.empty() && log_.events.size() < RebalancingLog::most_events) {
    log_.events.push_back(event);
  }
}

void Relocation::front_arrives() {
  Moving& front = layers_.front();
  log_.nvlink += front.cost.nvlink;
  log_.network += front.cost.network;
  log_.copied += front.cost.copied;
  log_.moving += front.cost.time;
  ++log_.layers_switched;
  arrived_.push_back(std::move(front.change));
  layers_.pop_front();
}

void Relocation::pass(Seconds idle) {
  if (synchronous_) return;
  const Seconds planned = std::min(planning_, idle);
  planning_ -= planned;
  idle -= planned;
  while (!layers_.empty() && layers_.front().left <= idle) {
    idle -= layers_.front().left;
    front_arrives();
  }
  if (!layers_.empty()) layers_.front().left -= idle;
}

// A step of T seconds uses the transfer's link for C. With share s the C become C / (1 - s), of
// which the transfer gets s: extra = C s / (1 - s), and as much progress besides T - C. A transfer
// that needs only a part of that ends after that part of the step.
void Relocation::beside(StepCost& step) {
  if (synchronous_ || !busy()) return;
  const Seconds length = step.total;
  double rest = 1;  // of the step
  const Seconds planned = std::min(planning_, length);
  planning_ -= planned;
  rest -= planned / length;
  while (!layers_.empty() && rest > 0) {
    const Resource link = layers_.front().cost.bound;
    const Seconds shared = contended(step, link);
    const Seconds extra = shared * (link_share_ / (1 - link_share_));
    const Seconds progress = length - shared + extra;
    const bool arrives = layers_.front().left <= progress * rest;
    const double part = arrives ? layers_.front().left / progress : rest;
    rest -= part;
    log_.slowdown += extra * part;
    charge(step, link, moved, extra * part);
    if (!arrives) {
      layers_.front().left -= progress * part;
      return;
    }
    front_arrives();
  }
}

void Relocation::stall(StepCost& step) {
  if (!synchronous_ || !busy()) return;
  charge(step, Resource::launch, Evidence::charged, planning_);
  log_.stalled += planning_;
  planning_ = {};
  for (std::size_t i = 0; i < chunk_ && !layers_.empty(); ++i) {
    charge(step, layers_.front().cost.bound, moved, layers_.front().cost.time);
    log_.stalled += layers_.front().cost.time;
    front_arrives();
  }
}

std::vector<RebalancePlan::Change> Relocation::take_arrived() {
  return std::exchange(arrived_, {});
}

void Relocation::cancel() {
  layers_.clear();
  arrived_.clear();
  planning_ = {};
}

RebalancingLog& RebalancingLog::operator+=(const RebalancingLog& other) {
  using T = RebalancingLog;
  add_members<&T::plans, &T::declined, &T::layers_switched, &T::nvlink, &T::network, &T::copied,
              &T::planning, &T::stalled, &T::moving, &T::slowdown>(*this, other);
  const std::size_t room = most_events - std::min(most_events, events.size());
  const auto taken = static_cast<std::ptrdiff_t>(std::min(room, other.events.size()));
  events.insert(events.end(), other.events.begin(), other.events.begin() + taken);
  return *this;
}

}  // namespace moesim
