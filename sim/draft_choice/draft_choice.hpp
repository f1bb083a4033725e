// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"
#include "sim/placement/placement.hpp"
#include "traces/routing_trace.hpp"

namespace moesim {

/// Experts of what a step may verify, as the recordings have them.
struct DraftExperts {
  const RoutingTrace& routing;
  /// Rows of `routing`, [sequence][1 + most]: of the sequence's last token, then of its drafts.
  std::span<const std::int64_t> rows;
  const ExpertPlacement& placement;
  Seconds read{};  ///< time in which a GPU reads one expert's weights
};

/// Sequences of an EP group that decode, before a step.
struct GroupDrafts {
  std::int32_t most = 0;  ///< drafts of a sequence at most
  /// Chance of each draft to be accepted, if all before it are.
  std::span<const double> acceptance;
  /// None unless DraftChoice::needs_experts().
  std::optional<DraftExperts> experts{};
};

/// A step that only decoded.
struct DecodedStep {
  Seconds time{};
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;  ///< emitted
};

/// Decides before each step how many drafts of each sequence are drafted and verified. State per
/// group.
class DraftChoice {
 public:
  virtual ~DraftChoice() = default;
  /// True if it goes by the experts that drafts would activate.
  virtual bool needs_experts() const { return false; }
  /// Lowers `drafts`, which has `most` for each sequence.
  virtual void choose(const GroupDrafts&, std::span<std::int32_t> drafts) = 0;
  /// Told of every step that only decoded, when it has ended.
  virtual void decoded(const DecodedStep&) {}
};

/// Makes policies alike, one for each EP group; none: every draft is verified.
using DraftChoiceFactory = Factory<DraftChoice>;

/// The table: all, utility, by_experts.
const Registry<DraftChoiceFactory>& draft_choices();

}  // namespace moesim
