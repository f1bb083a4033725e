// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "sim/experiment/experiment.hpp"

namespace moesim {

/// Over the verifications of single sequences, as vLLM counts them.
struct SpeculationTally {
  std::int64_t verifications = 0;  ///< of a sequence, in a step
  std::int64_t drafted = 0;        ///< tokens that were verified
  std::int64_t accepted = 0;       ///< of them
  double draft_seconds = 0;
  SpeculationTally& operator+=(const SpeculationTally&);
};

/// Speculative decoding in one group: what drafting costs, and how many drafts hold.
class Speculation {
 public:
  /// `instance` tells the draws of EP groups apart.
  explicit Speculation(const Experiment&, int instance = 0);

  /// How many of a sequence's drafts are accepted: each with the plan's rate until one is not.
  std::int32_t accept(std::int32_t drafts);
  /// Adds to a step what it took to draft the tokens that it verifies.
  void draft(const StepBatch&, const PhaseRule&, const ExpertPlacement&, const RowSource&,
             StepCost&);

  const SpeculationTally& tally() const { return tally_; }
  /// Before a step.
  void clear_tally() { tally_ = {}; }

 private:
  void pass(std::int32_t index, const StepBatch&, const PhaseRule&, const ExpertPlacement&,
            const RowSource&, StepCost&);

  const Experiment& experiment_;
  std::optional<StepModel> module_;  // of the MTP layer, if that drafts
  StepBatch batch_;
  StepCost cost_;
  Rng rng_;
  SpeculationTally tally_;
};

}  // namespace moesim
