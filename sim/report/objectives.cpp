// SPDX-License-Identifier: Apache-2.0
#include "sim/report/objectives.hpp"

namespace moesim {

namespace {

double ms(Duration duration) { return to_seconds(duration).count() * 1e3; }

}  // namespace

Latency latency_of(const RequestLife& request, double anchored_ttft) {
  const double ttft = ms(request.first_token - request.arrival);
  const double e2el = ms(request.last_token - request.arrival);
  Latency latency{ttft * anchored_ttft, std::nullopt, e2el + ttft * (anchored_ttft - 1)};
  if (request.output_tokens > 1) latency.tpot = (e2el - ttft) / (request.output_tokens - 1);
  return latency;
}

Met objectives_met(const Latency& latency, const Slo& slo) {
  const auto within = [](double value, const std::optional<Seconds>& limit) {
    return !limit || value <= limit->count() * 1e3;
  };
  return {within(latency.ttft, slo.ttft), within(latency.tpot.value_or(0), slo.tpot),
          within(latency.e2el, slo.e2el)};
}

}  // namespace moesim
