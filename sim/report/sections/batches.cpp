// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/batches.hpp"

#include "sim/report/measurement.hpp"

namespace moesim {

using enum Better;

Fields<ExpertBufferStats> rows_of(const ExpertBufferStats*) {
  using S = ExpertBufferStats;
  return {{"tokens_per_rank", &S::tokens_per_rank,
           "tokens of a rank and step for which dispatch buffers have room", "tokens"},
          {"steps_cut", &S::steps_cut, "steps that were smaller because they were full", "", less},
          {"rank_steps_cut", &S::rank_steps_cut, "(rank, step) pairs of these", "", less}};
}

Fields<PrefillAlignmentStats> rows_of(const PrefillAlignmentStats*) {
  using S = PrefillAlignmentStats;
  return {{"type", &S::type, "policy that holds prompts back"},
          {"steps_held", &S::steps_held, "steps without prompts that ranks could have computed"},
          {"share_of_steps", &S::share_of_steps, "of all steps", "share of steps"},
          {"tokens_held", &S::tokens_held,
           "prompt tokens that these steps could have computed, counted in each", "tokens"},
          {"mean_wait_ms", &S::mean_wait_ms,
           "time that prompts were held, over all requests that arrived", "ms", less}};
}

void BatchSum::add(const StepRecord& record) {
  const StepSummary& step = record.step;
  steps_held += step.held.prompts > 0 ? 1 : 0;
  tokens_held += step.held.tokens;
  prompt_seconds_held += step.held.prompts * record.cost.total.count();
  cut_rank_steps += step.cut_ranks;
  cut_steps += step.cut_ranks > 0 ? 1 : 0;
}

std::optional<PrefillAlignmentStats> prefill_alignment_of(const Deployment& e,
                                                          const Totals& totals) {
  if (e.prefill_alignment.type == "none") return std::nullopt;
  const auto& sum = totals.of<BatchSum>();
  const std::int64_t steps = totals.of<StepSum>().steps();
  return PrefillAlignmentStats{
      .type = e.prefill_alignment.type,
      .steps_held = sum.steps_held,
      .share_of_steps = ratio(double(sum.steps_held), double(steps)),
      .tokens_held = sum.tokens_held,
      .mean_wait_ms = 1e3 * ratio(sum.prompt_seconds_held, double(totals.arrived))};
}

}  // namespace moesim
