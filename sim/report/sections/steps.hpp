// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"
#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Sums over steps, by what they held and by the rule they ran under.
struct StepSum {
  struct Kind {
    std::int64_t steps = 0;
    double seconds = 0;
    std::array<double, part_names.size()> parts{};  ///< seconds of the critical path
    double prefill_tokens = 0, decode_tokens = 0;
    double dummy_ranks = 0;
  };
  std::array<Kind, 3> by_kind;
  std::array<std::int64_t, 3> steps_by_rule{};
  std::array<double, 3> seconds_by_rule{};
  void add(const StepRecord&);
  std::int64_t steps() const { return by_kind[0].steps + by_kind[1].steps + by_kind[2].steps; }
  double seconds() const { return by_kind[0].seconds + by_kind[1].seconds + by_kind[2].seconds; }
};

struct StepKindStats {
  std::int64_t steps = 0;
  double seconds = 0, share_of_time = 0, mean_ms = 0;
  double mean_prefill_tokens = 0, mean_decode_tokens = 0, mean_decode_tokens_per_rank = 0;
  double mean_dummy_ranks = 0, decode_tokens_per_s_per_gpu = 0;
  Named<double> parts_mean_ms;
};

struct RuleShares {
  double share_of_steps = 0, share_of_time = 0;
};

struct StepStats {
  Named<StepKindStats> by_kind;
  Named<RuleShares> by_rule;
};

StepStats steps_of(const ServedModel&, const StepSum&);

Fields<StepStats> rows_of(const StepStats*);

}  // namespace moesim
