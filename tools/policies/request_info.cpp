// SPDX-License-Identifier: Apache-2.0
#include "tools/policies/request_info.hpp"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/report/statistics.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "traces/requests/request_trace.hpp"
#include "traces/requests/reuse.hpp"
#include "traces/sessions/session_file.hpp"

namespace moesim {

namespace {

using Prompts = std::vector<std::shared_ptr<const PromptIds>>;

OrderedJson to_json(const Summary& of) {
  return {{"mean", of.mean}, {"p50", of.p50}, {"p90", of.p90}, {"p99", of.p99}, {"max", of.max}};
}

// From 64 Ki tokens on, fourfold, until everything fits.
OrderedJson reuse_json(const Prompts& prompts, std::int32_t block_tokens) {
  const ReuseCurve curve = reuse_curve(prompts);
  const auto share = [&](std::int64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(curve.queried_tokens);
  };
  OrderedJson json{{"block_tokens", block_tokens},
                   {"prompt_tokens", curve.queried_tokens},
                   {"distinct_blocks", curve.distinct_blocks},
                   {"ideal_hit_rate", share(curve.ideal())}};
  json["lru"] = OrderedJson::array();
  for (std::int64_t tokens = 1 << 16;; tokens *= 4) {
    const std::int64_t blocks = std::max<std::int64_t>(1, tokens / block_tokens);
    json["lru"].push_back({{"capacity_tokens", tokens},
                           {"hit_rate", share(curve.hits(blocks))},
                           {"most_hit_rate", share(most_hits(prompts, blocks))}});
    if (blocks >= curve.distinct_blocks) return json;
  }
}

// Tokens of a block: of the first prompt of several; the longest prompt's if none has several.
std::int32_t block_of(const Prompts& prompts) {
  std::int64_t longest = 0;
  for (const auto& prompt : prompts) {
    if (prompt->spans.size() > 1) return static_cast<std::int32_t>(prompt->spans.front().end);
    longest = std::max(longest, prompt->tokens());
  }
  return static_cast<std::int32_t>(longest);
}

OrderedJson requests_json(const RequestTrace& trace) {
  std::vector<double> prompts, outputs;
  Prompts named;
  for (const RequestTrace::Row& row : trace.rows) {
    prompts.push_back(row.request.prompt_tokens);
    outputs.push_back(row.request.output_tokens);
    if (row.request.prompt_ids) named.push_back(row.request.prompt_ids);
  }
  OrderedJson json{{"requests", trace.rows.size()}};
  if (trace.has_arrivals) json["seconds"] = Seconds(trace.rows.back().arrival).count();
  json["prompt_tokens"] = to_json(summarize(prompts));
  json["output_tokens"] = to_json(summarize(outputs));
  json["requests_with_hash_ids"] = named.size();
  if (named.size() == trace.rows.size()) json["reuse"] = reuse_json(named, block_of(named));
  return json;
}

// Names the prompts of a session that has no ids: so much as is kept of the prompt before keeps its
// whole blocks. A reply is computed again as a part of the next prompt.
class UnnamedSession {
 public:
  explicit UnnamedSession(std::int32_t block_tokens) : block_tokens_(block_tokens) {}
  std::shared_ptr<const PromptIds> next(const NextTurn& turn, std::uint64_t& fresh) {
    const std::int64_t kept = std::min(turn.kept, prompt_tokens_) / block_tokens_;
    prompt_tokens_ = turn.prompt_tokens;
    ids_.resize(at(kept));
    while (std::ssize(ids_) * block_tokens_ < prompt_tokens_) ids_.push_back(fresh++);
    return std::make_shared<const PromptIds>(ids_of_blocks(prompt_tokens_, block_tokens_, ids_));
  }

