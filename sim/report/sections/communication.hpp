// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "sim/report/fields.hpp"
#include "sim/report/statistics.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

struct CommunicationSum {
  Traffic dispatch, combine, all_reduce;
  CountHistogram dispatch_ns, combine_ns;                       ///< per MoE layer
  std::map<std::string_view, std::int64_t> layers_by_dispatch;  ///< which one carried the tokens
  void add(const StepRecord&);
  /// Adds steps by their MoE layers.
  void add_layers(std::span<const LayerOutcome>, std::int64_t steps);
};

struct TrafficStats : Traffic {
  double share_of_busy_time = 0;
};

struct LayerTrafficStats {
  TrafficStats all;
  double mean_us_per_layer = 0, p99_us_per_layer = 0;
};

struct CommunicationStats {
  Named<std::int64_t> layers_by_dispatch;
  LayerTrafficStats dispatch, combine;
  TrafficStats tp_all_reduce;
};

/// `busy` is the time of all steps.
CommunicationStats communication_of(const CommunicationSum&, double busy);

Fields<CommunicationStats> rows_of(const CommunicationStats*);

}  // namespace moesim
