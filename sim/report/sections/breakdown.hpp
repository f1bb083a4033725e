// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/fields.hpp"
#include "sim/step/step_record.hpp"
#include "sim/token_routing/charges.hpp"

namespace moesim {

struct Totals;

/// Time of steps by part, and by what bounds it.
struct BreakdownSum {
  Breakdown parts{};
  SecondsByEvidence by_evidence{};
  std::vector<double> idle;  ///< seconds per GPU
  void add(const StepRecord&);
};

struct PartStats {
  double seconds = 0, share = 0;
  Named<double> bound_by;
};

struct BreakdownStats {
  double busy_seconds = 0;
  Named<PartStats> parts;
  Named<double> bound_by;
  double extrapolated_share = 0, unmeasured_share = 0;
  double barrier_idle_share = 0;
  std::vector<double> barrier_idle_seconds_per_gpu;
  double exposed_communication_share = 0;
  std::optional<double> measured_share, interpolated_share, carried_over_share, charged_share;
};

struct RoutingChargeStats {
  double fixed_us = 0, per_128_active_us = 0;
  std::optional<double> per_128_candidates_us;  // where the time grows with replicas
};

struct ChargeStats {
  std::string source;
  double top_k_of_all_tokens_us = 0, host_overhead_us = 0;
  Named<RoutingChargeStats> token_routing;
};

BreakdownStats breakdown_of(const Totals&);
ChargeStats charges_of(const Charges&);

Fields<BreakdownStats> rows_of(const BreakdownStats*);
Fields<ChargeStats> rows_of(const ChargeStats*);

}  // namespace moesim
