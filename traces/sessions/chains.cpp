// SPDX-License-Identifier: Apache-2.0
// Sessions that stand in one JSON object each, as other simulators and benchmarks write them:
// github.com/doublewordai/inference-lab, github.com/casys-kaist/LLMServingSim, and the TRIE of
// Applied Compute (github.com/ai-dynamo/dynamo, dynosim).
#include <algorithm>
#include <cmath>
#include <string_view>

#include "traces/sessions/session_file.hpp"

namespace moesim {

namespace {

double number_of(const Json& value, std::string_view key) {
  if (!value.is_number()) throw ConfigError("has no number \"{}\"", key);
  return value.get<double>();
}

std::int64_t tokens_of(const Json& value, std::string_view key) {
  const double tokens = number_of(value, key);
  if (tokens != std::floor(tokens) || tokens < 1 || tokens > 1e9)
    throw ConfigError("\"{}\" is {}; expected 1 to 1000000000 tokens", key, value.dump());
  return static_cast<std::int64_t>(tokens);
}

const Json& member(const Json& object, std::string_view key) {
  static const Json nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}
std::int64_t tokens_under(const Json& object, std::string_view key) {
  return tokens_of(member(object, key), key);
}

const Json& list_under(const Json& object, std::string_view key, std::size_t size) {
  const Json& list = member(object, key);
  if (!list.is_array() || list.size() != size)
    throw ConfigError("\"{}\" is not a list of {}", key, size);
  return list;
}

// Tools that run at the same time may end before they begin: no gap.
Seconds gap_of(const Json& value, std::string_view key, double per_second) {
  const double gap = std::max(0.0, number_of(value, key) / per_second);
  if (!(gap < 4e9)) throw ConfigError("\"{}\" is {}; expected a time", key, value.dump());
  return Seconds(gap);
}

void add_turn(std::vector<NextTurn>& turns, std::int64_t prompt, std::int64_t output, Seconds gap) {
  const std::int64_t kept = turns.empty() ? 0 : kept_without_ids(turns.back(), prompt);
  turns.push_back({.gap = turns.empty() ? Seconds{} : gap,
                   .kept = kept,
                   .prompt_tokens = prompt,
                   .output_tokens = static_cast<std::int32_t>(output)});
}

std::vector<NextTurn> read_steps(const Json& steps) {
  std::vector<NextTurn> turns;
  for (const Json& step : steps) {
    const std::int64_t prompt = tokens_under(step, "input");
    const std::int64_t output = tokens_under(step, "output");
    const Json& gap = member(step, "gap");
    add_turn(turns, prompt, output, gap.is_null() ? Seconds{} : gap_of(gap, "gap", 1));
    // "new" is what does not come from the turn before.
    if (turns.size() == 1 || member(step, "new").is_null()) continue;
    const NextTurn& before = turns[turns.size() - 2];
    const auto fresh =
        std::min<std::int64_t>(tokens_under(step, "new"), turns.back().prompt_tokens);
    turns.back().kept =
        std::min(turns.back().prompt_tokens - fresh, before.prompt_tokens + before.output_tokens);
  }
  return turns;
}

std::vector<NextTurn> read_sub_requests(const Json& requests) {
  std::vector<NextTurn> turns;
  Seconds tool{};
  for (const Json& request : requests) {
    const std::int64_t prompt = tokens_under(request, "input_toks");
    add_turn(turns, prompt, tokens_under(request, "output_toks"), tool);
    const Json& duration = member(request, "tool_duration_ns");
    tool = duration.is_null() ? Seconds{} : gap_of(duration, "tool_duration_ns", 1e9);
  }
  return turns;
}

// num_turns + 1 requests: each but the last calls a tool, whose output the next one begins with.
std::vector<NextTurn> read_tool_calls(const Json& session) {
  const double turns_said = number_of(member(session, "num_turns"), "num_turns");
  const std::size_t calls = member(session, "assistant_response_length").size();
  if (turns_said != double(calls))
    throw ConfigError("\"num_turns\" is {}, but there are {} replies",
                      member(session, "num_turns").dump(), calls);
  const Json& replies = list_under(session, "assistant_response_length", calls);
  const Json& outputs = list_under(session, "tool_call_output_length", calls);
  const Json& latencies = list_under(session, "tool_call_latency", calls);
  std::vector<NextTurn> turns;
  std::int64_t prompt = tokens_under(session, "input_prompt_length");
  Seconds gap{};
  for (std::size_t call = 0; call < calls; ++call) {
    const std::int64_t reply = tokens_of(replies[call], "assistant_response_length");
    add_turn(turns, prompt, reply, gap);
    prompt += reply + tokens_of(outputs[call], "tool_call_output_length");
    gap = gap_of(latencies[call], "tool_call_latency", 1);
  }
  add_turn(turns, prompt, tokens_under(session, "final_assistant_response_length"), gap);
  return turns;
}

}  // namespace

bool is_chain(const Json& object) {
  return object.is_object() &&
         (object.contains("steps") || object.contains("sub_requests") ||
          (object.contains("num_turns") && object.contains("tool_call_latency")));
}

std::vector<NextTurn> read_chain(const Json& object) {
  if (!is_chain(object))
    throw ConfigError("is no session with \"steps\", \"sub_requests\" or \"tool_call_latency\"");
  for (const std::string_view list : {"steps", "sub_requests"}) {
    const Json& requests = member(object, list);
    if (requests.is_null()) continue;
    if (!requests.is_array() || requests.empty())
      throw ConfigError("\"{}\" is not a list of requests", list);
    return list == "steps" ? read_steps(requests) : read_sub_requests(requests);
  }
  return read_tool_calls(object);
}

}  // namespace moesim
