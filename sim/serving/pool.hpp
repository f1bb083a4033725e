// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/report/write_up.hpp"
#include "sim/serving/frontend.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/pool_tiers.hpp"
#include "sim/serving/role_changes.hpp"
#include "sim/serving/step_time_estimate.hpp"

namespace moesim {

struct Pool;

/// An EP group and its clock.
struct Group {
  Group(Pool& of_pool, RowSource& rows, Requests& requests, int number, int in_pool);

  Pool& pool;
  Instance instance;
  bool busy = false;                     // a step runs, or the engine stands still
  std::int64_t serial = 0;               // of the step or stop that is under way
  Time stopped_until{};                  // by outages so far
  std::vector<std::size_t> returning{};  // outages that have ended
  bool serves = true;                    // has, or had, the role of its pool
  bool leaves = false;                   // takes no requests until it is in the other pool
};

/// EP groups alike behind one router.
struct Pool {
  /// Ranks may copy to the last tier of a pool `above`; `writers` do so to this one's.
  Pool(const Deployment& of_pool, RowSource& rows, Requests& requests, int first,
       const Deployment* writers, const PoolTiers* above)
      : deployment(of_pool),
        sampler(of_pool.sampled ? std::make_unique<StepSampler>(of_pool) : nullptr),
        price(of_pool.scheduler->needs_price() ? std::optional(price_steps(of_pool))
                                               : std::nullopt),
        tiers(of_pool, first, writers),
        tiers_above(above),
        groups(make_groups(rows, requests, first)),
        frontend(of_pool, instances(), rows, requests),
        measurement(of_pool, groups.front()->instance.total_blocks()) {}

  std::vector<std::unique_ptr<Group>> make_groups(RowSource& rows, Requests& requests, int first) {
    std::vector<std::unique_ptr<Group>> made;
    const int all = deployment.most_instances();
    made.reserve(at(all));
    for (int i = 0; i < all; ++i)
      made.push_back(std::make_unique<Group>(*this, rows, requests, first + i, i));
    // Groups have one number in both pools: those that prefill at first come first.
    const int begin = deployment.prefill_only ? 0 : all - deployment.instances;
    for (int i = 0; i < all; ++i) {
      if (i >= begin && i < begin + deployment.instances) continue;
      Group& elsewhere = *made[at(i)];
      elsewhere.serves = false;
      elsewhere.instance.open(false);
    }
    return made;
  }
  std::vector<Instance*> instances() const {
    std::vector<Instance*> all;
    for (const auto& group : groups) all.push_back(&group->instance);
    return all;
  }
  /// Returns the run as the last event leaves it.
  PoolRun run(Time now) {
    PoolRun run{deployment, measurement, router, {}, {}, {}};
    if (sampler) run.sampled = sampler->stats();
    for (const PoolTiers::Site& site : tiers.sites())
      run.tiers.push_back(
          {site.depth, site.tier->tally(now), site.tier->capacity(), std::ssize(site.ranks)});
    const int first = groups.front()->instance.number();
    for (const auto& group : groups) {
      const Instance& instance = group->instance;
      if (!group->serves) continue;
      const int seat = deployment.may_join > 0 ? instance.number() - first : instance.number();
      run.instances.push_back(
          {instance.number(), seat, instance.rebalancing(), instance.outages()});
    }
    return run;
  }

  /// Returns a view of the pool for the policy that moves groups between pools.
  RoleChanges::Sample sample() const {
    RoleChanges::Sample sample;
    std::int64_t held = 0, blocks = 0;
    sample.waiting = frontend.waiting();
    for (const auto& group : groups) {
      sample.waiting += group->instance.waiting();
      if (!group->instance.takes_requests()) continue;
      ++sample.groups;
      held += group->instance.used_blocks();
      blocks += group->instance.total_blocks();
    }
    sample.kv_utilization = double(held) / double(std::max<std::int64_t>(1, blocks));
    return sample;
  }
  /// The group that takes requests and has least to finish, the last one of several.
  Group& least_busy() const {
    Group* least = nullptr;
    for (const auto& group : groups) {
      if (!group->instance.takes_requests()) continue;
      if (!least || group->instance.requests() <= least->instance.requests()) least = group.get();
    }
    return *least;
  }

  const Deployment& deployment;
  std::unique_ptr<StepSampler> sampler;  // none: exact
  std::optional<StepPrice> price;        // if the scheduler needs it
  /// Ways of an EP group's ranks to their first tiers.
  std::vector<TierPort> ports(int instance) const {
    return tiers_above != nullptr ? tiers_above->writers_ports(instance) : tiers.ports(instance);
  }

  PoolTiers tiers;
  const PoolTiers* tiers_above;
  std::vector<std::unique_ptr<Group>> groups;
  Frontend frontend;
  RouterTally router{};
  Measurement measurement;
  bool changed = false;  // something happened at this moment
};

inline Group::Group(Pool& of_pool, RowSource& rows, Requests& requests, int number, int in_pool)
    : pool(of_pool),
      instance(of_pool.deployment, rows, requests,
               {.number = number,
                .sampler = of_pool.sampler.get(),
                .price = of_pool.price ? &*of_pool.price : nullptr,
                .below = of_pool.ports(in_pool)}) {}

}  // namespace moesim
