// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/requests/arrivals.hpp"
#include "traces/sessions/session_file.hpp"

namespace moesim {

namespace {

// In the order of RowTokens.
constexpr std::array<std::string_view, 2> row_tokens_names{"whole", "added"};

std::span<const Key> keys_of_file() {
  static constexpr Key keys[] = {
      {"file", form::file, required,
       "a request trace with a column session_id, or a session in each line"},
      {"id_block", form::integer(1, 1 << 20), "512", "tokens that one of the hash_ids covers"},
      {"row_tokens", form::choice(row_tokens_names), unset("whole"),
       "a row's prompt: all of it, or what the turn adds (AIPerf)"}};
  return keys;
}

RowTokens read_row_tokens(ConfigReader& options) {
  return options.optional("row_tokens") ? static_cast<RowTokens>(options.choice("row_tokens"))
                                        : RowTokens::whole;
}

// The sessions of a file in turn; past the last from the first again, as sessions of others.
class RecordedSessions final : public Sessions {
 public:
  explicit RecordedSessions(ConfigReader& options)
      : file_(read_session_file(options.path("file"),
                                static_cast<std::int32_t>(options.integer("id_block")),
                                read_row_tokens(options))) {
    if (file_.none_continues && !options.has("row_tokens"))
      options.child("file").fail(
          "no later prompt is as long as the previous turn and its reply; give \"row_tokens\": "
          "\"added\" if rows have what a turn adds (AIPerf), else \"whole\"");
  }

  Request request(std::int64_t index, Rng&) const override {
    const NextTurn first = replayed(index, 0);
    return {.prompt_tokens = static_cast<std::int32_t>(first.prompt_tokens),
            .output_tokens = first.output_tokens,
            .prompt_ids = first.ids,
            .recorded_class = of(index).of_class};
  }
  std::span<const std::string> classes() const override { return file_.classes.names(); }
  std::int64_t turns(std::int64_t session, Rng&) const override {
    return std::ssize(of(session).turns);
  }
  NextTurn turn(std::int64_t session, std::int64_t turn, std::int64_t context,
                Rng&) const override {
    NextTurn replay = replayed(session, turn);
    replay.kept = std::min(replay.kept, context);
    return replay;
  }
  ChildAgents first_children(std::int64_t session, Rng&) const override {
    return replayed(session, 0).children;
  }
  NextTurn turn_of(std::int64_t session, const ChildAgent& agent, std::int64_t turn, std::int64_t,
                   Rng&) const override {
    return as_of(session, agent.told[at(turn)]);
  }
  std::shared_ptr<const Arrivals> recorded_starts() const override {
    if (!file_.has_starts) return nullptr;
    std::vector<TimedRequest> starts;
    const std::chrono::nanoseconds first = *file_.sessions.front().start;
    for (const RecordedSession& session : file_.sessions) {
      const Seconds after = *session.start - first;
      if (after > last_arrival)
        throw ConfigError(
            "workload/sessions: recorded sessions start for longer than the 60 days "
            "that can be simulated; give \"arrivals\"");
      starts.push_back({Time(to_duration(after)), {1, 1}});
    }
    return recorded_arrivals(std::move(starts));
  }
  std::int64_t recorded_turns() const override {
    return std::transform_reduce(
        file_.sessions.begin(), file_.sessions.end(), std::int64_t{0}, std::plus(),
        [](const RecordedSession& session) { return count_turns(session.turns); });
  }
  bool has_ids() const override { return file_.has_ids; }
  std::int64_t shared_prefix() const override { return file_.shared_prefix; }
  bool gaps_from_starts() const override { return file_.has_starts && !file_.has_gaps; }

 private:
  const RecordedSession& of(std::int64_t session) const {
    return file_.sessions[at(session) % file_.sessions.size()];
  }
  NextTurn replayed(std::int64_t session, std::int64_t turn) const {
    return as_of(session, of(session).turns[at(turn)]);
  }
  // The turn as the session says it: in a later round with tokens of its own.
  NextTurn as_of(std::int64_t session, NextTurn turn) const {
    const auto round = static_cast<std::uint64_t>(session) / file_.sessions.size();
    if (round > 0 && turn.ids) turn.ids = ids_of_others(*turn.ids, round);
    return turn;
  }

  SessionFile file_;
};

}  // namespace

std::span<const Key> recorded_session_keys() { return keys_of_file(); }

std::unique_ptr<Sessions> make_recorded_sessions(ConfigReader& options) {
  return std::make_unique<RecordedSessions>(options);
}

}  // namespace moesim
