// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"
#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

struct ExpertMemorySum : ExpertMemoryTally {
  void add(const StepRecord& record) { *this += record.cost.expert_memory; }
};

struct ExpertTransferStats : ExpertMemoryTally {
  double hit_rate = 0;
  std::string host_source;
  std::optional<Seconds> held_up;  ///< where the host link is shared with KV blocks
};

struct ExpertMemoryStats {
  std::string type;
  std::optional<ExpertTransferStats> transfers;  ///< none: every expert is resident
};

ExpertMemoryStats expert_memory_of(const Deployment&, const ExpertMemoryTally&);

Fields<ExpertMemoryStats> rows_of(const ExpertMemoryStats*);

}  // namespace moesim
