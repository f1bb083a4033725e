// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/plan/plan.hpp"

namespace moesim {

/// Means of turns of sessions, if each reply comes at once and no KV cache forgets.
struct TurnMeans {
  double prompt = 0, output = 0;  ///< tokens
  double computed = 0;            ///< tokens of a prompt that no earlier request has computed
  double gap = 0;                 ///< s from a reply to the next request of the lane
  double turns = 0;               ///< of a session
  /// How many turns were looked at, and how many more were rejected, as no request may be so long.
  std::int64_t served = 0, rejected = 0;
  /// Sessions, and those that reached SessionRules::max_context.
  std::int64_t sessions = 0, too_long = 0;
};

/// Turns of the experiment's own sessions, its clients' first sessions from their first turn.
TurnMeans turn_means(const Experiment&);
/// Says of sessions and turns that are too long how many there are and what becomes of them; ""
/// where there are none.
std::string too_long_text(const TurnMeans&, const Deployment&);

/// Estimate of how many sessions an experiment may serve at a time. It goes by the price of a few
/// of its steps, by what is in its KV cache and by the TPOT of its SLO. Good for an order of
/// deployments: ranks that wait for each other, queues and evictions are not in it. `prefill` and
/// `decode` are turns/s that either allows if it has all the time.
TuneBound estimate_sessions(const Experiment&, const TurnMeans&);

/// Loads to try: 1, 2, 3, .. sessions, each at least so much above the one before, up to `most`.
RateLadder session_ladder(double most, double step);

/// The question as an experiment with sessions: base_deployment() whose clients, a closed loop,
/// have a session each at any time. The first ones begin anywhere among their turns. `sessions` is
/// what "workload/sessions" has.
Json session_deployment(Json base, const Json& sessions);

/// The name of a kind of sessions as --sessions has it, a session file, or a file that holds what
/// "workload/sessions" has. Throws ConfigError.
Json sessions_of_option(const std::string& named);

/// Worth of a tier of host memory.
struct TierWorth {
  std::string write;          ///< policy
  std::optional<SloRun> run;  ///< nothing: not even one session
};

struct SessionPlanSearch {
  PlanSearch plan;  ///< its base is a session_deployment()
  SessionLimits limits;
  std::string host_memory;  ///< of a node, as a config has it; empty: no tier is asked
};

/// Result of a search for sessions: at most three of the best, of which the first sustains its load
/// under three seeds.
struct SessionPlanned : PlanFound {
  TurnMeans means;
  std::string too_long;               ///< too_long_text()
  std::optional<SloRun> single_seed;  ///< what the best bears under one seed: what tiers compare to
  std::vector<TierWorth> tiers;
  std::string no_tier;          ///< why the best has no tier
  bool drafts = false;          ///< whether they were asked for
  bool times_sessions = false;  ///< whether runs are long enough to tell how long sessions take
};

/// Looks for the deployment that serves the most sessions at a time within the limits. It tries all
/// shapes in the order of their estimates, pools among them, and gives each up by a short run that
/// misses. Then it tries chunks, drafts, copies of experts and routers of requests of the best,
/// longer runs, and the best with host memory as a tier. Same question, same answer.
SessionPlanned make_session_plan(const SessionPlanSearch&, TraceLibrary&, Remarks&,
                                 const PlanHooks&);

}  // namespace moesim
