// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "sim/experiment/spec.hpp"
#include "sim/requests/requests.hpp"

namespace moesim {

/// Latencies of one request, in ms.
struct Latency {
  double ttft;
  std::optional<double> tpot;  ///< of outputs of two tokens and more
  double e2el;
};

/// The latencies of a request that finished. TTFT = first token - arrival, times `anchored_ttft`
/// (Deployment::anchored_ttft); TPOT = (e2el - ttft)/(output - 1).
Latency latency_of(const RequestLife&, double anchored_ttft);

/// Which objectives a request met. An objective that the config does not set is met.
struct Met {
  bool ttft, tpot, e2el;
  bool all() const { return ttft && tpot && e2el; }
};
Met objectives_met(const Latency&, const Slo&);

}  // namespace moesim
