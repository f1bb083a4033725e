// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "traces/mapped_file.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/formats.hpp"
#include "traces/requests/request_trace.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

using std::chrono::nanoseconds;

std::span<const Key> keys_of_file() {
  static constexpr Key keys[] = {
      {"file", form::file, required,
       "requests with a column session_id, the turns of a session in order"},
      {"id_block", form::integer(1, 1 << 20), "512", "tokens that one of the hash_ids covers"}};
  return keys;
}

// A session of a file.
struct RecordedSession {
  std::string name;
  std::vector<NextTurn> turns{};
  std::optional<nanoseconds> start{};
  std::optional<nanoseconds> last{};  // when the last turn was sent
};

// How much of a prompt is the turn before and its reply. Ids tell as far as whole blocks go: where
// all whole blocks of the turn before are kept, so is the rest of its prompt, and its reply if the
// prompt is long enough.
std::int64_t kept_of(const NextTurn& before, const NextTurn& turn) {
  const std::int64_t context = before.prompt_tokens + before.output_tokens;
  if (!before.ids || !turn.ids) return turn.prompt_tokens >= context ? context : 0;
  const auto [was, is] = std::ranges::mismatch(before.ids->spans, turn.ids->spans);
  const bool all_whole = std::distance(was, before.ids->spans.end()) <= 1;
  if (all_whole && turn.prompt_tokens >= before.prompt_tokens)
    return turn.prompt_tokens >= context ? context : before.prompt_tokens;
  return is == turn.ids->spans.begin() ? 0 : std::prev(is)->end;
}

// The sessions of a file, in order of their first turns.
class SessionFile {
 public:
  SessionFile(const std::filesystem::path& file, std::int32_t id_block_tokens) {
    std::optional<RowReader> reader;
    for_each_line(file, [&](std::size_t number, std::string_view line) {
      try {
        if (!reader) {
          reader = recognise_session_format(line, id_block_tokens);
          if (reader->first_line_is_header) return;
        }
        if (const std::optional<RecordedRow> row = reader->read(line)) add(*row);
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("{}:{}: {}", file.string(), number, error.what()));
      }
    });
    if (sessions.empty()) throw ConfigError(file.string() + ": holds no request");
    const auto starts = [](const RecordedSession& session) { return session.start.has_value(); };
    has_starts = std::ranges::all_of(sessions, starts);
    if (has_starts) std::ranges::stable_sort(sessions, {}, &RecordedSession::start);
  }

  std::vector<RecordedSession> sessions;
  bool has_starts = false;  // every session says when it starts
  bool has_gaps = false;    // some turn says how long its client paused
  bool has_ids = false;

 private:
  void add(const RecordedRow& row) {
    const auto [found, fresh] = number_of_.try_emplace(row.session, sessions.size());
    if (fresh) sessions.push_back({.name = row.session});
    RecordedSession& session = sessions[found->second];
    const Request request = request_of(row);
    NextTurn turn{.prompt_tokens = request.prompt_tokens,
                  .output_tokens = request.output_tokens,
                  .ids = request.prompt_ids};
    if (!session.turns.empty()) turn.kept = kept_of(session.turns.back(), turn);
    if (row.has_time) {
      if (session.last && row.time < *session.last)
        throw ConfigError(fmt::format(
            "session \"{}\": the turn was sent before the one above it; write turns in order",
            session.name));
      if (session.last) turn.gap = row.time - *session.last;
      session.last = row.time;
      if (session.turns.empty()) session.start = row.time;
    }
    if (row.gap) turn.gap = *row.gap;
    has_gaps = has_gaps || row.gap;
    has_ids = has_ids || turn.ids;
    session.turns.push_back(std::move(turn));
  }

  std::unordered_map<std::string, std::size_t> number_of_;
};

// The sessions of a file in turn; past the last from the first again, as sessions of others.
class RecordedSessions final : public Sessions {
 public:
  explicit RecordedSessions(ConfigReader& options)
      : file_(options.path("file"), static_cast<std::int32_t>(options.integer("id_block"))) {}

  Request request(std::int64_t index, Rng&) const override {
    const NextTurn first = replayed(index, 0);
    return {static_cast<std::int32_t>(first.prompt_tokens), first.output_tokens, first.ids};
  }
  std::int64_t turns(std::int64_t session, Rng&) const override {
    return std::ssize(of(session).turns);
  }
  NextTurn turn(std::int64_t session, std::int64_t turn, std::int64_t context,
                Rng&) const override {
    NextTurn replay = replayed(session, turn);
    replay.kept = std::min(replay.kept, context);
    return replay;
  }
  std::shared_ptr<const Arrivals> recorded_starts() const override {
    if (!file_.has_starts) return nullptr;
    std::vector<TimedRequest> starts;
    const nanoseconds first = *file_.sessions.front().start;
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
        [](const RecordedSession& session) { return std::ssize(session.turns); });
  }
  bool has_ids() const override { return file_.has_ids; }
  bool gaps_from_starts() const override { return file_.has_starts && !file_.has_gaps; }

 private:
  const RecordedSession& of(std::int64_t session) const {
    return file_.sessions[static_cast<std::size_t>(session) % file_.sessions.size()];
  }
  NextTurn replayed(std::int64_t session, std::int64_t turn) const {
    NextTurn replay = of(session).turns[static_cast<std::size_t>(turn)];
    const auto round = static_cast<std::uint64_t>(session) / file_.sessions.size();
    if (round == 0 || !replay.ids) return replay;
    PromptIds other = *replay.ids;
    for (PromptIds::Span& span : other.spans)
      span.id = Rng(span.id, fmt::format("round {}", round)).bits();
    replay.ids = std::make_shared<const PromptIds>(std::move(other));
    return replay;
  }

  SessionFile file_;
};

}  // namespace

std::span<const Key> recorded_session_keys() { return keys_of_file(); }

std::unique_ptr<Sessions> make_recorded_sessions(ConfigReader& options) {
  return std::make_unique<RecordedSessions>(options);
}

}  // namespace moesim
