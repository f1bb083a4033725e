// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "sim/experiment/deployment.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Speculative decoding in one group: what drafting costs, and how many drafts hold.
class Speculation {
 public:
  /// `instance` tells the draws of EP groups apart.
  explicit Speculation(const Deployment&, int instance = 0);

  /// How many of a sequence's drafts are accepted: each with the plan's rate until one is not.
  std::int32_t accept(std::int32_t drafts);
  /// Adds to a step what it took to draft the tokens that it verifies.
  void draft(const StepInput&, StepCost&);

  const SpeculationTally& tally() const { return tally_; }
  /// Before a step.
  void clear_tally() { tally_ = {}; }

 private:
  void pass(std::int32_t index, const StepInput&, StepCost&);

  const Deployment& deployment_;
  std::optional<StepModel> module_;  // of the MTP layer, if that drafts
  StepBatch batch_;
  StepCost cost_;
  Rng rng_;
  SpeculationTally tally_;
};

}  // namespace moesim
