// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/speculation.hpp"

#include "sim/report/statistics.hpp"

namespace moesim {

using enum Better;

// Keys as vLLM counts.
Fields<SpeculationStats> rows_of(const SpeculationStats*) {
  using S = SpeculationStats;
  return {
      {"num_drafts", &S::verifications, "verifications of a sequence in a step"},
      {"num_draft_tokens", &S::drafted, "drafts that were verified", "tokens"},
      {"num_accepted_tokens", &S::accepted, "drafts that held", "tokens", more},
      {"draft_acceptance_rate", &S::acceptance_rate, "accepted / drafted", "share", more},
      {"mean_acceptance_length", &S::mean_length,
       "tokens that a verification yields, its own included", "tokens", more},
      {"draft_seconds", &S::draft_seconds, "steps spent on drafting", "s", less},
      {"draft_share", &S::share_of_time, "share of the time of all steps", "share of time", less}};
}

// Counts as vLLM does: the length is what a verification yields, its own token included.
SpeculationStats speculation_of(const SpeculationTally& tally, double busy) {
  const double length =
      tally.verifications == 0 ? 0.0 : 1 + double(tally.accepted) / double(tally.verifications);
  return {tally, ratio(double(tally.accepted), double(tally.drafted)), length,
          ratio(tally.draft_seconds, busy)};
}

}  // namespace moesim
