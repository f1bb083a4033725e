// SPDX-License-Identifier: Apache-2.0
// Runs of agents as kv-cache-tester and SemiAnalysis' AgentX corpora have them: Weka's form, as
// [aiperf] describes it (docs/tutorials/weka-trace.md).
#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "hardware/rng.hpp"
#include "traces/sessions/session_file.hpp"

namespace moesim {

namespace {

constexpr int deepest_agents = 8;       // agents that start agents
constexpr double longest_time_s = 4e9;  // any time of a run

[[noreturn]] void refuse_value(std::string_view key, const Json& value, std::string_view expected) {
  throw ConfigError("\"{}\" is {}; expected {}", key, value.dump(), expected);
}

const Json& value_under(const Json& object, std::string_view key) {
  static const Json nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

Seconds time_under(const Json& object, std::string_view key) {
  const Json& value = value_under(object, key);
  if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() >= longest_time_s)
    refuse_value(key, value, "seconds, 0 or more");
  return Seconds(value.get<double>());
}

std::int64_t count_under(const Json& object, std::string_view key) {
  const Json& value = value_under(object, key);
  const double count = value.is_number() ? value.get<double>() : 0;
  if (count != std::floor(count) || count < 1 || count > 1e9)
    refuse_value(key, value, "1 to 1000000000 tokens");
  return static_cast<std::int64_t>(count);
}

bool is_subagent(const Json& entry) { return value_under(entry, "type") == "subagent"; }

const Json& requests_of(const Json& object) {
  const Json& requests = value_under(object, "requests");
  const bool objects = requests.is_array() && std::ranges::all_of(requests, &Json::is_object);
  if (!objects || requests.empty()) throw ConfigError("\"requests\" is not a list of requests");
  return requests;
}

// Reads the agents of a run.
class AgentReader {
 public:
  struct Agent {
    std::vector<NextTurn> turns{};
    Seconds begun{}, ended{};
  };

  AgentReader(const Json& run, std::uint64_t salt, bool relative)
      : block_tokens_(count_under(run, "block_size")),
        salt_(value_under(run, "hash_id_scope") == "local" ? salt : 0),
        relative_(relative) {}

  // Times of these requests count from `from`.
  Agent read(const Json& requests, Seconds from, int depth = 0) {
    if (depth > deepest_agents) throw ConfigError("subagents start subagents {} times over", depth);
    Agent agent;
    std::vector<Agent> started;  // by the last turn
    Seconds last_begun{}, replied{};
    for (const Json& entry : requests) {
      if (is_subagent(entry)) {
        const Seconds inner = relative_ ? from + time_under(entry, "t") : from;
        Agent child = read(requests_of(entry), inner, depth + 1);
        if (agent.turns.empty() || child.turns.empty()) {
          ++left_out_;
        } else {
          started.push_back(std::move(child));
        }
        continue;
      }
      const Seconds begun = from + time_under(entry, "t");
      NextTurn turn = read_turn(entry);
      if (agent.turns.empty()) {
        agent.begun = begun;
      } else {
        if (begun < last_begun)
          throw ConfigError("a request was sent before the one above it; write requests in order");
        NextTurn& before = agent.turns.back();
        turn.kept = kept_of(before, turn);
        const Seconds awaited = start(before, replied, started, begun);
        turn.gap = awaited == replied && entry.contains("think_time")
                       ? time_under(entry, "think_time")
                       : std::max(Seconds{}, begun - awaited);
      }
      last_begun = begun;
      replied = begun + (entry.contains("api_time") ? time_under(entry, "api_time") : Seconds{});
      agent.ended = replied;
      agent.turns.push_back(std::move(turn));
    }
    if (!agent.turns.empty()) start(agent.turns.back(), replied, started, std::nullopt);
    return agent;
  }

  // Agents that start before any turn could have started them, or ask for nothing.
  std::int64_t left_out() const { return left_out_; }

 private:
  // A turn starts these. The next one waited for those that had ended when it was sent. Answers
  // when the last of them had, or the turn's own reply.
  static Seconds start(NextTurn& turn, Seconds replied, std::vector<Agent>& started,
                       std::optional<Seconds> next) {
    Seconds awaited = replied;
    std::vector<ChildAgent> children;
    for (Agent& agent : started) {
      ChildAgent& child = children.emplace_back();
      child.offset = std::max(Seconds{}, agent.begun - replied);
      child.background = !next || agent.ended > *next;
      if (!child.background) awaited = std::max(awaited, agent.ended);
      child.turns = std::ssize(agent.turns);
      child.told = std::move(agent.turns);
    }
    started.clear();
    if (!children.empty()) turn.children = started_agents(std::move(children));
    return awaited;
  }

  NextTurn read_turn(const Json& entry) const {
    NextTurn turn{.prompt_tokens = count_under(entry, "in"),
                  .output_tokens = static_cast<std::int32_t>(count_under(entry, "out"))};
    const Json& ids = value_under(entry, "hash_ids");
    const std::int64_t blocks = (turn.prompt_tokens + block_tokens_ - 1) / block_tokens_;
    if (!ids.is_array() || std::ssize(ids) != blocks ||
        !std::ranges::all_of(ids, &Json::is_number_integer))
      throw ConfigError(
          "\"hash_ids\" are not {} whole numbers, one for each {} tokens "
          "of {}",
          blocks, block_tokens_, turn.prompt_tokens);
    std::unordered_set<std::int64_t> seen;
    std::vector<std::uint64_t> numbers;
    for (const Json& id : ids) {
      if (!seen.insert(id.get<std::int64_t>()).second)
        throw ConfigError(
            "\"hash_ids\" have {} twice in one prompt; an id names all tokens up "
            "to the end of its block",
            id.dump());
      numbers.push_back(salt_ + static_cast<std::uint64_t>(id.get<std::int64_t>()));
    }
    turn.ids = std::make_shared<const PromptIds>(
        ids_of_blocks(turn.prompt_tokens, static_cast<std::int32_t>(block_tokens_), numbers));
    return turn;
  }

  std::int64_t block_tokens_;
  std::uint64_t salt_;  // added to ids: those of a run are local to it
  bool relative_;
  std::int64_t left_out_ = 0;
};

}  // namespace

bool is_agent_run(const Json& object) {
  return object.is_object() && object.contains("requests") && object.contains("block_size");
}

bool counts_from_subagents(const Json& run) {
  return std::ranges::any_of(requests_of(run), [](const Json& entry) {
    if (!is_subagent(entry)) return false;
    const Json& first = requests_of(entry).front();
    return !is_subagent(first) && time_under(first, "t") < time_under(entry, "t");
  });
}

AgentRun read_agent_run(const Json& run, std::uint64_t number, bool from_subagents) {
  AgentReader reader(run, Rng(number, "hash_ids of a run").bits(), from_subagents);
  AgentRun read{.turns = reader.read(requests_of(run), Seconds{}).turns,
                .left_out = reader.left_out(),
                .id_block_tokens = static_cast<std::int32_t>(count_under(run, "block_size"))};
  if (read.turns.empty()) throw ConfigError("\"requests\" hold no request of the main agent");
  return read;
}

}  // namespace moesim
