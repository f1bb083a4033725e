// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"
#include "sim/report/fields.hpp"
#include "sim/report/sections/kv.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

struct Totals;

struct AfdSum : AfdTimes {
  void add(const StepRecord& record) {
    if (record.cost.afd) *this += *record.cost.afd;
  }
};

/// Attention and experts on GPUs of their own.
struct AfdStats {
  int attention_gpus = 0, ffn_gpus = 0, micro_batches = 0;
  double attention_idle_share = 0, ffn_idle_share = 0;
  double attention_straggler_share = 0, ffn_straggler_share = 0;
  double dispatch_busy_share = 0, combine_busy_share = 0;
  Named<double> critical_path;
  MemoryBudget ffn_memory;
};

AfdStats afd_of(const Deployment&, const Totals&);

Fields<AfdStats> rows_of(const AfdStats*);

}  // namespace moesim
