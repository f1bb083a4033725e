// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/role_changes.hpp"

#include <algorithm>
#include <utility>

namespace moesim {

RoleChanges::RoleChanges(const PoolRolesSpec& spec, const Slo& owed)
    : spec_(spec),
      owed_(owed),
      policy_(spec.policy()),
      next_decision_(to_duration(spec.options.interval)) {}

std::optional<Seconds> RoleChanges::Mean::value() const {
  return count > 0 ? std::optional(sum / double(count)) : std::nullopt;
}

void RoleChanges::sample(const Sample& prefill, const Sample& decode) {
  prefill_.push_back(prefill);
  decode_.push_back(decode);
}

RoleLoad RoleChanges::load_of(const std::vector<Sample>& samples, const Mean& latency,
                              const std::optional<Seconds>& objective) const {
  const auto of_group = [](const Sample& sample) {
    return double(sample.waiting) / double(std::max(1, sample.groups));
  };
  RoleLoad load;
  for (const Sample& sample : samples) {
    load.kv_utilization += sample.kv_utilization / double(samples.size());
    load.waiting += of_group(sample) / double(samples.size());
  }
  load.groups = samples.back().groups;
  load.waiting_first = of_group(samples.front());
  load.waiting_last = of_group(samples.back());
  load.latency = latency.value();
  load.objective = objective;
  return load;
}

bool RoleChanges::may_give(PoolRole giver) const {
  const Sample& last = (giver == PoolRole::prefill ? prefill_ : decode_).back();
  const bool in_grace = grace_ > 0 && changes_.back().to == giver;
  return !in_grace && last.groups > spec_.options.least_groups;
}

std::optional<PoolRole> RoleChanges::decide(Time now) {
  const bool changing = !changes_.empty() && !changes_.back().serves;
  if (now < next_decision_ || changing) return std::nullopt;
  next_decision_ = now + to_duration(spec_.options.interval);
  const RolesSeen seen{now, load_of(prefill_, std::exchange(ttft_, {}), owed_.ttft),
                       load_of(decode_, std::exchange(gap_, {}), owed_.tpot)};
  std::optional<PoolRole> wanted = policy_->wants(seen);
  if (wanted && !may_give(other(*wanted))) wanted.reset();
  grace_ = std::max(0, grace_ - 1);
  prefill_.clear();
  decode_.clear();
  return wanted;
}

void RoleChanges::begin(int group, PoolRole to, Time now) { changes_.push_back({group, to, now}); }

void RoleChanges::serves(Time now) {
  changes_.back().serves = now;
  grace_ = spec_.options.grace_intervals;
  // What was seen while the group was in neither pool says nothing of what follows.
  prefill_.clear();
  decode_.clear();
  ttft_ = gap_ = {};
  next_decision_ = now + to_duration(spec_.options.interval);
}

}  // namespace moesim
