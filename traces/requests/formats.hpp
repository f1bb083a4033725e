// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

/// A row of a request trace as it is in the file.
struct RecordedRow {
  std::chrono::nanoseconds time{};  ///< since whatever moment the file counts from
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int32_t id_block_tokens = 0;               ///< tokens that a prompt id covers; 0 = no ids
  std::vector<std::uint64_t> prompt_ids{};        ///< see PromptIds
  std::string session{};                          ///< where rows are turns
  std::int64_t shared_prefix = 0;                 ///< tokens with which all sessions begin alike
  std::string of_class{};                         ///< "": the row does not say
  bool has_time = true;                           ///< of a turn that may have none
  std::optional<std::chrono::nanoseconds> gap{};  ///< since the end of what it waits for
  std::string id{};                               ///< of a turn that others may wait for
  std::vector<std::string> waits_for{};           ///< ids; none: the turn before
};

/// Calls fn(row) for the rows of a file, a line each; in a CSV file a field in quotes goes on over
/// line ends. Its errors are said of the line in which the row begins. Throws ConfigError.
void for_each_row(const std::filesystem::path&, const std::function<void(std::string_view)>& fn);

/// Reads the rows of one file. nullopt is a row to leave out. Throws ConfigError, without a place,
/// at a malformed row.
struct RowReader {
  std::function<std::optional<RecordedRow>(std::string_view line)> read;
  bool first_line_is_header = false;
  bool has_arrivals = false;
};

/// Finds the reader of the format that a file's first line belongs to. It is the first in the table
/// whose columns the line names all, as the header of a CSV file or the keys of a JSON object. A
/// column "class" may name the class of each row. Throws ConfigError, without a place, naming the
/// formats there are.
RowReader recognise_format(std::string_view first_line);

/// The same of a file whose rows are turns of sessions: a column "session_id", "session" or
/// "Session ID" says of which. A row may have no time, and a gap to the turn before ("delay" or
/// "delay_ms", in ms; "gap_s"). JSON lines may say what a row waits for ("request_id", "wait_for",
/// "tool_wait_ms" beside the delay). A prompt id covers so many tokens. In Bailian's form
/// ("chat_id", "parent_chat_id") chats that continue each other are a session, its ids cover 16
/// tokens.
RowReader recognise_session_format(std::string_view first_line, std::int32_t id_block_tokens);

/// True if the first line names a column that says to which session a row belongs.
bool names_sessions(std::string_view first_line);

}  // namespace moesim
