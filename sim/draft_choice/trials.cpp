// SPDX-License-Identifier: Apache-2.0
#include "sim/draft_choice/trials.hpp"

#include <algorithm>

namespace moesim {

DraftTrials::DraftTrials(ConfigReader& options)
    : trial_steps_(options.integer("trial_steps")), set_steps_(options.integer("set_steps")) {}

std::int32_t DraftTrials::drafts(std::int32_t most) {
  most_ = most;
  return std::min(now_, most);
}

void DraftTrials::decoded(const DecodedStep& step) {
  if (left_ > 0) {
    if (--left_ == 0) try_drafts(0);
    return;
  }
  const auto sequences = static_cast<double>(step.sequences);
  seconds_ += step.time.count() / sequences;
  tokens_ += static_cast<double>(step.tokens) / sequences;
  if (++steps_ < trial_steps_) return;
  const double rate = tokens_ / seconds_;
  const bool better = now_ == 0 || rate > best_rate_;
  if (better) best_ = now_, best_rate_ = rate;
  if (better && now_ < most_) return try_drafts(now_ + 1);
  wait_ = best_ > 0 ? set_steps_ : std::clamp(2 * wait_, set_steps_, 8 * set_steps_);
  left_ = wait_;
  now_ = best_;
}

void DraftTrials::try_drafts(std::int32_t drafts) {
  now_ = drafts;
  steps_ = 0;
  seconds_ = tokens_ = 0;
}

std::span<const Key> draft_trials_keys() {
  static constexpr Form steps = form::integer(1, 1 << 20);
  static constexpr Key keys[] = {{"trial_steps", steps, "4", "steps for which a count is tried"},
                                 {"set_steps", steps, "64", "steps for which the best is kept"}};
  return keys;
}

}  // namespace moesim
