// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/remarks.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/report/metric_catalogue.hpp"
#include "traces/halves.hpp"

namespace moesim {

namespace {

// Those that simulated requests replay: placements may keep one half to be fitted on.
std::int64_t recordings_of(const Deployment& e) {
  if (!e.bind_odd_only) return static_cast<std::int64_t>(e.trace.requests().size());
  return std::ranges::count(fitted_half(e.trace), 0);
}

// Whether a layer of some kind of step leaves experts idle: another recording could have needed
// them.
bool leaves_experts_idle(const Deployment& e, const PoolStats& pool) {
  constexpr double nearly_all = .9;
  for (const auto& [kind, step] : pool.steps.by_kind) {
    if (step.share_of_time < .5) continue;
    const ExpertKindStats* experts = metric_values::find(pool.experts.by_step_kind, kind);
    return experts != nullptr &&
           experts->summary.active_experts_mean < nearly_all * e.model.experts;
  }
  return false;
}

}  // namespace

std::string remark_on_recordings(const Deployment& e, const Report& report) {
  const Metrics& m = report.metrics;
  if (e.model.experts == 0 || m.completed == 0) return "";
  const double in_flight = m.request_throughput * m.e2el.mean / 1e3;  // Little's law
  const std::int64_t recordings = recordings_of(e);
  if (in_flight <= double(recordings) || !leaves_experts_idle(e, report.pool)) return "";
  return fmt::format(
      "more requests are in flight than the {} recordings of routing. Requests "
      "that share a recording activate the same experts, so steps come out too short. {}",
      recordings,
      e.trace.meta().synthetic ? "Raise /workload/gating/requests"
                               : "Use a trace of more requests");
}

}  // namespace moesim
