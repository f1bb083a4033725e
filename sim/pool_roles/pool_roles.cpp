// SPDX-License-Identifier: Apache-2.0
#include "sim/pool_roles/pool_roles.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<PoolRolesFactory>::Maker make_fixed_roles, make_threshold_roles, make_slo_roles;
Keys threshold_roles_keys, slo_roles_keys;

const Registry<PoolRolesFactory>& pool_roles() {
  static const Registry<PoolRolesFactory> table(
      "pool_roles",
      {{"fixed", "each EP group stays in the pool in which it starts", make_fixed_roles},
       {"thresholds", "by the prefill queue and the decode pool's KV cache (Dynamo's load planner)",
        make_threshold_roles, threshold_roles_keys},
       {"slo", "to the pool that misses its objective while the other one has slack",
        make_slo_roles, slo_roles_keys}});
  return table;
}

std::span<const Key> role_change_keys() {
  static constexpr Key keys[] = {
      {"interval", form::time, "180 s", "time between two decisions (Dynamo)"},
      {"sample", form::time, "10 s", "time between two looks at the pools (Dynamo)"},
      {"grace_intervals", form::integer(0, 1e6), "3",
       "intervals in which a pool that got a group gives none (Dynamo)"},
      {"least_groups", form::integer(1, 1 << 16), "1", "EP groups that stay in each pool"},
      {"switch_time", form::time, "0 s", "from the end of a drain until the group takes requests"},
      {"reload_bandwidth", form::bytes_per_second, unset("weights stay"),
       "of a GPU that loads its weights anew; required where layouts differ"}};
  return keys;
}

RoleChangeOptions read_role_changes(ConfigReader& reader) {
  RoleChangeOptions options;
  options.interval = reader.quantity<Seconds>("interval");
  options.sample = reader.quantity<Seconds>("sample");
  options.grace_intervals = static_cast<int>(reader.integer("grace_intervals"));
  options.least_groups = static_cast<int>(reader.integer("least_groups"));
  options.switch_time = reader.quantity<Seconds>("switch_time");
  if (reader.optional("reload_bandwidth"))
    options.reload = reader.quantity<BytesPerSecond>("reload_bandwidth");
  if (options.sample <= Seconds{}) reader.child("sample").fail("must be above 0 s");
  if (options.interval < options.sample) {
    reader.child("interval")
        .fail("{:.4g} s is below the {:.4g} s of \"sample\"; give a longer interval",
              options.interval.count(), options.sample.count());
  }
  return options;
}

}  // namespace moesim
