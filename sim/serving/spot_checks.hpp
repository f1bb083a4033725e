// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/step/step_model.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Asks a step for the tokens that its requests with one new token have generated before, in order.
/// Most steps are not asked.
using DecodePlaces = std::function<std::span<const std::int32_t>()>;

/// Steps of a sampled run that are also priced exactly, token by token, on rows of recordings drawn
/// afresh. They say how far samples are off, in this run, in its own mix of steps. From the
/// sixteenth on two steps of every octave of their number are checked. So a long run is checked
/// more often but not for longer; each stands for the steps until the next. What is drawn for
/// checks is drawn from nothing else: the run is the same without them.
class SpotChecks {
 public:
  explicit SpotChecks(const Deployment&);

  /// A step that took `sampled` by its sample. `places`: tokens that requests with one new token
  /// have generated before, in their order.
  void step(StepKind rule, const StepBatch&, const DecodePlaces& places, Seconds sampled);
  struct Answer {
    std::int64_t checks = 0;
    /// Share by which samples make the run's steps longer than they are, by the ratio of sums, and
    /// the standard error of that ratio; 0 before the first check.
    double error = 0, standard_error = 0;
    /// The error of the step where it is largest.
    double worst = 0;
  };
  Answer answer() const;

 private:
  Seconds price(StepKind rule, const StepBatch&, std::span<const std::int32_t> places);

  const Deployment& deployment_;
  RowSource rows_;
  StepModels models_;
  StepCost cost_;
  std::uint64_t steps_ = 0;
  struct Check {
    double weight;  // the steps that it stands for
    Seconds sampled, exact;
  };
  std::vector<Check> checks_;
};

}  // namespace moesim
