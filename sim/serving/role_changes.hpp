// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/experiment/spec.hpp"

namespace moesim {

/// View of both pools for the policy, and the changes that it decided.
class RoleChanges {
 public:
  /// The spec outlives this.
  RoleChanges(const PoolRolesSpec&, const Slo& owed);

  struct Sample {
    int groups = 0;  ///< that take requests
    double kv_utilization = 0;
    std::int64_t waiting = 0;
  };
  void sample(const Sample& prefill, const Sample& decode);
  void first_token(Seconds after_arrival) { ttft_.add(after_arrival, 1); }
  void gaps(Seconds each, std::int64_t tokens) { gap_.add(each, tokens); }

  /// The pool that is to get a group now. Nothing between two intervals, while a group changes, in
  /// a pool's grace, and where the other pool has no more than its least groups.
  std::optional<PoolRole> decide(Time now);
  /// A group changes, and serves in the end.
  void begin(int group, PoolRole to, Time now);
  void drained(Time now) { changes_.back().drained = now; }
  void serves(Time now);

  const RoleChangeOptions& options() const { return spec_.options; }
  const std::vector<RoleChange>& changes() const { return changes_; }

 private:
  struct Mean {
    Seconds sum{};
    std::int64_t count = 0;
    void add(Seconds each, std::int64_t times) { sum += each * double(times), count += times; }
    std::optional<Seconds> value() const;
  };
  RoleLoad load_of(const std::vector<Sample>&, const Mean&, const std::optional<Seconds>&) const;
  bool may_give(PoolRole) const;

  const PoolRolesSpec& spec_;
  Slo owed_;
  std::unique_ptr<PoolRoles> policy_;
  std::vector<Sample> prefill_, decode_;
  Mean ttft_, gap_;
  Time next_decision_{};
  int grace_ = 0;  // intervals in which the pool that got the last group gives none
  std::vector<RoleChange> changes_;
};

}  // namespace moesim
