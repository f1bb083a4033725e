// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/remarks.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/report/metric_catalogue.hpp"
#include "traces/halves.hpp"

namespace moesim {

namespace {

// True if a layer of some kind of step leaves experts idle: another recording could have needed
// them.
bool leaves_experts_idle(int all_experts, const PoolStats& pool) {
  constexpr double nearly_all = .9;
  for (const auto& [kind, step] : pool.steps.by_kind) {
    if (step.share_of_time < .5) continue;
    const ExpertKindStats* experts = metric_values::find(pool.experts.by_step_kind, kind);
    return experts != nullptr && experts->summary.active_experts_mean < nearly_all * all_experts;
  }
  return false;
}

}  // namespace

// Placements may keep one half to be fitted on.
Recordings recordings_of(const Deployment& e) {
  if (e.model.experts == 0) return {};
  const std::int64_t count = e.bind_odd_only ? std::ranges::count(fitted_half(e.trace), 0)
                                             : static_cast<std::int64_t>(e.trace.requests().size());
  return {count, e.trace.meta().synthetic, e.model.experts};
}

std::string remark_on_recordings(const Recordings& recordings, const Report& report) {
  const Metrics& m = report.metrics;
  if (recordings.experts == 0 || m.completed == 0) return "";
  const double in_flight = m.request_throughput * m.e2el.mean / 1e3;  // Little's law
  if (in_flight <= double(recordings.count) ||
      !leaves_experts_idle(recordings.experts, report.pool))
    return "";
  return fmt::format(
      "more requests are in flight than the {} recordings of routing. Requests that share a "
      "recording activate the same experts, so steps come out too short. {}",
      recordings.count,
      recordings.synthetic ? "Raise /workload/gating/requests" : "Use a trace of more requests");
}

}  // namespace moesim
