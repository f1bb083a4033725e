// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/policy_choice.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/draft_choice/draft_choice.hpp"
#include "sim/expert_memory/expert_memory.hpp"
#include "sim/kv_cache/retention.hpp"
#include "sim/kv_tiers/kv_tiers.hpp"
#include "sim/placement/placement.hpp"
#include "sim/pool_roles/pool_roles.hpp"
#include "sim/prefill_alignment/prefill_alignment.hpp"
#include "sim/rebalancing/rebalancer.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/scheduling/scheduler.hpp"
#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// The tables that an experiment chooses its policies from: what ships, unless a program adds rows
/// of its own. A policy is one file and one row:
///   Policies policies;
///   policies.token_routing.add({"mine", "one line for `moesim list`", make_mine});
///   load_experiment(config, traces, policies);
struct Policies {
  Registry<Placer> placement = placers();
  Registry<TokenRouterFactory> token_routing = token_routers();
  Registry<Dispatch> dispatch = dispatches();
  Registry<CapacityRule> capacity = capacity_rules();
  Registry<ExpertMemory> expert_memory = expert_memories();
  Registry<Prefetch> prefetch = prefetches();
  Registry<Retention> retention = retentions();
  Registry<TierEviction> tier_eviction = tier_evictions();
  Registry<TierWrite> tier_write = tier_writes();
  Registry<Scheduler> scheduling = schedulers();
  Registry<RequestRouterFactory, const RouterContext&> request_routing = request_routers();
  Registry<RebalancerFactory, const RebalancingContext&> rebalancing = rebalancers();
  Registry<PoolRolesFactory> pool_roles = moesim::pool_roles();
  Registry<PrefillAlignmentFactory> prefill_alignment = prefill_alignments();
  Registry<DraftChoiceFactory> draft_choice = draft_choices();

  /// Every table that an experiment can choose from, these and those of workloads.
  PolicyRows rows() const;
};

/// Policies that a config chose; some are made with what follows from its deployment.
using TokenRoutingChoice = PolicyChoice<TokenRouterFactory>;
using RequestRoutingChoice = PolicyChoice<RequestRouterFactory, const RouterContext&>;
using PoolRolesChoice = PolicyChoice<PoolRolesFactory>;
using PrefillAlignmentChoice = PolicyChoice<PrefillAlignmentFactory>;
using RebalancingChoice = PolicyChoice<RebalancerFactory, const RebalancingContext&>;

}  // namespace moesim
