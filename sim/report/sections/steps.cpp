// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/steps.hpp"

#include "hardware/at.hpp"
#include "sim/report/statistics.hpp"

namespace moesim {

using enum Better;

Fields<StepKindStats> rows_of(const StepKindStats*) {
  using S = StepKindStats;
  return {{"steps", &S::steps, "steps that held prefill, decode or both (mixed)"},
          {"seconds", &S::seconds, "their sum", "s"},
          {"share_of_time", &S::share_of_time, "share of the time of all steps", "share of time"},
          {"mean_ms", &S::mean_ms, "a step", "ms", less},
          {"mean_prefill_tokens", &S::mean_prefill_tokens, "prompt tokens in a step", "tokens"},
          {"mean_decode_tokens", &S::mean_decode_tokens, "decode tokens in a step", "tokens", more},
          {"mean_decode_tokens_per_rank", &S::mean_decode_tokens_per_rank,
           "decode tokens in a step and DP rank", "tokens"},
          {"mean_dummy_ranks", &S::mean_dummy_ranks,
           "DP ranks that ran a dummy token because others had work"},
          {"decode_tokens_per_s_per_gpu", &S::decode_tokens_per_s_per_gpu,
           "decode tokens over the time of these steps and the GPUs of a group", "tokens/s", more},
          {"parts_mean_ms/PART", &S::parts_mean_ms, "a step's critical path, by part", "ms", less}};
}

Fields<RuleShares> rows_of(const RuleShares*) {
  using S = RuleShares;
  return {{"share_of_steps", &S::share_of_steps,
           "steps that were routed by the policies of prefill, decode or mixed", "share of steps"},
          {"share_of_time", &S::share_of_time, "the time of these steps", "share of time"}};
}

Fields<StepStats> rows_of(const StepStats*) {
  using S = StepStats;
  return {{merged, &S::by_kind, "KIND"}, {"by_rule/KIND", &S::by_rule, ""}};
}

void StepSum::add(const StepRecord& record) {
  const StepSummary& step = record.step;
  const double seconds = record.cost.total.count();
  Kind& kind = by_kind[at(step.kind)];
  ++kind.steps;
  kind.seconds += seconds;
  kind.prefill_tokens += step.prefill_tokens;
  kind.decode_tokens += step.decode_tokens;
  kind.dummy_ranks += step.dummy_ranks;
  ++steps_by_rule[at(step.rule)];
  seconds_by_rule[at(step.rule)] += seconds;
  for (std::size_t part = 0; part < kind.parts.size(); ++part)
    for (const double of_resource : record.cost.parts[part]) kind.parts[part] += of_resource;
}

StepStats steps_of(const ServedModel& e, const StepSum& sum) {
  StepStats steps;
  const double busy = sum.seconds();
  const std::int64_t count = sum.steps();
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const StepSum::Kind& part = sum.by_kind[kind];
    const auto n = double(part.steps);
    StepKindStats& stats =
        steps.by_kind.emplace_back(step_kind_names[kind], StepKindStats{}).second;
    stats = {
        .steps = part.steps,
        .seconds = part.seconds,
        .share_of_time = ratio(part.seconds, busy),
        .mean_ms = ratio(part.seconds * 1e3, n),
        .mean_prefill_tokens = ratio(part.prefill_tokens, n),
        .mean_decode_tokens = ratio(part.decode_tokens, n),
        .mean_decode_tokens_per_rank = ratio(part.decode_tokens, n * e.parallel.dp),
        .mean_dummy_ranks = ratio(part.dummy_ranks, n),
        .decode_tokens_per_s_per_gpu = ratio(part.decode_tokens, part.seconds * e.parallel.gpus()),
        .parts_mean_ms = {}};
    for (std::size_t p = 0; p < part_names.size(); ++p) {
      stats.parts_mean_ms.emplace_back(part_names[p], ratio(part.parts[p] * 1e3, n));
    }
  }
  for (std::size_t rule = 0; rule < 3; ++rule) {
    steps.by_rule.emplace_back(step_kind_names[rule],
                               RuleShares{ratio(double(sum.steps_by_rule[rule]), double(count)),
                                          ratio(sum.seconds_by_rule[rule], busy)});
  }
  return steps;
}

}  // namespace moesim
