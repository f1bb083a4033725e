// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/serving/speculation.hpp"
#include "sim/serving/step_sampler.hpp"

namespace moesim {

/// Work of a DP rank in a step, by sequence. Without `prompt` a sequence of one new token decodes
/// if it has a context, and takes any place of a recording.
struct RankWork {
  std::vector<std::int32_t> new_tokens, context, prompt, request;

  bool decodes(std::size_t i) const {
    return prompt.empty() ? new_tokens[i] == 1 && context[i] > 0 : context[i] >= prompt[i];
  }
};

/// Prices steps as an EP group of a run prices its own, one after another. Experts are placed as at
/// the start of a run.
class StepPricer {
 public:
  explicit StepPricer(const Deployment&);

  /// Cost of the next step, [dp] ranks, of which at least one has work. Valid until the next call.
  const StepCost& price(std::span<const RankWork> ranks);
  /// Phases that the last step held.
  StepKind kind() const { return kind_; }

 private:
  void compose(std::span<const RankWork>);
  const Binding& binding_of(std::size_t request);
  void take_rows(const RankWork&, std::size_t i, std::int32_t rank);
  std::span<const std::int32_t> places(std::span<const RankWork>);

  const Deployment& deployment_;
  RowSource rows_;
  std::optional<StepSampler> sampler_;
  std::optional<StepModels> models_;  // without a sampler
  Speculation speculation_;
  std::vector<Binding> bindings_;  // by request
  StepBatch batch_;
  StepCost cost_;
  StepKind kind_{}, rule_{};
  Time now_{};
  std::vector<std::int32_t> places_;
};

}  // namespace moesim
