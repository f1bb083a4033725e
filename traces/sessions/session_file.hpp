// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

/// A session that was recorded somewhere.
struct RecordedSession {
  std::string name;
  std::vector<NextTurn> turns{};                    ///< the first one too; never empty
  std::optional<std::chrono::nanoseconds> start{};  ///< when the first turn was sent
  std::optional<std::chrono::nanoseconds> last{};   ///< when the last one was
};

struct SessionFile {
  std::vector<RecordedSession> sessions;  ///< in order of their first turns; never empty
  bool has_starts = false;                ///< every session says when it starts
  bool has_gaps = false;                  ///< gaps were recorded, from the ends of turns
  bool has_ids = false;                   ///< names of tokens were recorded
};

/// Reads sessions. The form is recognised by the first line: a request trace whose rows say to
/// which session they belong (recognise_session_format()), or a chain in each line (read_chain()).
/// Throws ConfigError with the line number at a row that is malformed, or sent before the turn
/// above it.
SessionFile read_session_file(const std::filesystem::path&, std::int32_t id_block_tokens);

/// Whether an object is a session in one of these forms:
///   inference-lab        steps: input, new, output, gap (s)
///   LLMServingSim        sub_requests: input_toks, output_toks, tool_duration_ns
///   Applied Compute      num_turns, input_prompt_length, assistant_response_length,
///                        tool_call_output_length, tool_call_latency (s),
///                        final_assistant_response_length
bool is_chain(const Json&);
/// Its turns. Throws ConfigError, without a place.
std::vector<NextTurn> read_chain(const Json&);

/// Of a prompt without ids: with how much of the turn before and its reply it begins. All of them,
/// if it is long enough; else it is taken for a new beginning.
std::int64_t kept_without_ids(const NextTurn& before, std::int64_t prompt_tokens);

}  // namespace moesim
