// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

struct SpeculationSum : SpeculationTally {
  void add(const StepRecord& record) { *this += record.speculation; }
};

struct SpeculationStats : SpeculationTally {
  double acceptance_rate = 0, mean_length = 0, share_of_time = 0;
};

/// `busy` is the time of all steps.
SpeculationStats speculation_of(const SpeculationTally&, double busy);

Fields<SpeculationStats> rows_of(const SpeculationStats*);

}  // namespace moesim
