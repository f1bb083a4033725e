// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/sections/requests.hpp"

namespace moesim {

/// Parts of the time of sessions.
struct SessionShares {
  double service = 0, queue = 0;
  std::optional<double> join;  ///< where sessions have several agents
  double gap = 0;
};

/// A turn of a session, in seconds of the run. Blocks from a tier came in the last `loading_s`
/// before `begun_s`.
struct TurnSpan {
  std::int64_t agent = 0, turn = 0;  ///< from 0
  double sent_s = 0, begun_s = 0, first_token_s = 0, last_token_s = 0;
  std::optional<double> loading_s;  ///< where there are tiers
  std::int64_t prompt_tokens = 0, cached_tokens = 0;
  std::optional<std::int64_t> loaded_tokens;  ///< of those cached
  std::int64_t output_tokens = 0;
};

struct SlowSession {
  std::int64_t session = 0;  ///< in order of their beginning
  double begun_s = 0, ended_s = 0;
  std::vector<TurnSpan> turns;  ///< in order of their requests
};

struct SessionStats {
  std::int64_t finished = 0, broken = 0, open = 0;  ///< of the whole run
  std::optional<std::int64_t> too_long;             ///< of the whole run, where there are any
  std::int64_t measured = 0;
  Summary completion;  ///< s
  double mean_turns = 0;
  double throughput = 0;
  double mean_alive = 0, mean_requests_in_flight = 0;
  SessionShares share_of_time;
  std::optional<std::vector<SlowSession>> slowest;  ///< slowest first, where they are asked for
};

/// Prompt tokens, by where they came from when a request was first admitted.
struct PrefixStats {
  std::int64_t queried_tokens = 0, hit_tokens = 0, computed_tokens = 0;
  std::optional<std::int64_t> loaded_tokens;  ///< of the hits, from tiers, where there are any
  std::int64_t ideal_hit_tokens = 0;          ///< of one endless cache
  double hit_rate = 0, ideal_hit_rate = 0;
};

struct TurnGroupStats {
  std::int64_t requests = 0;
  Summary ttft;  ///< ms
  double mean_prompt_tokens = 0, mean_computed_tokens = 0, mean_output_tokens = 0;
  PrefixStats prefix;
};

/// Prompt tokens of the turns that were sent in a part of the run, by where they came from.
struct HitSpan {
  double begin_s = 0, end_s = 0;
  std::int64_t queried_tokens = 0, hit_tokens = 0;
  std::optional<std::int64_t> loaded_tokens;  ///< of the hits
};

struct TurnStats {
  std::optional<TurnGroupStats> all, first, later;
  std::optional<TurnGroupStats> after_compaction;  ///< whose prompt is shorter than the one before
  Named<TurnGroupStats> by_number;
  std::optional<std::vector<HitSpan>> over_time;  ///< where sessions are asked for one by one
};

/// Statistics of the sessions of a run that ended at `now`. Times are those of sessions that
/// finished after measuring began.
SessionStats sessions_of(const Deployment&, std::span<const SessionLife>, const Requests&,
                         const Measured&, Time now);

/// First and later turns that finished, of those that arrived while measured.
TurnStats turns_of(const Deployment&, const Requests&, const Measured&);

Fields<SessionStats> rows_of(const SessionStats*);
Fields<TurnStats> rows_of(const TurnStats*);

}  // namespace moesim
