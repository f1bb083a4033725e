// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/sampling.hpp"

#include "sim/report/statistics.hpp"

namespace moesim {

using enum Better;

Fields<SampledStats> rows_of(const SampledStats*) {
  using S = SampledStats;
  return {
      {"samples", &S::samples, "steps that others were drawn from"},
      {"spot_checks", &S::spot_checks, "steps of the run that were also priced exactly"},
      {"step_time_error", &S::step_time_error,
       "time of steps, sampled / exact - 1, as the run's steps are mixed", "relative"},
      {"standard_error", &S::standard_error,
       "standard error of step_time_error, from the differences of checks", "relative"},
      {"worst_step_error", &S::worst_step_error, "error of the worst checked step", "relative"}};
}

Fields<CoverageStats> rows_of(const CoverageStats*) {
  using S = CoverageStats;
  return {
      {"tokens", &S::tokens, "tokens whose experts came from rows of a trace", "tokens"},
      {"recorded", &S::recorded, "rows of the bound recording, of the right phase",
       "share of tokens", more},
      {"borrowed", &S::borrowed, "rows of the recording's other phase", "share of tokens", less},
      {"wrapped", &S::wrapped, "past the recording's end: rows of the next one", "share of tokens",
       less},
      {"synthetic", &S::synthetic, "made by a generator", "share of tokens"}};
}

void CoverageSum::add(const StepRecord& record) {
  using C = RoutingCoverage;
  for (std::size_t phase = 0; phase < 2; ++phase) {
    add_members<&C::recorded, &C::borrowed, &C::wrapped, &C::synthetic>(
        of_phase[phase], record.step.coverage[phase]);
  }
}

Named<CoverageStats> coverage_of(const CoverageSum& sum) {
  Named<CoverageStats> phases;
  for (std::size_t phase = 0; phase < 2; ++phase) {
    const RoutingCoverage& coverage = sum.of_phase[phase];
    const auto total = double(coverage.total());
    phases.emplace_back(phase_names[phase],
                        CoverageStats{.tokens = coverage.total(),
                                      .recorded = ratio(double(coverage.recorded), total),
                                      .borrowed = ratio(double(coverage.borrowed), total),
                                      .wrapped = ratio(double(coverage.wrapped), total),
                                      .synthetic = ratio(double(coverage.synthetic), total)});
  }
  return phases;
}

}  // namespace moesim
