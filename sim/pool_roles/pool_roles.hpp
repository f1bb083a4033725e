// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "hardware/registry.hpp"

namespace moesim {

/// Roles of an EP group where prefill and decode have pools of their own.
enum class PoolRole { prefill, decode };
constexpr PoolRole other(PoolRole role) {
  return role == PoolRole::prefill ? PoolRole::decode : PoolRole::prefill;
}

/// An EP group went from one pool to the other.
struct RoleChange {
  int group = 0;  ///< the same in both pools
  PoolRole to = PoolRole::prefill;
  Time decided{};                 ///< from when on it took no requests
  std::optional<Time> drained{};  ///< when it had finished those that it had
  std::optional<Time> serves{};   ///< when it took requests in the other pool
};

/// Load of a pool since the policy was last asked: means over samples of its groups.
struct RoleLoad {
  int groups = 0;                              ///< that take requests
  double kv_utilization = 0;                   ///< share of their KV blocks that are held
  double waiting = 0;                          ///< requests that wait for a seat, for each group
  double waiting_first = 0, waiting_last = 0;  ///< of the first and the last sample
  /// Means of what clients saw: of a prefill pool the time to a first token, of a decode pool the
  /// time between two tokens. None where no token came.
  std::optional<Seconds> latency{};
  /// Objective of clients for it.
  std::optional<Seconds> objective{};
};

struct RolesSeen {
  Time now{};
  RoleLoad prefill, decode;
};

/// Decides when an EP group leaves one pool for the other. State per run. The simulator drains the
/// group, and asks nothing until the group serves again.
class PoolRoles {
 public:
  virtual ~PoolRoles() = default;
  /// True if it ever moves a group; one that does not is never asked.
  virtual bool moves() const { return true; }
  /// True if it goes by objectives, so that a config has to give both.
  virtual bool needs_objectives() const { return false; }
  /// The pool that is to get a group of the other one. Asked once an interval.
  virtual std::optional<PoolRole> wants(const RolesSeen&) = 0;
};

/// Makes policies alike, one for each run.
using PoolRolesFactory = Factory<PoolRoles>;

/// The table: fixed, thresholds, slo.
const Registry<PoolRolesFactory>& pool_roles();

/// Options that hold under every policy.
struct RoleChangeOptions {
  Seconds interval{};       ///< between two decisions
  Seconds sample{};         ///< between two samples of the pools
  int grace_intervals = 0;  ///< after a change, in which the pool that got a group gives none
  int least_groups = 1;     ///< that stay in each pool
  Seconds switch_time{};    ///< of a group that has drained, until it serves
  /// Rate of a GPU that loads its weights anew; unset: the weights of both roles are the same.
  std::optional<BytesPerSecond> reload{};
};
/// Beside the options of the policy.
std::span<const Key> role_change_keys();
/// Reads them. Throws ConfigError where a sample is longer than the interval.
RoleChangeOptions read_role_changes(ConfigReader&);

}  // namespace moesim
