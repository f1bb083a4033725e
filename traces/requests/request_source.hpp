// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/units.hpp"
#include "traces/requests/patience.hpp"

namespace moesim {

class Arrivals;
class Lengths;
struct SessionPlan;

/// Ids that say which requests begin with the same tokens. An id names the tokens of its span and
/// all before them. Requests with equal ids at one place are equal up to there.
struct PromptIds {
  struct Span {
    std::int64_t end = 0;  ///< tokens of the request before the end of the span
    std::uint64_t id = 0;
    bool operator==(const Span&) const = default;
  };
  /// In order; together they cover the prompt, and what the request generates if that has a name.
  std::vector<Span> spans;

  /// How many tokens have a name.
  std::int64_t tokens() const { return spans.empty() ? 0 : spans.back().end; }
};
/// Ids of equal blocks of a prompt, the last of which may be partial.
PromptIds ids_of_blocks(std::int64_t prompt_tokens, std::int32_t block_tokens,
                        std::span<const std::uint64_t> ids);

/// The same spans with other tokens: of a trace's repetition `round`, above 0.
std::shared_ptr<const PromptIds> ids_of_others(PromptIds, std::uint64_t round);

/// Which turn of a session a request is.
struct SessionTurn {
  std::uint32_t session = 0;  ///< in order of their beginning
  std::uint32_t turn = 0;     ///< of its agent, from 0
  /// Leading tokens of the prompt that some earlier request had computed, were nothing forgotten.
  std::int32_t known_tokens = 0;
  std::uint32_t agent = 0;     ///< of the session, in order of their beginning; 0: the main one
  std::uint32_t siblings = 0;  ///< 1 + the agent that started its own; 0: the main one
};

/// Names an agent of a session in a run.
using AgentName = std::uint64_t;
constexpr AgentName agent_name(std::uint32_t session, std::uint32_t agent) {
  return (AgentName{session} << 32) | agent;
}

/// Facts known of an agent's next request.
struct NextRequest {
  enum class State : std::uint8_t {
    due,    ///< it is sent at `at`, or has been and is not served yet
    runs,   ///< the request before is served now
    waits,  ///< other agents must be answered before
    never
  };
  State state = State::never;
  Time at{};                      ///< due
  std::int32_t turns_before = 0;  ///< waits: turns of others that follow each other until then
  bool operator==(const NextRequest&) const = default;
};
struct Announcement {
  AgentName agent = 0;
  NextRequest next{};
};

/// Life of a session.
struct SessionLife {
  enum class State : std::uint8_t {
    open,      ///< the run ended before the session did
    finished,  ///< its last turn was answered
    broken     ///< a turn was rejected, or its client left
  };
  Time begun{};                ///< when its first request was sent
  Time ended{};                ///< when its last one left
  std::uint32_t answered = 0;  ///< turns of all agents
  /// Turns of all agents that SessionRules::max_context does not take: their agent ended there,
  /// left them out, or sent them compacted.
  std::uint32_t too_long = 0;
  State state = State::open;
  /// Time for which its main agent had nothing to do but wait for others. It is between a reply and
  /// the last reply that its next turn waited for, or the last one of all.
  Duration joining{};
};

/// Request of a client: lengths are known to the simulator, not to the policies.
struct Request {
  std::int32_t prompt_tokens = 0;                 ///< >= 1
  std::int32_t output_tokens = 0;                 ///< >= 1; the first is produced by the prefill
  std::shared_ptr<const PromptIds> prompt_ids{};  ///< null: the prompt begins like no other
  std::optional<SessionTurn> turn{};              ///< nothing: a request by itself
  std::uint32_t recorded_class = 0;               ///< place in Lengths::classes(), if there are any
};

struct TimedRequest {
  Time arrival;
  Request request;
};

/// How a request left.
enum class Outcome : std::uint8_t { finished, rejected, abandoned };

/// Requests in order of arrival.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  /// The next request that arrives whatever the system does; arrivals never decrease. nullopt is
  /// the end (for now: a closed loop answers again after completed()).
  virtual std::optional<TimedRequest> next() = 0;
  /// Returns the time before which next() should not be asked. Its answer is the next request only
  /// if none leaves until then, as a request that leaves may be followed by one that arrives
  /// earlier. The beginning of time: whatever leaves.
  virtual Time not_before() const { return {}; }
  /// A request, counted from 0 in the order of next(), left at `now`: a closed loop sends the next
  /// one. Times never decrease.
  virtual void completed(std::int64_t /*request*/, Outcome, Time /*now*/) {}
  /// Announcements of the last completed() about agents' next requests: those of the agent that was
  /// answered, and of others that wait for it.
  virtual std::span<const Announcement> announced() const { return {}; }
  /// Sessions that have begun, in that order; none where each request is by itself.
  virtual std::span<const SessionLife> sessions() const { return {}; }
};

/// Statements of the "workload" object of an experiment about requests: "arrivals", "lengths" or
/// "sessions", "requests", and when clients leave. Cheap to copy; every source made from it starts
/// anew.
struct RequestWorkload {
  std::shared_ptr<const Arrivals> arrivals;  ///< of sessions, where there are any
  std::shared_ptr<const Lengths> lengths;    ///< of first turns, where there are sessions
  std::int64_t requests = 0;                 ///< how many are sent
  PatienceRule patience{};
  std::shared_ptr<const SessionPlan> sessions{};  ///< null: each request is by itself

  /// Tokens of the longest prompt and the longest output together; 0: unbounded or recorded.
  std::int64_t longest() const;
  /// True if prompts may begin with tokens of requests before them.
  bool shares_prefixes() const;
  /// The same seed gives the same requests. `dp_ranks` is what "concurrency_per_rank" counts.
  std::unique_ptr<RequestSource> make(std::uint64_t seed, int dp_ranks) const;
};

/// Reads "arrivals", "lengths" and "requests". The last two may be left out when the arrivals are a
/// trace: it has lengths of its own, and all of it is taken. Or reads "sessions" with "arrivals"
/// and "requests" (both may be left out if sessions are recorded), and read_patience()'s keys.
/// Other keys, such as "gating", are left for the caller. Throws ConfigError.
RequestWorkload read_workload(ConfigReader& workload);

}  // namespace moesim
