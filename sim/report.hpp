// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sim/experiment.hpp"
#include "sim/measurement.hpp"

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
  std::vector<RequestRecord> requests;
  SimulatorWork work;
};

/// Writes up a run that ended at `now`.
Report write_report(const Experiment&, Measurement&, const Instance&,
                    std::vector<RequestRecord> requests, Time now);

}  // namespace moesim
