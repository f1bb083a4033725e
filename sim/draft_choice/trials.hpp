// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/draft_choice/draft_choice.hpp"

namespace moesim {

/// Finds by trial how many drafts of each sequence gain most. Cascade (arXiv:2506.20675) tries a
/// few steps of each count, then keeps the best for longer:
///   utility(d) = (tokens per sequence and step with d drafts / without) / (step time with d /
///                without)
/// It tries d = 0, 1, 2, .. for trial_steps steps each, until the utility falls or `most` is tried.
/// It keeps the d of the largest utility, 0 where none exceeds 1, for set_steps steps. Then it
/// tries again. As long as the answer is 0, the next time is twice as long, up to 8 set_steps. Here
/// one d serves all sequences of a group, whose steps end together; the paper has one for each
/// request of a server with few. The lengths of its trials are not taken from it.
class DraftTrials {
 public:
  explicit DraftTrials(ConfigReader& options);
  /// The count of the next step, at most `most`.
  std::int32_t drafts(std::int32_t most);
  void decoded(const DecodedStep&);

 private:
  void try_drafts(std::int32_t drafts);

  std::int64_t trial_steps_, set_steps_;
  std::int32_t most_ = 0, now_ = 0, best_ = 0;
  std::int64_t left_ = 0, wait_ = 0;  // steps: until the next trial, and of the last time
  std::int64_t steps_ = 0;            // of the trial
  double seconds_ = 0, tokens_ = 0, best_rate_ = 0;
};

std::span<const Key> draft_trials_keys();

}  // namespace moesim
