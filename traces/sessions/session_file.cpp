// SPDX-License-Identifier: Apache-2.0
#include "traces/sessions/session_file.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "hardware/parse_json.hpp"
#include "traces/mapped_file.hpp"
#include "traces/requests/formats.hpp"

namespace moesim {

std::int64_t kept_without_ids(const NextTurn& before, std::int64_t prompt_tokens) {
  const std::int64_t context = before.prompt_tokens + before.output_tokens;
  return prompt_tokens >= context ? context : 0;
}

// Ids tell how much of a prompt is the turn before as far as whole blocks go. Where all of these
// are kept, so is the rest of that prompt, and its reply if the prompt is long enough.
std::int64_t kept_of(const NextTurn& before, const NextTurn& turn) {
  if (!before.ids || !turn.ids) return kept_without_ids(before, turn.prompt_tokens);
  const auto [was, is] = std::ranges::mismatch(before.ids->spans, turn.ids->spans);
  const bool all_whole = std::distance(was, before.ids->spans.end()) <= 1;
  if (all_whole && turn.prompt_tokens >= before.prompt_tokens) {
    const std::int64_t context = before.prompt_tokens + before.output_tokens;
    return turn.prompt_tokens >= context ? context : before.prompt_tokens;
  }
  return is == turn.ids->spans.begin() ? 0 : std::prev(is)->end;
}

namespace {

// Puts the rows of a file together to sessions.
class Assembly {
 public:
  explicit Assembly(RowTokens tokens) : tokens_(tokens) {}
  void add(const RecordedRow& row) {
    // A row that names none is a session by itself.
    std::size_t number = file_.sessions.size();
    if (!row.session.empty()) number = number_of_.try_emplace(row.session, number).first->second;
    if (number == file_.sessions.size()) {
      file_.sessions.push_back(
          {.name = row.session, .of_class = file_.classes.place(row.of_class)});
      between_starts_.emplace_back();
    }
    RecordedSession& session = file_.sessions[number];
    const Request request = request_of(row);
    NextTurn turn{.prompt_tokens = request.prompt_tokens,
                  .output_tokens = request.output_tokens,
                  .ids = request.prompt_ids};
    if (!session.turns.empty()) follow(session.turns.back(), turn);
    wait(number, row);
    between_starts_[number].push_back(row.has_time ? since_last(session, row.time) : Seconds{});
    if (row.gap) turn.gap = *row.gap;
    file_.has_gaps = file_.has_gaps || row.gap;
    file_.has_ids = file_.has_ids || turn.ids;
    file_.id_block_tokens = std::max(file_.id_block_tokens, row.id_block_tokens);
    file_.shared_prefix = std::max(file_.shared_prefix, row.shared_prefix);
    session.turns.push_back(std::move(turn));
  }
  void add_chain(const Json& chain) {
    file_.sessions.push_back({.name = "", .turns = read_chain(chain)});
    file_.has_gaps = true;
  }
  void add_run(const Json& run, bool from_subagents) {
    const Json& id = run.contains("id") ? run["id"] : Json();
    const std::string name = id.is_string() ? id.get<std::string>() : id.dump();
    if (!id.is_null() && !number_of_.try_emplace(name, file_.sessions.size()).second)
      throw ConfigError(one_line(fmt::format("\"id\" {} is that of a line above", id.dump())));
    AgentRun read = read_agent_run(run, file_.sessions.size(), from_subagents);
    if (file_.id_block_tokens != 0 && file_.id_block_tokens != read.id_block_tokens)
      throw ConfigError("\"block_size\" is {}; that of the lines above is {}", read.id_block_tokens,
                        file_.id_block_tokens);
    file_.id_block_tokens = read.id_block_tokens;
    file_.agents_left_out += read.left_out;
    file_.sessions.push_back({.name = name, .turns = std::move(read.turns)});
    file_.has_gaps = file_.has_ids = true;
  }
  SessionFile finish() && {
    if (!file_.has_gaps) take_gaps_from_starts();
    make_children();
    file_.none_continues = later_ > 0 && continuing_ == 0;
    file_.has_starts = std::ranges::all_of(
        file_.sessions, [](const RecordedSession& session) { return session.start.has_value(); });
    if (file_.has_starts) std::ranges::stable_sort(file_.sessions, {}, &RecordedSession::start);
    return std::move(file_);
  }

 private:
  // Says with how much of the turn before a later one begins.
  void follow(const NextTurn& before, NextTurn& turn) {
    const std::int64_t context = before.prompt_tokens + before.output_tokens;
    ++later_;
    continuing_ += turn.ids || turn.prompt_tokens >= context ? 1 : 0;
    if (tokens_ == RowTokens::whole) {
      turn.kept = kept_of(before, turn);
      return;
    }
    if (turn.ids)
      throw ConfigError("has hash_ids, which are of whole prompts; drop \"row_tokens\"");
    constexpr std::int64_t most = 1'000'000'000;
    turn.prompt_tokens += context;
    turn.kept = context;
    if (turn.prompt_tokens > most)
      throw ConfigError("the session of this row has more than {} tokens", most);
  }

  // A turn that others wait for.
  struct Place {
    std::size_t session, turn;
    bool operator==(const Place&) const = default;
  };
  // A session that a turn of another one has started.
  struct Started {
    Place by;
    bool awaited = false;
  };

