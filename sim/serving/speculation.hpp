// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/kv_cache/sequence.hpp"
#include "sim/requests/requests.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Speculative decoding in one group: what drafting costs, and how many drafts hold.
class Speculation {
 public:
  /// `instance` tells the draws of EP groups apart.
  explicit Speculation(const Deployment&, int instance = 0);

  /// Sets the drafts of all sequences of the group that decode, before a step.
  void choose(std::span<Sequence* const> decoding, const RowSource&, const Requests&,
              const ExpertPlacement&);
  /// A step that only decoded has ended, and emitted so many tokens.
  void decoded(const StepBatch&, Seconds time, std::int64_t tokens);

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
  std::unique_ptr<DraftChoice> choice_;  // none: all drafts
  std::vector<std::int32_t> drafts_;     // of each sequence, to choose
  std::vector<std::int64_t> rows_;       // of their tokens
  std::vector<RowRange> ranges_;
  std::optional<StepModel> module_;  // of the MTP layer, if that drafts
  StepBatch batch_;
  StepCost cost_;
  Rng rng_;
  SpeculationTally tally_;
};

}  // namespace moesim
