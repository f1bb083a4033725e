// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"
#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

struct Totals;

/// Steps that were smaller than queues allowed.
struct BatchSum {
  std::int64_t cut_rank_steps = 0, cut_steps = 0;  ///< because expert buffers were full
  std::int64_t steps_held = 0, tokens_held = 0;    ///< with prompts held back; of those prompts
  double prompt_seconds_held = 0;
  void add(const StepRecord&);
};

/// Prompts that ranks held back to prefill together.
struct PrefillAlignmentStats {
  std::string type;
  std::int64_t steps_held = 0;
  double share_of_steps = 0;
  std::int64_t tokens_held = 0;
  double mean_wait_ms = 0;
};

struct ExpertBufferStats {
  std::int32_t tokens_per_rank = 0;
  std::int64_t steps_cut = 0, rank_steps_cut = 0;
};

std::optional<PrefillAlignmentStats> prefill_alignment_of(const Deployment&, const Totals&);

Fields<ExpertBufferStats> rows_of(const ExpertBufferStats*);
Fields<PrefillAlignmentStats> rows_of(const PrefillAlignmentStats*);

}  // namespace moesim
