// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sim/experiment/experiment.hpp"
#include "sim/step/step_cost.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Content of one step for every attention rank.
struct StepContent {
  int sequences = 0;  ///< that decode a token, each with `context` tokens in the KV cache
  int context = 0;
  struct Prompt {
    int tokens = 0;
    int prefix = 0;  ///< tokens of the prompt that stand in the KV cache before
  };
  std::vector<Prompt> prompts{};

  /// Without prompts a decode step, without sequences a prefill step.
  StepKind kind() const;
  /// New tokens of a rank.
  int tokens() const;
};
/// Steps of one kind, alike on every rank.
StepContent decode_step(int sequences, int context);
StepContent prefill_step(int prompt_tokens);
StepContent mixed_step(int sequences, int context, int prompt_tokens);

/// Steps alike, the first taken apart operation by operation.
struct ExplainedStep {
  StepSummary summary;
  StepCost cost;                               ///< of the first
  std::vector<ExplainedOperation> operations;  ///< of the first
  std::vector<Seconds> totals;                 ///< of each
};
/// Prices `samples` steps alike: every sequence at a random place of the recording it replays,
/// every prompt from its beginning.
ExplainedStep explain_step(const Deployment&, const StepContent&, int samples = 1);
/// Explains steps of the pool that decodes.
inline ExplainedStep explain_step(const Experiment& experiment, const StepContent& content,
                                  int samples = 1) {
  return explain_step(experiment.decode(), content, samples);
}
/// Prices one such step by eight of its MoE layers, which stand for the others; by four where it is
/// large. That takes a fraction of the time, within some per cent.
ExplainedStep estimate_step(const Deployment&, const StepContent&);

}  // namespace moesim
