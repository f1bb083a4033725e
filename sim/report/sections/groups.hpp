// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/experiment.hpp"
#include "sim/pool_roles/pool_roles.hpp"
#include "sim/report/fields.hpp"

namespace moesim {

struct KvTransferTally;
struct PoolRun;
struct Totals;

/// Times of a request router that takes any.
struct RouterStats {
  double decision_us = 0, most_per_second = 0;
  std::int64_t decisions = 0;
  double busy_share = 0, mean_wait_ms = 0;
};

struct InstanceStats {
  int instance = 0;
  std::int64_t steps = 0;
  double mean_step_ms = 0, utilization = 0, barrier_idle_share = 0;
  std::int64_t output_tokens = 0;
  double prefill_tokens = 0, decode_tokens = 0;
  double kv_mean_utilization = 0, kv_peak_utilization = 0, prefix_hit_rate = 0;
  std::int64_t preemptions = 0;
};

/// The EP groups of one of two pools.
struct PoolGroups {
  int gpus = 0;
  std::vector<InstanceStats> instances;
};

struct KvTransferStats {
  std::string level;
  std::int64_t transfers = 0;
  double bytes = 0, mean_ms = 0, mean_wait_ms = 0, mean_exposed_ms = 0;
};

/// A group that went from one pool to the other.
struct RoleChangeStats {
  int instance = 0;
  std::string to;
  double at_s = 0;
  std::optional<double> drain_s, switch_s;  ///< none: the run ended before
};

/// EP groups that move between the pools, over the whole run.
struct PoolRolesStats {
  std::int64_t changes = 0;
  std::optional<double> mean_drain_s, mean_switch_s;
  double mean_prefill_groups = 0, mean_decode_groups = 0, away_share = 0;
  std::vector<RoleChangeStats> events;
};

/// Each EP group by itself, while it was measured.
std::vector<InstanceStats> instances_of(const PoolRun&, const Totals&);
RouterStats router_of(const PoolRun&, Time now);
KvTransferStats transfers_of(const KvLink&, const KvTransferTally&);
/// Which groups were in which pool, over the whole run.
std::optional<PoolRolesStats> roles_of(const Experiment&, std::span<const RoleChange>, Time now);

Fields<RouterStats> rows_of(const RouterStats*);
Fields<InstanceStats> rows_of(const InstanceStats*);
Fields<PoolGroups> rows_of(const PoolGroups*);
Fields<KvTransferStats> rows_of(const KvTransferStats*);
Fields<PoolRolesStats> rows_of(const PoolRolesStats*);

}  // namespace moesim
