// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "traces/requests/arrivals.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

/// Source of the turns of sessions, as far as the system has answered them. For an agent
///   arrival(k + 1) = max(end(k), ends of the agents started by reply k that it waits for) + gap
/// and an agent that reply k starts sends its first turn at end(k) + offset. Sessions start as
/// `starts` says. To a closed loop a session is one request, so that as many are alive as it has
/// clients: a session ends when all of its agents have. After SourceStart::requests turns of all
/// sessions nothing arrives any more. A session is over when a turn of its main agent is rejected
/// or abandoned, but for what is in flight. Another agent then ends as after its last turn.
std::unique_ptr<RequestSource> start_sessions(const SessionPlan&, const Arrivals& starts,
                                              const SourceStart&);

}  // namespace moesim