 private:
  std::int32_t block_tokens_;
  std::int64_t prompt_tokens_ = 0;
  std::vector<std::uint64_t> ids_;
};

// An agent of a session, with when its first turn is sent if replies take no time.
struct Agent {
  std::span<const NextTurn> turns;
  Seconds begun;
};

// An agent stands before those that it starts, these in the order of the turns that start them.
void add_agents(Agent main, std::vector<Agent>& agents) {
  std::vector<Agent> left{main};
  while (!left.empty()) {
    const Agent agent = left.back();
    left.pop_back();
    agents.push_back(agent);
    const auto first = std::ssize(left);
    Seconds begun = agent.begun;
    for (const NextTurn& turn : agent.turns) {
      begun += turn.gap;
      if (!turn.children) continue;
      for (const ChildAgent& child : *turn.children)
        left.push_back({child.told, begun + child.offset});
    }
    std::reverse(left.begin() + first, left.end());
  }
}

std::vector<Agent> agents_of(const SessionFile& file) {
  std::vector<Agent> agents;
  for (const RecordedSession& session : file.sessions)
    add_agents({session.turns, file.has_starts ? Seconds(*session.start) : Seconds{}}, agents);
  return agents;
}

// Blocks of a file whose prompts are as long as this are too many to look at one by one. A file
// that lists ids has a line's worth of bytes for each.
std::string too_many_blocks(std::span<const Agent> agents, std::int64_t block_tokens,
                            std::uintmax_t file_bytes) {
  constexpr std::uintmax_t always = 1 << 22;
  std::uintmax_t blocks = 0;
  for (const Agent& agent : agents) {
    for (const NextTurn& turn : agent.turns)
      blocks += static_cast<std::uintmax_t>((turn.prompt_tokens + block_tokens - 1) / block_tokens);
  }
  const std::uintmax_t most = std::max(always, file_bytes);
  if (blocks <= most) return "";
  return fmt::format(
      "prompts have {} blocks of {} tokens, and reuse is counted of at most {} in a file of this "
      "size; give a larger --id-block",
      blocks, block_tokens, most);
}

// The prompts of all agents, in the order in which they are sent if replies take no time.
Prompts in_order(std::span<const Agent> agents, bool named, std::int32_t block_tokens) {
  std::vector<std::tuple<Seconds, std::size_t, std::size_t>> order;  // time, agent, turn
  for (std::size_t a = 0; a < agents.size(); ++a) {
    Seconds at = agents[a].begun;
    for (std::size_t turn = 0; turn < agents[a].turns.size(); ++turn) {
      at += agents[a].turns[turn].gap;
      order.emplace_back(at, a, turn);
    }
  }
  std::ranges::sort(order);
  std::vector<UnnamedSession> unnamed(agents.size(), UnnamedSession(block_tokens));
  std::uint64_t fresh = 0;
  Prompts prompts;
  for (const auto& [at, a, number] : order) {
    const NextTurn& turn = agents[a].turns[number];
    prompts.push_back(named ? turn.ids : unnamed[a].next(turn, fresh));
  }
  return prompts;
}

OrderedJson sessions_json(const SessionFile& file, std::int32_t id_block,
                          std::uintmax_t file_bytes) {
  std::vector<double> turns, first, last, prompts, grown, outputs, gaps;
  bool all_named = true;
  const std::vector<Agent> agents = agents_of(file);
  for (const Agent& agent : agents) {
    turns.push_back(static_cast<double>(agent.turns.size()));
    first.push_back(static_cast<double>(agent.turns.front().prompt_tokens));
    last.push_back(static_cast<double>(agent.turns.back().prompt_tokens));
    for (std::size_t i = 0; i < agent.turns.size(); ++i) {
      const NextTurn& turn = agent.turns[i];
      prompts.push_back(static_cast<double>(turn.prompt_tokens));
      outputs.push_back(turn.output_tokens);
      all_named = all_named && turn.ids;
      if (i == 0) continue;
      grown.push_back(static_cast<double>(turn.prompt_tokens - turn.kept));
      gaps.push_back(turn.gap.count());
    }
  }
  OrderedJson json{{"sessions", file.sessions.size()},
                   {"agents", agents.size()},
                   {"agents_left_out", file.agents_left_out},
                   {"requests", prompts.size()},
                   {"gaps_from", file.has_starts && !file.has_gaps ? "start" : "end"}};
  if (file.none_continues) json["none_continues"] = true;
  json["turns"] = to_json(summarize(turns));
  json["first_prompt_tokens"] = to_json(summarize(first));
  json["last_prompt_tokens"] = to_json(summarize(last));
  json["prompt_tokens"] = to_json(summarize(prompts));
  json["new_tokens"] = to_json(summarize(grown));
  json["output_tokens"] = to_json(summarize(outputs));
  json["gap_s"] = to_json(summarize(gaps));
  if (all_named == file.has_ids) {
    const std::int32_t block = file.has_ids ? file.id_block_tokens : id_block;
    const std::string refused = file.has_ids ? "" : too_many_blocks(agents, block, file_bytes);
    if (refused.empty()) {
      json["reuse"] = reuse_json(in_order(agents, file.has_ids, block), block);
    } else {
      json["no_reuse"] = refused;
    }
  }
  return json;
}

}  // namespace

OrderedJson request_info(const std::filesystem::path& file, std::int32_t id_block) {
  if (is_session_file(file))
    return sessions_json(read_session_file(file, id_block), id_block,
                         std::filesystem::file_size(file));
  return requests_json(read_request_trace(file));
}

std::string request_info_text(const OrderedJson& info) {
  std::string text;
  if (info.contains("sessions"))
    text =
        fmt::format("{} sessions of {} agents and {} requests; gaps are from the {} of a turn\n\n",
                    info["sessions"].get<std::int64_t>(), info["agents"].get<std::int64_t>(),
                    info["requests"].get<std::int64_t>(), info["gaps_from"].get<std::string>());
  else if (info.contains("seconds"))
    text = fmt::format("{} requests in {} s\n\n", info["requests"].get<std::int64_t>(),
                       number_text(info["seconds"].get<double>()));
  else
    text = fmt::format("{} requests\n\n", info["requests"].get<std::int64_t>());
  if (info.value("agents_left_out", 0) > 0)
    text += fmt::format("{} agents are left out: no turn above them can have started them\n\n",
                        info["agents_left_out"].get<std::int64_t>());
  if (info.value("none_continues", false))
    text +=
        "no later prompt is as long as the previous turn and its reply; experiments must say "
        "\"row_tokens\"\n\n";
  constexpr std::pair<std::string_view, std::string_view> rows[] = {
      {"turns", "turns of an agent"},
      {"first_prompt_tokens", "tokens of the first prompt"},
      {"last_prompt_tokens", "tokens of the last prompt"},
      {"prompt_tokens", "tokens of a prompt"},
      {"new_tokens", "tokens that a later turn adds"},
      {"output_tokens", "tokens of a reply"},
      {"gap_s", "gap, s"}};
  Table lengths({"", "mean", "p50", "p90", "p99", "max"});
  for (const auto& [key, words] : rows) {
    if (!info.contains(key)) continue;
    std::vector<std::string> row{std::string(words)};
    for (const char* figure : {"mean", "p50", "p90", "p99", "max"})
      row.push_back(number_text(info[key][figure].get<double>()));
    lengths.add(row);
  }
  text += lengths.text() + "\n";
  if (info.contains("no_reuse"))
    return text + paragraph("Reuse is not told: " + info["no_reuse"].get<std::string>());
  if (const auto some = info.value("requests_with_hash_ids", std::int64_t{0});
      some > 0 && !info.contains("reuse"))
    return text + fmt::format(
                      "{} of {} requests have hash_ids: what prompts have in common is not said of "
                      "the others.\n",
                      some, info["requests"].get<std::int64_t>());
  if (!info.contains("reuse"))
    return text + "No hash_ids: the file does not say which prompts begin with the same tokens.\n";
  const OrderedJson& reuse = info["reuse"];
  Table curve({"cache without a clock, least recent block first", "prompt tokens hit, %",
               "knowing what comes"});
  for (const OrderedJson& point : reuse["lru"])
    curve.add({fmt::format("{} Ki tokens", point["capacity_tokens"].get<std::int64_t>() / 1024),
               fmt::format("{:.2f}", 100 * point["hit_rate"].get<double>()),
               fmt::format("{:.2f}", 100 * point["most_hit_rate"].get<double>())});
  const std::string ideal = fmt::format("{:.2f}", 100 * reuse["ideal_hit_rate"].get<double>());
  curve.add({"no limit", ideal, ideal});
  return text + curve.text() +
         fmt::format("{} distinct blocks of {} tokens\n",
                     reuse["distinct_blocks"].get<std::int64_t>(),
                     reuse["block_tokens"].get<std::int64_t>());
}

}  // namespace moesim
