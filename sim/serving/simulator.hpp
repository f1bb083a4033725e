// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "sim/report/observer.hpp"
#include "sim/report/report.hpp"

namespace moesim {

/// Called now and then with (requests finished, requests expected); expected is 0 when unknown.
using Progress = std::function<void(std::int64_t, std::int64_t)>;

/// Simulates an experiment to its last request. Same experiment, same report, byte for byte, on any
/// number of threads. The observers are called in the order given.
Report run(const Experiment&, const Progress& progress = {},
           std::span<RunObserver* const> observers = {});

/// One step, taken apart operation by operation.
struct ExplainedStep {
  StepSummary summary;
  StepCost cost;
  std::vector<ExplainedOperation> operations;
};
/// Prices one step made of `sequences` decode sequences per rank at `context` tokens, or, with
/// `prefill_tokens`, of one prompt chunk per rank.
ExplainedStep explain_step(const Experiment&, StepKind kind, int sequences_per_rank, int context,
                           int prefill_tokens);

}  // namespace moesim
