// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// What a client asks for: lengths are known to the simulator, not to the policies.
struct Request {
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  ///< >= 1; the first is produced by the prefill
};

struct TimedRequest {
  Time arrival;
  Request request;
};

/// Requests in order of arrival.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  /// The next request that arrives whatever the system does; arrivals never decrease. nullopt is
  /// the end (for now: a closed loop answers again after completed()).
  virtual std::optional<TimedRequest> next() = 0;
  /// A request finished at `now`: a closed loop sends the next one.
  virtual void completed(Time /*now*/) {}
};

/// What the "workload" object of an experiment says about requests: "arrivals", "lengths",
/// "requests".
struct RequestWorkload {
  std::unique_ptr<RequestSource> make(std::uint64_t seed, int dp_ranks) const;
  std::function<std::unique_ptr<RequestSource>(std::uint64_t seed, int dp_ranks)> maker;
};

}  // namespace moesim
