// SPDX-License-Identifier: Apache-2.0
#include "traces/sessions/sessions.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "hardware/choice.hpp"

namespace moesim {

Keys generated_session_keys, chat_session_keys, coding_session_keys, codex_session_keys,
    recorded_session_keys;
Registry<Sessions>::Maker make_generated_sessions, make_chat_sessions, make_recorded_sessions;

const Registry<Sessions>& session_kinds() {
  static const Registry<Sessions> table(
      "sessions",
      {{"generated", "turns, lengths and gaps drawn as the experiment says",
        make_generated_sessions, generated_session_keys},
       {"chat",
        "conversations with people: lengths and gaps of Mooncake's trace, turns of a cluster "
        "where nine sessions in ten have one",
        make_chat_sessions, chat_session_keys},
       {"coding", "coding agents in daily use, as TraceLab counts calls and outputs",
        make_generated_sessions, coding_session_keys},
       {"codex", "Codex on SWE-bench Pro, 610 runs: 30 turns, 80k tokens of context at the end",
        make_generated_sessions, codex_session_keys},
       {"recorded", "the sessions of a file, turn by turn", make_recorded_sessions,
        recorded_session_keys}});
  return table;
}

namespace {

// Deletes lists of agents one after the other: what is let go of meanwhile waits for its turn.
void delete_in_turn(const std::vector<ChildAgent>* agents) {
  thread_local std::vector<const std::vector<ChildAgent>*> waiting;
  thread_local bool deletes = false;
  waiting.push_back(agents);
  if (std::exchange(deletes, true)) return;
  while (!waiting.empty()) {
    const auto* next = waiting.back();
    waiting.pop_back();
    delete next;
  }
  deletes = false;
}

}  // namespace

ChildAgents started_agents(std::vector<ChildAgent> agents) {
  return {new std::vector<ChildAgent>(std::move(agents)), delete_in_turn};
}

std::int64_t count_turns(std::span<const NextTurn> turns) {
  std::int64_t count = 0;
  std::vector<std::span<const NextTurn>> left{turns};
  while (!left.empty()) {
    const std::span<const NextTurn> agent = left.back();
    left.pop_back();
    count += std::ssize(agent);
    for (const NextTurn& turn : agent) {
      if (!turn.children) continue;
      for (const ChildAgent& child : *turn.children) left.emplace_back(child.told);
    }
  }
  return count;
}

namespace {

constexpr std::array<std::string_view, 3> gap_from_names{"end", "start", "schedule"};
constexpr std::array<std::string_view, 3> too_long_names{"end", "drop", "compact"};
enum class StartAt { first_turn, uniform };
constexpr std::array<std::string_view, 2> start_at_names{"first_turn", "uniform"};

std::span<const Key> start_at_keys() {
  static constexpr Key keys[] = {
      {"from", form::number(0, 1), required, "share of a session's turns; 0: the first turn"},
      {"to", form::number(0, 1), required, "share of a session's turns"},
      {"prime", form::flag, unset("false"), "the turn before is sent first, for one token"}};
  return keys;
}

void read_start_at(const ConfigNode& node, SessionRules& rules) {
  if (!node.json().is_object()) {
    if (static_cast<StartAt>(node.choice()) == StartAt::uniform) rules.start_to = 1;
    return;
  }
  read_object(node, start_at_keys, [&](ConfigReader& options) {
    rules.start_from = options.number("from");
    rules.start_to = options.number("to", Range{rules.start_from, 1});
    if (options.optional("prime")) rules.primes = options.flag("prime");
  });
}

std::span<const Key> max_context_keys() {
  static constexpr Key keys[] = {
      {"at", form::integer(2, 1e9), unset("max_model_len"), "tokens of a prompt and its output"},
      {"do", form::choice(too_long_names), "end",
       "end the session, drop the turn, or compact to the first prompt"}};
  return keys;
}

void read_max_context(ConfigReader& reader, const Sessions& sessions, SessionRules& rules) {
  using TooLong = SessionRules::TooLong;
  const ConfigNode node = reader.child("max_context");
  read_object(node, max_context_keys, [&](ConfigReader& options) {
    if (options.optional("at")) rules.max_context = options.integer("at");
    rules.too_long = choice<TooLong>(options, "do", too_long_names);
  });
  const bool recorded = sessions.recorded_turns() > 0;
  if (rules.too_long == TooLong::drop && !recorded)
    node.fail(R"(a generated session only grows, so no later turn is shorter; use "end" or )"
              R"("compact")");
  if (rules.too_long == TooLong::compact && recorded)
    node.fail(R"(a recorded session says itself what its prompts are; use "end" or "drop")");
}

}  // namespace

std::span<const Key> session_keys() {
  static constexpr Form start_at = form::object(start_at_keys);
  static constexpr Key keys[] = {
      {"gap_from", form::choice(gap_from_names),
       unset("end; start where a file has times but no gaps"),
       "gaps count from a turn's end, start, or start without delays"},
      {"idle_cap", form::time, unset("none"), "longer gaps are cut to this"},
      {"tree_idle_cap", form::time, unset("none"),
       "a session without a request under way waits no longer than this"},
      {"reuse_output", form::flag, unset("true; false if recorded"),
       "the next turn can hit the KV cache of a reply"},
      {"shared_prefix", form::integer(0, 1e9), "0",
       "leading tokens that all sessions have in common: the system prompt"},
      {"max_context", form::object(max_context_keys), "{}", "turns that grow too long"},
      {"start_at", form::choice(start_at_names).or_a(start_at), "first_turn",
       "where in its turns each first session of a closed loop begins"}};
  return keys;
}

SessionPlan read_sessions(const ConfigNode& node) {
  return read_object(node.as_policy(), session_keys, [](ConfigReader& reader) {
    const std::shared_ptr<const Sessions> sessions = session_kinds().make_from(reader);
    SessionRules rules;
    using GapFrom = SessionRules::GapFrom;
    const GapFrom usual = sessions->gaps_from_starts() ? GapFrom::start : GapFrom::end;
    const auto from = reader.choice_or("gap_from", gap_from_names, std::size_t(usual));
    rules.gap_from = static_cast<GapFrom>(from);
    if (reader.optional("idle_cap")) rules.idle_cap = reader.quantity<Seconds>("idle_cap");
    if (reader.optional("tree_idle_cap"))
      rules.tree_idle_cap = reader.quantity<Seconds>("tree_idle_cap");
    rules.reuse_output = reader.flag_or("reuse_output", sessions->recorded_turns() == 0);
    rules.shared_prefix = std::max(reader.integer("shared_prefix"), sessions->shared_prefix());
    if (rules.shared_prefix > 0 && sessions->has_ids())
      reader.child("shared_prefix").fail("hash_ids of the file say what sessions share");
    read_max_context(reader, *sessions, rules);
    read_start_at(reader.child("start_at"), rules);
    return SessionPlan{sessions, rules};
  });
}

}  // namespace moesim
