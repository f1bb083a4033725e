// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "sim/experiment/deployment.hpp"
#include "sim/report/report.hpp"
#include "sim/requests/requests.hpp"

namespace moesim {

/// The part of a run that is measured.
struct Measured {
  Time begin{}, end{};
  /// Whether a request arrived then.
  bool holds(const RequestLife& request) const {
    return request.arrival >= begin && request.arrival <= end;
  }
};

/// What became of the sessions of a run that ended at `now`. Times are those of sessions that
/// finished after measuring began.
SessionStats sessions_of(const Deployment&, std::span<const SessionLife>, const Requests&,
                         const Measured&, Time now);

/// First and later turns that finished, of those that arrived while measured.
TurnStats turns_of(const Deployment&, const Requests&, const Measured&);

}  // namespace moesim
