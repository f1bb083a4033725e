// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "traces/requests/request_trace.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

/// A session that was recorded somewhere.
struct RecordedSession {
  std::string name;
  std::vector<NextTurn> turns{};                    ///< the first one too; never empty
  std::optional<std::chrono::nanoseconds> start{};  ///< when the first turn was sent
  std::optional<std::chrono::nanoseconds> last{};   ///< when the last one was
  std::uint32_t of_class = 0;                       ///< of its first row: Request::recorded_class
};

struct SessionFile {
  std::vector<RecordedSession> sessions;  ///< in order of their first turns; never empty
  bool has_starts = false;                ///< every session says when it starts
  bool has_gaps = false;                  ///< gaps were recorded, from the ends of turns
  bool has_ids = false;                   ///< names of tokens were recorded
  std::int32_t id_block_tokens = 0;       ///< that one of them covers
  std::int64_t agents_left_out = 0;       ///< see read_agent_run()
  std::int64_t shared_prefix = 0;         ///< SessionRules::shared_prefix
  RecordedClasses classes{};              ///< named by the rows of a request trace
  /// There are later rows, and no prompt of theirs holds the turn before and its reply.
  bool none_continues = false;
};

/// Prompt tokens of a row: of the whole prompt (Dynamo, Bailian), or of what the turn adds to all
/// that was said before (AIPerf, Dynamo's mooncake-delta).
enum class RowTokens { whole, added };

/// Reads sessions. The form is recognised by the first line. It is a request trace whose rows say
/// to which session they belong (recognise_session_format()), or in each line a chain
/// (read_chain()) or a run of agents (read_agent_run()). Throws ConfigError with the line number at
/// a row that is malformed, or sent before the turn above it.
SessionFile read_session_file(const std::filesystem::path&, std::int32_t id_block_tokens,
                              RowTokens = RowTokens::whole);

/// True if the first line of a file says that it holds sessions in one of these forms; else its
/// lines may be single requests. Throws ConfigError if it cannot be read.
bool is_session_file(const std::filesystem::path&);

/// True if an object is a session in one of these forms:
///   inference-lab        steps: input, new, output, gap (s)
///   LLMServingSim        sub_requests: input_toks, output_toks, tool_duration_ns
///   Applied Compute      num_turns, input_prompt_length, assistant_response_length,
///                        tool_call_output_length, tool_call_latency (s),
///                        final_assistant_response_length
bool is_chain(const Json&);
/// Its turns. Throws ConfigError, without a place.
std::vector<NextTurn> read_chain(const Json&);

/// A run of agents in Weka's form, which SemiAnalysis' AgentX plays.
struct AgentRun {
  std::vector<NextTurn> turns;  ///< of the main agent, never empty
  /// Subagents that are listed before the first turn of their parent, or ask for nothing: nothing
  /// can have started them.
  std::int64_t left_out = 0;
  std::int32_t id_block_tokens = 0;
};
bool is_agent_run(const Json&);
/// True if the times of subagents' requests count from the start of the subagent. A request that
/// would come before it shows that. Else they count from the start of the run, in all of a file.
bool counts_from_subagents(const Json& run);
/// A subagent is started by the turn above it. The turn below waits for it if it had ended by then,
/// as recorded; else it runs in the background. Pauses are "think_time", or after subagents what
/// lies between the last end and "t". Ids of "local" scope are like none of another `number`.
/// Requests of agents that lie flat among those of their parent are read as the parent's. Throws
/// ConfigError, without a place.
AgentRun read_agent_run(const Json& run, std::uint64_t number, bool from_subagents);

/// With how much of the turn before and its reply a turn begins, by their ids where both have some.
std::int64_t kept_of(const NextTurn& before, const NextTurn& turn);
/// Number of tokens of the turn before and its reply that a prompt without ids begins with. It has
/// all of them, if it is long enough; else it is taken for a new beginning.
std::int64_t kept_without_ids(const NextTurn& before, std::int64_t prompt_tokens);

}  // namespace moesim
