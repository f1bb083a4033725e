// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/experiment.hpp"
#include "sim/report/fields.hpp"
#include "sim/report/statistics.hpp"
#include "sim/requests/requests.hpp"

namespace moesim {

struct Totals;

struct Attainment {
  std::optional<double> ttft, tpot, e2el;
  bool any() const { return ttft || tpot || e2el; }
};

struct Metrics {
  std::int64_t completed = 0, rejected = 0;
  std::optional<std::int64_t> timed_out, cancelled;  ///< where clients may leave
  std::optional<double> timeout_share, cancelled_share;
  std::int64_t measured_requests = 0, completed_while_measured = 0;
  double duration_s = 0;
  double request_throughput = 0, request_goodput = 0, slo_attainment = 0;
  std::optional<Attainment> attainment;  ///< where there are objectives
  double output_throughput = 0, total_token_throughput = 0;
  Summary ttft, tpot, itl, e2el;                           ///< ms
  std::optional<double> ingress_ms, queue_ms, prefill_ms;  ///< mean parts of ttft
  double tokens_per_s_per_gpu = 0;
  std::optional<double> tokens_per_s_per_user;
  double total_tokens_per_s_per_gpu = 0;
  double mfu = 0, mbu = 0;
  std::optional<double> cost_per_million_output_tokens;
};

/// The requests of one class.
struct ClassStats {
  std::int64_t requests = 0;
  Summary ttft, tpot;                    ///< ms
  std::optional<Attainment> attainment;  ///< where the class has objectives
  double slo_attainment = 0, request_goodput = 0;
};

/// The part of a run that is measured.
struct Measured {
  Time begin{}, end{};
  /// True if the engine received a request then.
  bool holds(const RequestLife& request) const {
    return request.received >= begin && request.received <= end;
  }
};

/// True if `says` holds for every kind of GPU.
bool all_gpus(const Experiment&, bool (*says)(const GpuSpec&));
/// Metrics over all pools; `gaps` are those between tokens.
Metrics metrics_of(const Experiment&, std::span<const Totals> pools, std::vector<Repeated> gaps,
                   std::span<const RequestLife>);
/// Requests by class. Goodput as metrics_of() has it: that of all classes sums to the whole.
Named<ClassStats> classes_of(const Deployment&, const Measured&, const Metrics&,
                             std::span<const RequestLife>);

Fields<Metrics> rows_of(const Metrics*);
Fields<ClassStats> rows_of(const ClassStats*);

}  // namespace moesim