  // Notes what a row waits for: the first of a session for the turn that starts it. A later one
  // waits for the turn before it and the last turns of what that one has started.
  void wait(std::size_t session, const RecordedRow& row) {
    const std::size_t turn = file_.sessions[session].turns.size();
    for (const std::string& id : row.waits_for) {
      const auto found = place_of_.find(id);
      if (found == place_of_.end())
        throw ConfigError(
            one_line(fmt::format("waits for \"{}\", which is the id of no request above", id)));
      const Place at = found->second;
      if (at.session == session) {
        if (at.turn + 1 != turn)
          throw ConfigError(one_line(fmt::format(
              "waits for \"{}\", which is not the turn above in the same session", id)));
        continue;
      }
      if (turn == 0) {
        if (!started_.try_emplace(session, Started{at}).second)
          throw ConfigError(
              "the first turn of its session waits for several; name the one that starts the "
              "session");
        continue;
      }
      const auto child = started_.find(at.session);
      const bool ends = at.turn + 1 == file_.sessions[at.session].turns.size();
      if (child == started_.end() || child->second.by != Place{session, turn - 1} || !ends)
        throw ConfigError(
            one_line(fmt::format("waits for \"{}\", which is not the last turn of a session that "
                                 "the turn above has started",
                                 id)));
      child->second.awaited = true;
    }
    if (turn > 0) {
      if (const auto self = started_.find(session); self != started_.end() && self->second.awaited)
        throw ConfigError("is a turn of a session for whose last turn another has waited");
    }
    if (!row.id.empty() && !place_of_.try_emplace(row.id, Place{session, turn}).second)
      throw ConfigError(
          one_line(fmt::format("\"request_id\" \"{}\" is that of a line above", row.id)));
    file_.has_gaps = file_.has_gaps || !row.waits_for.empty();
  }

  // Moves sessions that others have started to the turns that did, from the last one: what starts a
  // session stands above it.
  void make_children() {
    if (started_.empty()) return;
    std::vector<RecordedSession> roots;
    std::map<std::pair<std::size_t, std::size_t>, std::vector<ChildAgent>> children;
    for (std::size_t s = file_.sessions.size(); s-- > 0;) {
      RecordedSession& session = file_.sessions[s];
      for (std::size_t turn = 0; turn < session.turns.size(); ++turn) {
        const auto own = children.find({s, turn});
        if (own == children.end()) continue;
        std::ranges::reverse(own->second);
        session.turns[turn].children = started_agents(std::move(own->second));
      }
      const auto started = started_.find(s);
      if (started == started_.end()) {
        roots.push_back(std::move(session));
        continue;
      }
      const Seconds offset = std::exchange(session.turns.front().gap, Seconds{});
      children[{started->second.by.session, started->second.by.turn}].push_back(
          {.offset = offset,
           .background = !started->second.awaited,
           .turns = std::ssize(session.turns),
           .told = std::move(session.turns)});
    }
    std::ranges::reverse(roots);
    file_.sessions = std::move(roots);
  }

  static Seconds since_last(RecordedSession& session, std::chrono::nanoseconds time) {
    if (session.turns.empty()) session.start = time;
    const std::chrono::nanoseconds last = session.last.value_or(time);
    if (time < last)
      throw ConfigError(one_line(fmt::format(
          "session \"{}\": the turn was sent before the one above it; write turns in order",
          session.name)));
    session.last = time;
    return time - last;
  }

  void take_gaps_from_starts() {
    for (std::size_t s = 0; s < file_.sessions.size(); ++s) {
      std::vector<NextTurn>& turns = file_.sessions[s].turns;
      for (std::size_t turn = 0; turn < turns.size(); ++turn)
        turns[turn].gap = between_starts_[s][turn];
    }
  }

  RowTokens tokens_;
  std::int64_t later_ = 0, continuing_ = 0;  // turns of rows behind the first of their session
  SessionFile file_;
  std::unordered_map<std::string, std::size_t> number_of_;
  std::unordered_map<std::string, Place> place_of_;  // by the id of a request
  std::unordered_map<std::size_t, Started> started_;
  std::vector<std::vector<Seconds>> between_starts_;  // [session][turn], of rows
};

const Json& as_run(const Json& line) {
  if (!is_agent_run(line)) throw ConfigError("is no run with \"requests\" and \"block_size\"");
  return line;
}

enum class LinesAre { rows, chains, runs };

// Errors of the line are said where rows are read, with its place.
LinesAre form_of(std::string_view first_line) {
  try {
    const Json object = json_or_text(first_line);
    if (is_chain(object)) return LinesAre::chains;
    return is_agent_run(object) ? LinesAre::runs : LinesAre::rows;
  } catch (const ConfigError&) {
    return LinesAre::rows;
  }
}

}  // namespace

bool is_session_file(const std::filesystem::path& path) {
  const std::string line = first_line(path);
  try {
    return form_of(line) != LinesAre::rows || names_sessions(line);
  } catch (const ConfigError&) {
    return true;  // no row of it can be read, as read_session_file() says
  }
}

SessionFile read_session_file(const std::filesystem::path& path, std::int32_t id_block_tokens,
                              RowTokens tokens) {
  Assembly assembly(tokens);
  const LinesAre form = form_of(first_line(path));
  std::optional<RowReader> reader;
  bool from_subagents = false;
  if (form == LinesAre::runs) {
    for_each_row(path, [&](std::string_view line) {
      if (!from_subagents) from_subagents = counts_from_subagents(as_run(json_or_text(line)));
    });
  }
  for_each_row(path, [&](std::string_view line) {
    if (form == LinesAre::rows && !reader) {
      reader = recognise_session_format(line, id_block_tokens);
      if (reader->first_line_is_header) return;
    }
    if (form == LinesAre::chains) return assembly.add_chain(json_or_text(line));
    if (form == LinesAre::runs) return assembly.add_run(as_run(json_or_text(line)), from_subagents);
    if (const std::optional<RecordedRow> row = reader->read(line)) assembly.add(*row);
  });
  SessionFile file = std::move(assembly).finish();
  if (file.sessions.empty()) throw ConfigError(path.string() + ": holds no request");
  return file;
}

}  // namespace moesim
