// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/report/sections/afd.hpp"
#include "sim/report/sections/batches.hpp"
#include "sim/report/sections/breakdown.hpp"
#include "sim/report/sections/communication.hpp"
#include "sim/report/sections/energy.hpp"
#include "sim/report/sections/expert_memory.hpp"
#include "sim/report/sections/experts.hpp"
#include "sim/report/sections/groups.hpp"
#include "sim/report/sections/kv.hpp"
#include "sim/report/sections/outages.hpp"
#include "sim/report/sections/requests.hpp"
#include "sim/report/sections/sampling.hpp"
#include "sim/report/sections/sessions.hpp"
#include "sim/report/sections/speculation.hpp"
#include "sim/report/sections/steady_state.hpp"
#include "sim/report/sections/steps.hpp"
#include "sim/report/sections/tiers.hpp"
#include "sim/report/time_series.hpp"

namespace moesim {

// The values of a report are in sections/, section by section; the rows of a section document its
// keys: meanings, units, and what is left out when.

struct ReportContext {
  std::string moesim;  ///< version
  std::uint64_t seed = 0;
  Json config;  ///< resolved
};

struct AnchorStats {
  std::string deployment;
  int runs = 0;
  double leave_one_out_error = 0, tpot_factor = 1, ttft_factor = 1;
};

/// Statistics of the EP groups of one pool.
struct PoolStats {
  StepStats steps;
  ExpertStats experts;
  ExpertMemoryStats expert_memory;
  ExpertBufferStats expert_buffers;
  std::optional<PrefillAlignmentStats> prefill_alignment;  ///< where a config has one
  CommunicationStats communication;
  BreakdownStats breakdown;
  std::optional<AfdStats> afd;
  ChargeStats charges;
  MemoryBudget memory;
  KvStats kv;
  Named<TierStats> tiers;
  std::optional<SpeculationStats> speculative;
  std::optional<RouterStats> request_router;
  std::optional<SampledStats> sampled;
  Named<CoverageStats> routing_coverage;
  RebalancingLog rebalancing;
  std::vector<OutageStats> failures;
  std::vector<TimeBucket> over_time;
};

struct PrefillPoolStats {
  PoolGroups groups;
  PoolStats pool;
};

struct PoolsStats {
  PrefillPoolStats prefill;
  PoolGroups decode;
  KvTransferStats kv_transfer;
  std::optional<PoolRolesStats> roles;  ///< where groups may move
};

/// Work of the simulator itself: never part of the document, which is the same on every machine.
struct SimulatorWork {
  std::int64_t steps = 0;
  std::int64_t routed_ids = 0;
  std::int64_t generated_tokens = 0;
};

/// The outcome of a run.
struct Report {
  ReportContext context;
  std::optional<AnchorStats> anchored;
  Metrics metrics;
  Named<ClassStats> classes;          ///< where requests have classes
  std::optional<EnergyStats> energy;  ///< where the power of the GPUs is known
  MeasurementStats measurement;
  std::optional<SessionStats> sessions;  ///< where requests are turns of sessions
  std::optional<TurnStats> turns;
  PoolStats pool;                                       ///< of the decode pool, if there are two
  std::optional<PoolsStats> pools;                      ///< prefill and decode apart
  std::optional<std::vector<InstanceStats>> instances;  ///< where one pool has several
  SimulatorWork work;

  /// The report file: keys are contracts, see README. Throws std::logic_error if a number in it is
  /// not finite or a share is above 1.
  OrderedJson document() const;
};

/// Every key of the report file, in its order.
const std::vector<ReportKey>& report_keys();
/// Finds the key that documents the value at a pointer of the report file, or nullptr.
const ReportKey* find_report_key(std::string_view pointer);

/// True if every number in a document is one: JSON would write NaN and infinity as null.
bool all_numbers_finite(const OrderedJson&);

}  // namespace moesim
