// SPDX-License-Identifier: Apache-2.0
#include "traces/sessions/session_file.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "hardware/parse_json.hpp"
#include "traces/mapped_file.hpp"
#include "traces/requests/formats.hpp"
#include "traces/requests/request_trace.hpp"

namespace moesim {

std::int64_t kept_without_ids(const NextTurn& before, std::int64_t prompt_tokens) {
  const std::int64_t context = before.prompt_tokens + before.output_tokens;
  return prompt_tokens >= context ? context : 0;
}

namespace {

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

// Puts the rows of a file together to sessions.
class Assembly {
 public:
  void add(const RecordedRow& row) {
    const auto [found, fresh] = number_of_.try_emplace(row.session, file_.sessions.size());
    if (fresh) {
      file_.sessions.push_back({.name = row.session});
      between_starts_.emplace_back();
    }
    RecordedSession& session = file_.sessions[found->second];
    const Request request = request_of(row);
    NextTurn turn{.prompt_tokens = request.prompt_tokens,
                  .output_tokens = request.output_tokens,
                  .ids = request.prompt_ids};
    if (!session.turns.empty()) turn.kept = kept_of(session.turns.back(), turn);
    between_starts_[found->second].push_back(row.has_time ? since_last(session, row.time)
                                                          : Seconds{});
    if (row.gap) turn.gap = *row.gap;
    file_.has_gaps = file_.has_gaps || row.gap;
    file_.has_ids = file_.has_ids || turn.ids;
    session.turns.push_back(std::move(turn));
  }
  void add_chain(const Json& chain) {
    file_.sessions.push_back({.name = "", .turns = read_chain(chain)});
    file_.has_gaps = true;
  }
  SessionFile finish() && {
    if (!file_.has_gaps) take_gaps_from_starts();
    file_.has_starts = std::ranges::all_of(
        file_.sessions, [](const RecordedSession& session) { return session.start.has_value(); });
    if (file_.has_starts) std::ranges::stable_sort(file_.sessions, {}, &RecordedSession::start);
    return std::move(file_);
  }

 private:
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

  SessionFile file_;
  std::unordered_map<std::string, std::size_t> number_of_;
  std::vector<std::vector<Seconds>> between_starts_;  // [session][turn], of rows
};

}  // namespace

SessionFile read_session_file(const std::filesystem::path& path, std::int32_t id_block_tokens) {
  Assembly assembly;
  std::optional<RowReader> reader;
  bool empty = true, chains = false;
  for_each_line(path, [&](std::size_t number, std::string_view line) {
    try {
      if (std::exchange(empty, false)) {
        chains = is_chain(json_or_text(line));
        if (!chains) reader = recognise_session_format(line, id_block_tokens);
        if (reader && reader->first_line_is_header) return;
      }
      if (chains) return assembly.add_chain(json_or_text(line));
      if (const std::optional<RecordedRow> row = reader->read(line)) assembly.add(*row);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}:{}: {}", path.string(), number, error.what()));
    }
  });
  SessionFile file = std::move(assembly).finish();
  if (file.sessions.empty()) throw ConfigError(path.string() + ": holds no request");
  return file;
}

}  // namespace moesim
