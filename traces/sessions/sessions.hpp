// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "hardware/registry.hpp"
#include "hardware/rng.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

struct ChildAgent;
using ChildAgents = std::shared_ptr<const std::vector<ChildAgent>>;

/// Request of an agent of a session in one turn.
struct NextTurn {
  Seconds gap{};  ///< that its client pauses before it
  /// Leading tokens of the turn before, reply included, with which the prompt begins.
  std::int64_t kept = 0;
  std::int64_t prompt_tokens = 0;  ///< >= kept
  std::int32_t output_tokens = 0;  ///< >= 1
  /// Ids of the whole prompt, as recorded; null: what follows `kept` is like nothing else.
  std::shared_ptr<const PromptIds> ids{};
  ChildAgents children{};  ///< agents that its reply starts; null: none
};

/// An agent that another one starts with a reply: a chain of turns of its own, whose first prompt
/// begins with nothing but what all sessions share.
struct ChildAgent {
  Seconds offset{};              ///< after the reply, before its first turn
  bool background = false;       ///< else the next turn of the agent that started it waits for it
  std::int64_t turns = 1;        ///< how many it has
  std::vector<NextTurn> told{};  ///< its turns, as recorded; none: they are drawn when asked for
  std::optional<Rng> draws{};    ///< where they are drawn: from here on
};
/// The agents that a reply starts. Agents may start agents however deep: letting go of them is no
/// recursion.
ChildAgents started_agents(std::vector<ChildAgent>);

/// Turns of these and of all agents that they start, as recorded.
std::int64_t count_turns(std::span<const NextTurn>);

/// Load of sessions. As Lengths: the first turn of each. A session is a tree of agents. The main
/// agent is a chain of turns, each of which follows the reply to the one before; its turns may
/// start others.
class Sessions : public Lengths {
 public:
  /// How many turns the index-th session has, >= 1; drawn before any of them but the first.
  virtual std::int64_t turns(std::int64_t session, Rng&) const = 0;
  /// Its turn-th turn, from 1, asked for in order. The turn before and its reply have `context`
  /// tokens.
  virtual NextTurn turn(std::int64_t session, std::int64_t turn, std::int64_t context,
                        Rng&) const = 0;
  /// NextTurn::children of its first turn; asked for after turns().
  virtual ChildAgents first_children(std::int64_t /*session*/, Rng&) const { return nullptr; }
  /// The turn-th turn, from 0, of an agent that the session has started, asked for in order.
  /// `context` as of turn(), 0 before the first; `draws` begins as the agent's own.
  virtual NextTurn turn_of(std::int64_t session, const ChildAgent&, std::int64_t turn,
                           std::int64_t context, Rng& draws) const = 0;

  /// When recorded sessions start; null: they do not say so, or are not recorded.
  virtual std::shared_ptr<const Arrivals> recorded_starts() const { return nullptr; }
  /// Turns of all agents of all recorded sessions; 0: they are not recorded.
  virtual std::int64_t recorded_turns() const { return 0; }
  /// True if gaps count from the turn before, its service included; else from its reply.
  virtual bool gaps_from_starts() const { return false; }
  /// SessionRules::shared_prefix as recorded.
  virtual std::int64_t shared_prefix() const { return 0; }
};

/// The table: generated, its presets, recorded.
const Registry<Sessions>& session_kinds();

/// Rules that hold for sessions of every kind.
struct SessionRules {
  /// Fate of a turn that is longer than a request may be.
  enum class TooLong { end, drop, compact };

  /// Time from which the gap before a turn counts: the end of the turn before, or its start. A
  /// schedule counts from its start if no reply had been late (a trace replayed at recorded times).
  enum class GapFrom { end, start, schedule };

  GapFrom gap_from = GapFrom::end;
  std::optional<Seconds> idle_cap{};  ///< no gap is longer
  /// A session with no request under way sends the next one after this time at the latest. All gaps
  /// of its agents that are under way then end sooner by as much.
  std::optional<Seconds> tree_idle_cap{};
  bool reuse_output = true;        ///< a reply stands in the next prompt as it was generated
  std::int64_t shared_prefix = 0;  ///< leading tokens of every first prompt that are the same
  std::optional<std::int64_t> max_context{};  ///< tokens of a later prompt and its output
  TooLong too_long = TooLong::end;
  /// Place in their turns where the first sessions of a closed loop begin, as shares: at the first
  /// turn, or anywhere between these. What lies before is not sent.
  double start_from = 0, start_to = 0;
  /// Such a session first sends the turn before with a reply of one token, so that its context is
  /// cached. That is a turn like others to reports.
  bool primes = false;
};

struct SessionPlan {
  std::shared_ptr<const Sessions> sessions;
  SessionRules rules;
};

/// Reads "workload/sessions". Throws ConfigError.
SessionPlan read_sessions(const ConfigNode&);
/// The keys beside those of a kind of sessions.
std::span<const Key> session_keys();

}  // namespace moesim
