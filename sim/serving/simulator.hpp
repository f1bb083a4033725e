// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "sim/experiment/experiment.hpp"
#include "sim/report/observer.hpp"
#include "sim/report/report.hpp"

namespace moesim {

/// Called now and then with (requests finished, requests expected); expected is 0 when unknown.
using Progress = std::function<void(std::int64_t, std::int64_t)>;

/// Simulates an experiment to its last request. Same experiment, same report, byte for byte, on any
/// number of threads. The observers are called in the order given.
Report run(const Experiment&, const Progress& progress = {},
           std::span<RunObserver* const> observers = {});

/// Steps alike, the first taken apart operation by operation.
struct ExplainedStep {
  StepSummary summary;
  StepCost cost;                               ///< of the first
  std::vector<ExplainedOperation> operations;  ///< of the first
  std::vector<Seconds> totals;                 ///< of each
};
/// What every attention rank computes in one step.
struct StepContent {
  int sequences = 0;  ///< that decode a token, each with `context` tokens in the KV cache
  int context = 0;
  struct Prompt {
    int tokens = 0;
    int prefix = 0;  ///< tokens of the prompt that stand in the KV cache before
  };
  std::vector<Prompt> prompts{};
};
/// Prices `samples` steps alike: every sequence at a random place of the recording it replays,
/// every prompt from its beginning. Without prompts a decode step, without sequences a prefill
/// step.
ExplainedStep explain_step(const Deployment&, const StepContent&, int samples = 1);
/// The same with `prefill_tokens` of one prompt per rank, but for decode steps.
ExplainedStep explain_step(const Deployment&, StepKind kind, int sequences_per_rank, int context,
                           int prefill_tokens, int samples = 1);
/// One such step priced by eight of its MoE layers, which stand for the others: a fraction of the
/// time, within some per cent.
ExplainedStep estimate_step(const Deployment&, StepKind kind, int sequences_per_rank, int context,
                            int prefill_tokens);
/// Explains steps of the pool that decodes.
inline ExplainedStep explain_step(const Experiment& experiment, StepKind kind,
                                  int sequences_per_rank, int context, int prefill_tokens,
                                  int samples = 1) {
  return explain_step(experiment.decode(), kind, sequences_per_rank, context, prefill_tokens,
                      samples);
}

}  // namespace moesim
