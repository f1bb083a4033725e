// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sim/experiment/experiment.hpp"
#include "sim/report/measurement.hpp"

namespace moesim {

/// What the simulator itself did: never part of the report, which is the same on every machine.
struct SimulatorWork {
  std::int64_t steps = 0;
  std::int64_t routed_ids = 0;
  std::int64_t generated_tokens = 0;
};

/// The outcome of a run.
struct Report {
  OrderedJson document;  ///< the report file: keys are contracts, see README
  SimulatorWork work;
};

/// EP groups alike that served behind one router, as a run leaves them.
struct PoolRun {
  const Experiment& experiment;
  Measurement& measurement;
  std::vector<const Instance*> instances;
};

/// What went from the prefill pool to the decode pool.
struct KvTransferTally {
  std::int64_t transfers = 0;
  Bytes bytes{};
  Seconds on_links{};
  Seconds waited{};   ///< for a link that was taken
  Seconds exposed{};  ///< between first tokens and the KV caches' arrivals, waiting included
};

/// Whether every number in a document is one: JSON would write NaN and infinity as null.
bool all_numbers_finite(const OrderedJson&);

/// Writes up a run that ended at `now`: of one pool, or of a prefill and a decode pool.
/// Throws std::logic_error if a number in it is not finite.
Report write_report(const Experiment&, std::span<const PoolRun> pools, const KvTransferTally&,
                    const Requests&, Time now);

}  // namespace moesim
