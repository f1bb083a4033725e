// SPDX-License-Identifier: Apache-2.0
#include "sim/step/critical_path.hpp"

#include <algorithm>

#include "hardware/at.hpp"

namespace moesim {

void RankCost::add_up() {
  total = {};
  flops = {};
  hbm = {};
  energy = {};
  drawing_parts = {};
  for (const Operation& operation : operations) {
    total += operation.cost.time;
    flops += operation.cost.work.flops;
    hbm += operation.cost.work.hbm;
    energy.add(operation.part, operation.cost);
    if (operation.cost.draw > Watts{}) drawing_parts.insert(operation.part);
  }
}

void Explainer::add_row(std::string_view name, Part part, const Cost& cost, double link_bytes) {
  const auto same = [&](const ExplainedOperation& row) {
    return row.name == name && row.part == part && row.bound == cost.bound &&
           row.evidence == cost.evidence;
  };
  auto row = std::find_if(rows_->begin(), rows_->end(), same);
  if (row == rows_->end()) {
    rows_->push_back({name, part, cost.bound, cost.evidence});
    row = rows_->end() - 1;
  }
  ++row->calls;
  row->seconds += cost.time.count();
  row->flops += cost.work.flops.value();
  row->hbm_bytes += cost.work.hbm.value();
  row->l2_bytes += cost.work.l2.value();
  row->smem_bytes += cost.work.smem.value();
  row->link_bytes += link_bytes;
  row->peak_flops += cost.peak.value() * cost.time.count();
  row->joules += cost.draw.value() * cost.time.count();
}

CriticalPath::CriticalPath(const ParallelPlan& plan, const GpuSpec& gpu, const GpuSpec& expert_gpu,
                           StepCost& cost, Explainer explainer)
    : plan_(plan),
      gpu_(gpu),
      kinds_{{{&gpu, plan.stage_gpus()}, {}}},
      cost_(cost),
      explainer_(explainer),
      since_barrier_(at(plan.dp)),
      waits_(at(plan.attention_gpus())) {
  if (&expert_gpu != &gpu)
    kinds_ = {{{&gpu, plan.attention_gpus()}, {&expert_gpu, plan.expert_gpus()}}};
  cost_.segments.clear();
  cost_.stages.clear();
}

void CriticalPath::add(const RankCosts& ranks) { pending_.push_back(&ranks); }

// Finds the rank that all others wait for. Layers alike wait alike, one after the other.
void CriticalPath::find_slowest() {
  if (pending_ == before_barrier_) return;
  before_barrier_ = pending_;
  since_barrier_.assign(since_barrier_.size(), Seconds{});
  for (const auto* ranks : pending_) {
    for (std::size_t r = 0; r < ranks->size(); ++r) since_barrier_[r] += (*ranks)[r]->total;
  }
  const auto slowest = std::max_element(since_barrier_.begin(), since_barrier_.end());
  slowest_ = at(slowest - since_barrier_.begin());
  waits_.resize(since_barrier_.size() * at(plan_.tp));
  double* wait = waits_.data();
  for (const Seconds time : since_barrier_)
    wait = std::fill_n(wait, plan_.tp, (*slowest - time).count());
}

void CriticalPath::barrier() {
  find_slowest();
  for (const auto* ranks : pending_) {
    for (const Operation& operation : (*ranks)[slowest_]->operations) {
      charge(cost_, operation.part, operation.cost);
      explainer_.add(operation.name, operation.part, operation.cost);
    }
  }
  for (std::size_t gpu = 0; gpu < waits_.size(); ++gpu) cost_.idle[first_gpu_ + gpu] += waits_[gpu];
  const Seconds longest = since_barrier_[slowest_];
  spend(false, longest);
  finish_transfer(longest);
  pending_.clear();
}

void CriticalPath::every_rank(std::string_view name, Part part, const Cost& cost,
                              double link_bytes) {
  charge_every_rank(name, part, cost, link_bytes);
  spend(false, cost.time);
}

// Spends the time as a transfer that holds all SMs.
void CriticalPath::alone(std::string_view name, Part part, const Cost& cost, double link_bytes) {
  charge_every_rank(name, part, cost, link_bytes);
  spend(true, cost.time, 1);
}

// Time of every rank without a kernel's work draws as a wait does.
void CriticalPath::charge_every_rank(std::string_view name, Part part, const Cost& cost,
                                     double link_bytes) {
  charge(cost_, part, cost);
  Cost explained = cost;
  if (gpu_.power && cost.draw <= Watts{}) explained.draw = gpu_.power->idle;
  explainer_.add(name, part, explained, link_bytes);
}

void CriticalPath::collective(const Crossing& crossing) {
  start_transfer(crossing);
  finish_transfer({});
}

void CriticalPath::start_transfer(const Crossing& crossing) {
  const auto& [name, part, cost, traffic, copies, holds] = crossing;
  finish_transfer({});
  traffic.time += cost.time;
  traffic.nvlink += cost.nvlink * copies;
  traffic.network += cost.network * copies;
  transfer_ = {part, {cost.time, cost.bound, {}, cost.evidence}, &traffic, holds};
  // Whether it is waited for or hidden, it adds to what the GPUs draw otherwise.
  for (const auto& [gpu, gpus] : kinds_) {
    if (gpus == 0 || !gpu->power) continue;
    const Watts draw = draw_of(*gpu, cost, copies);
    cost_.energy.joules[at(part)] += (draw - gpu->power->idle).value() * cost.time.count() * gpus;
    transfer_.cost.draw += draw * (double(gpus) / plan_.stage_gpus());
  }
  explainer_.add(name, part, transfer_.cost, (cost.nvlink + cost.network).value() * copies);
}

// The draw follows the rate at which the mean GPU of the stage sends.
Watts CriticalPath::draw_of(const GpuSpec& gpu, const CollectiveCost& collective,
                            double copies) const {
  if (collective.time <= Seconds{}) return gpu.power->idle;
  const Bytes sent = (collective.nvlink + collective.network) * copies / plan_.stage_gpus();
  const double rate = sent / gpu.scale_up_bandwidth / collective.time;
  return std::max(gpu.power->idle, gpu.power->draw(PowerClass::exchanges, rate, 0));
}

void CriticalPath::add_sum(const StepCost& sum) {
  add_times(cost_, sum);
  add_traffic(cost_, sum);
  for (std::size_t gpu = 0; gpu < sum.idle.size(); ++gpu)
    cost_.idle[first_gpu_ + gpu] += sum.idle[gpu];
  cost_.flops += sum.flops;
  cost_.hbm_bytes += sum.hbm_bytes;
  cost_.energy.add(sum.energy);
  spend(false, sum.total);
}

void CriticalPath::experts(const std::vector<Cost>& ranks, std::string_view name) {
  const Cost& slowest = *std::max_element(
      ranks.begin(), ranks.end(), [](const Cost& a, const Cost& b) { return a.time < b.time; });
  charge(cost_, Part::experts, slowest);
  explainer_.add(name, Part::experts, slowest);
  double* idle = cost_.idle.data() + first_gpu_ + at(plan_.first_expert_gpu());
  for (const Cost& rank : ranks) {
    const double wait = (slowest.time - rank.time).count();
    for (int gpu = 0; gpu < plan_.moe_tp(); ++gpu) *idle++ += wait;
  }
  spend(false, slowest.time);
  for (const Cost& rank : ranks) {
    cost_.flops += rank.work.flops.value() * plan_.moe_tp();
    cost_.hbm_bytes += rank.work.hbm.value() * plan_.moe_tp();
    cost_.energy.add(Part::experts, rank, plan_.moe_tp());
  }
}

void CriticalPath::end_stage() {
  barrier();
  cost_.stages.push_back(cost_.total - stages_);
  stages_ = cost_.total;
  first_gpu_ += at(plan_.stage_gpus());
}

// The transfer under way has run beside `computed`, but for its own kernels; the rest is waited
// for.
void CriticalPath::finish_transfer(Seconds computed) {
  if (transfer_.traffic == nullptr) return;
  const Seconds in_flight = transfer_.cost.time - transfer_.holds.kernels;
  const Seconds hidden = std::clamp(computed, Seconds{}, in_flight);
  transfer_.traffic->hidden += hidden;
  transfer_.cost.time -= hidden;
  charge(cost_, transfer_.part, transfer_.cost);
  // A kernel sends, another receives.
  spend(false, transfer_.holds.kernels / 2);
  spend(true, in_flight - hidden, transfer_.holds.sms);
  spend(false, transfer_.holds.kernels / 2);
  transfer_.traffic = nullptr;
}

void CriticalPath::spend(bool on_link, Seconds time, double sms) {
  if (time <= Seconds{}) return;
  cost_.total += time;
  std::vector<Segment>& segments = cost_.segments;
  const bool goes_on =
      !segments.empty() && segments.back().on_link == on_link && segments.back().sms == sms;
  if (!goes_on) segments.push_back({on_link, 0, sms});
  segments.back().seconds += time.count();
}

}  // namespace moesim
