// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hardware/registry.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim {

/// No request may arrive later: 60 days, so that the last requests and what follows them end within
/// the clock's 106.
inline constexpr Seconds last_arrival{5.184e6};

/// Start of a source of requests.
struct SourceStart {
  std::shared_ptr<const Lengths> lengths;
  std::int64_t requests = 0;
  std::uint64_t seed = 0;
  int dp_ranks = 1;
};

/// When requests arrive.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  virtual std::unique_ptr<RequestSource> start(const SourceStart&) const = 0;
  /// The lengths that came with the arrivals; null for all but traces.
  virtual std::shared_ptr<const Lengths> own_lengths() const { return nullptr; }
  /// How many requests there are to send; 0 when there is no end to them.
  virtual std::int64_t available() const { return 0; }
  /// Requests per second, where the config says one rate; 0: several rates, a trace, a closed loop.
  virtual double rate() const { return 0; }
  /// Shape of the gaps' gamma distribution, 1/cv^2; 1: Poisson, infinite: equal gaps.
  virtual double burstiness() const { return 1; }
  /// Requests in flight of a closed loop over so many attention ranks; 0: of no closed loop.
  virtual std::int64_t in_flight(int /*dp_ranks*/) const { return 0; }
  /// True if a request waits for another to leave, so that never more is asked for than is served.
  virtual bool closed() const { return false; }
  /// True if of so many requests one ever waits so; a limit beyond them holds none back.
  bool closed_for(std::int64_t requests) const {
    return closed() && (rate() == 0 || in_flight(1) < requests);
  }
};

/// Requests at known times, in order.
std::shared_ptr<const Arrivals> recorded_arrivals(std::vector<TimedRequest>);

/// The table: closed_loop, poisson, gamma, constant, trace.
const Registry<Arrivals>& request_arrivals();

}  // namespace moesim
