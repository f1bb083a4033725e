// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

struct CoverageSum {
  std::array<RoutingCoverage, 2> of_phase{};
  void add(const StepRecord&);
};

/// Errors of a run whose steps are drawn from samples.
struct SampledStats {
  std::int64_t samples = 0, spot_checks = 0;
  double step_time_error = 0, standard_error = 0, worst_step_error = 0;
};

struct CoverageStats {
  std::int64_t tokens = 0;
  double recorded = 0, borrowed = 0, wrapped = 0, synthetic = 0;
};

Named<CoverageStats> coverage_of(const CoverageSum&);

Fields<SampledStats> rows_of(const SampledStats*);
Fields<CoverageStats> rows_of(const CoverageStats*);

}  // namespace moesim
