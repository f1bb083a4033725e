// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "traces/requests/arrivals.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

/// The turns of sessions, as far as the system has answered them: turn k + 1 arrives a gap after
/// the end of turn k. Sessions start as `starts` says; to a closed loop a session is one request,
/// so that as many are alive as it has clients. After SourceStart::requests turns of all sessions
/// nothing arrives any more. A session whose turn is rejected or abandoned is over.
std::unique_ptr<RequestSource> start_sessions(const SessionPlan&, const Arrivals& starts,
                                              const SourceStart&);

}  // namespace moesim
