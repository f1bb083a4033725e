// SPDX-License-Identifier: Apache-2.0
// When does the next turn of a session arrive, and what is its prompt?
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <sys/resource.h>

#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "traces/sessions/session_file.hpp"
#include "traces/sessions/session_source.hpp"

namespace moesim::test_sessions {

using namespace moesim::test;
using Catch::Matchers::Contains;

namespace {

RequestWorkload workload(const Json& json) {
  return read_object(ConfigNode(json, source_dir() / "tests" / "inline.json"),
                     [](ConfigReader& reader) { return read_workload(reader); });
}

// Sessions of three turns, one at a time, changed by a merge patch.
Json three_turns(const Json& change = Json::object()) {
  Json json{{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
            {"sessions",
             {{"type", "generated"},
              {"turns", 3},
              {"first", 100},
              {"new", 30},
              {"output", 20},
              {"gap", "2 s"}}},
            {"requests", 100}};
  json.merge_patch(change);
  return json;
}

std::string refused(const Json& change) {
  return config_error([&] { workload(three_turns(change)); });
}

Time at(double seconds) { return Time(to_duration(Seconds(seconds))); }

std::vector<std::int64_t> ends(const Request& request) {
  std::vector<std::int64_t> ends;
  for (const PromptIds::Span& span : request.prompt_ids->spans) ends.push_back(span.end);
  return ends;
}

// Turns as a system asks for them that serves each request in so many seconds, one after the other
// where they overlap. Its requests.
std::vector<TimedRequest> served(const RequestWorkload& of, double seconds) {
  const auto source = of.make(1, 1);
  std::vector<TimedRequest> requests;
  while (const auto next = source->next()) {
    source->completed(std::ssize(requests), Outcome::finished,
                      next->arrival + to_duration(Seconds(seconds)));
    requests.push_back(*next);
  }
  return requests;
}

Json recorded(const TemporaryFile& file, const Json& change = Json::object()) {
  Json json{{"sessions", {{"type", "recorded"}, {"file", file.path().string()}}}};
  json.merge_patch(change);
  return json;
}

}  // namespace

TEST_CASE("the next turn arrives a gap after the end of the one before") {
  const auto requests = served(workload(three_turns()), 1.5);
  REQUIRE(requests.size() == 100);
  CHECK(requests[0].arrival == at(0));
  CHECK(requests[1].arrival == at(3.5));
  CHECK(requests[2].arrival == at(7));
  // The next session starts when the third turn has been answered.
  CHECK(requests[3].arrival == at(8.5));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CHECK(requests[i].request.turn->session == i / 3);
    CHECK(requests[i].request.turn->turn == i % 3);
    CHECK(requests[i].request.prompt_tokens == 100 + 50 * int(i % 3));
    CHECK(requests[i].request.output_tokens == 20);
  }
}

TEST_CASE("a gap may count from the start of a turn, and is cut at a cap") {
  const auto second = [](const Json& sessions, double service) {
    return served(workload(three_turns({{"sessions", sessions}})), service).at(1).arrival;
  };
  CHECK(second({{"gap_from", "start"}}, 1.5) == at(2));
  CHECK(second({{"gap_from", "start"}}, 5) == at(5));  // not before the reply
  CHECK(second({{"idle_cap", "0.5 s"}}, 1.5) == at(2));
  CHECK(second({{"idle_cap", "0 s"}}, 1.5) == at(1.5));
}

TEST_CASE("a recording's schedule is caught up with after a late reply; gaps from starts stay") {
  // Turns 2 s apart. The first reply comes after 5 s, the second after half a second.
  const auto third = [](const char* from) {
    const auto source = workload(three_turns({{"sessions", {{"gap_from", from}}}})).make(1, 1);
    CHECK(source->next()->arrival == at(0));
    source->completed(0, Outcome::finished, at(5));
    const Time second = source->next()->arrival;
    source->completed(1, Outcome::finished, second + to_duration(Seconds(.5)));
    return std::pair(second, source->next()->arrival);
  };
  CHECK(third("schedule") == std::pair(at(5), at(5.5)));  // due at 4
  CHECK(third("start") == std::pair(at(5), at(7)));
  CHECK(third("end") == std::pair(at(7), at(9.5)));
}

TEST_CASE("a turn that a reply brings about is not hidden by a session that starts later") {
  const auto source =
      workload(
          three_turns(
              {{"arrivals", {{"type", "constant"}, {"rate", "0.1 /s"}, {"concurrency", nullptr}}}}))
          .make(1, 1);
  CHECK(source->not_before() == at(10));
  CHECK(source->next()->arrival == at(10));
  CHECK(source->not_before() == at(20));
  source->completed(0, Outcome::finished, at(11));
  CHECK(source->not_before() == at(13));
  CHECK(source->next()->request.turn->turn == 1);
  CHECK(source->not_before() == at(20));
}

TEST_CASE("a session whose turn is rejected or abandoned asks for nothing more") {
  for (const Outcome outcome : {Outcome::rejected, Outcome::abandoned}) {
    const auto source = workload(three_turns()).make(1, 1);
    CHECK(source->next());
    CHECK_FALSE(source->next());
    source->completed(0, outcome, at(4));
    const auto next = source->next();
    CHECK(next->arrival == at(4));
    CHECK(next->request.turn->session == 1);
    CHECK(source->sessions()[0].state == SessionLife::State::broken);
    CHECK(source->sessions()[0].answered == 0);
    CHECK(source->sessions()[1].state == SessionLife::State::open);
  }
}

TEST_CASE("replies have a name where they are used again, and another one where they are not") {
  const auto turns = [](bool reuse) {
    return served(workload(three_turns({{"sessions", {{"reuse_output", reuse}}}})), 1);
  };
  const auto kept = turns(true), dropped = turns(false);
  CHECK(ends(kept[0].request) == std::vector<std::int64_t>{100, 120});
  CHECK(ends(kept[1].request) == std::vector<std::int64_t>{100, 120, 150, 170});
  CHECK(ends(dropped[0].request) == std::vector<std::int64_t>{100});
  CHECK(ends(dropped[1].request) == std::vector<std::int64_t>{100, 120, 150});
  // The same names as far as the prompt of the turn before, and its reply.
  CHECK(std::ranges::equal(kept[0].request.prompt_ids->spans,
                           std::span(kept[1].request.prompt_ids->spans).first(2)));
  std::set<std::uint64_t> names;
  for (const TimedRequest& request : kept) {
    for (const PromptIds::Span& span : request.request.prompt_ids->spans) names.insert(span.id);
  }
  CHECK(names.size() == 2 * kept.size());  // each turn's prompt and reply
  // Of a kept reply all but the last token has been computed.
  CHECK(kept[1].request.turn->known_tokens == 119);
  CHECK(dropped[1].request.turn->known_tokens == 100);
}

TEST_CASE("sessions share the tokens of their common prefix alone") {
  const auto requests = served(workload(three_turns({{"sessions", {{"shared_prefix", 64}}}})), 1);
  CHECK(ends(requests[3].request) == std::vector<std::int64_t>{64, 100, 120});
  CHECK(requests[0].request.turn->known_tokens == 0);
  CHECK(requests[3].request.turn->known_tokens == 64);
  CHECK(requests[0].request.prompt_ids->spans[0] == requests[3].request.prompt_ids->spans[0]);
  CHECK(requests[0].request.prompt_ids->spans[1] != requests[3].request.prompt_ids->spans[1]);
  // A prefix longer than the first prompt is all of it but the last token.
  const auto all = served(workload(three_turns({{"sessions", {{"shared_prefix", 500}}}})), 1);
  CHECK(all[3].request.turn->known_tokens == 99);
}

TEST_CASE("a turn beyond the longest context ends the session, or goes on from its first prompt") {
  const auto prompts = [](const Json& max_context) {
    std::vector<std::int32_t> prompts;
    const auto requests = served(
        workload(three_turns({{"sessions", {{"turns", 5}, {"max_context", max_context}}}})), 1);
    for (const TimedRequest& request : requests) prompts.push_back(request.request.prompt_tokens);
    prompts.resize(6);
    return prompts;
  };
  CHECK(prompts({{"at", 220}}) == std::vector<std::int32_t>{100, 150, 200, 100, 150, 200});
  CHECK(prompts({{"at", 219}}) == std::vector<std::int32_t>{100, 150, 100, 150, 100, 150});
  CHECK(prompts({{"at", 219}, {"do", "compact"}}) ==
        std::vector<std::int32_t>{100, 150, 130, 180, 130, 100});
  CHECK(prompts({{"at", 130}, {"do", "compact"}}) ==
        std::vector<std::int32_t>{100, 100, 100, 100, 100, 100});
}

TEST_CASE("presets have the statistics that were published") {
  const auto turns = [](const char* preset) {
    Json json = three_turns();
    json["sessions"] = preset;
    const RequestWorkload load = workload(json);
    Rng rng(1, "test");
    std::vector<double> turns;
    for (int i = 0; i < 200'000; ++i)
      turns.push_back(double(load.sessions->sessions->turns(i, rng)));
    std::ranges::sort(turns);
    return turns;
  };
  const auto mean = [](std::span<const double> values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / double(values.size());
  };
  const std::vector<double> chat = turns("chat"), codex = turns("codex"), coding = turns("coding");
  // 90.3 % of the sessions have one turn, and the others make 44 % of the requests.
  CHECK_THAT(double(std::ranges::count(chat, 1.0)) / double(chat.size()), WithinAbs(.903, .003));
  const double singles = double(std::ranges::count(chat, 1.0));
  CHECK_THAT(1 - singles / (mean(chat) * double(chat.size())), WithinAbs(.44, .02));
  CHECK(codex[100'000] == 30);
  CHECK_THAT(codex[180'000], WithinAbs(57, 1));
  CHECK_THAT(mean(codex), WithinAbs(33, 1.5));
  CHECK(coding[100'000] == 16);
  CHECK_THAT(coding[180'000], WithinAbs(135 + 18, 10));
}

TEST_CASE("a file's sessions keep its delays, in Mooncake's form and as CSV") {
  const TemporaryFile mooncake(
      "sessions.jsonl",
      R"({"session_id": "a", "timestamp": 1000, "input_length": 700, "output_length": 50, "hash_ids": [1, 2]})"
      "\n"
      R"({"session_id": "b", "timestamp": 3000, "input_length": 600, "output_length": 10, "hash_ids": [1, 9]})"
      "\n"
      R"({"session_id": "a", "input_length": 1000, "output_length": 20, "hash_ids": [1, 3], "delay": 1500})"
      "\n");
  const RequestWorkload load = workload(recorded(mooncake));
  CHECK(load.requests == 3);
  const auto requests = served(load, 0.25);
  REQUIRE(requests.size() == 3);
  CHECK(requests[0].arrival == at(0));
  CHECK(requests[1].arrival == at(1.75));
  CHECK(requests[1].request.prompt_tokens == 1000);
  CHECK(requests[2].arrival == at(2));
  CHECK(requests[2].request.prompt_tokens == 600);
  // All of the first prompt is in the second, though the id of its last block is another one.
  CHECK(ends(requests[1].request) == std::vector<std::int64_t>{512, 700, 750, 1000});
  CHECK(requests[1].request.turn->known_tokens == 700);
  CHECK(requests[2].request.turn->known_tokens == 512);
  // The reply is another one than was generated, unless the experiment says so.
  const auto reused =
      served(workload(recorded(mooncake, {{"sessions", {{"reuse_output", true}}}})), .25);
  CHECK(reused[1].request.turn->known_tokens == 749);

  const TemporaryFile csv("sessions.csv",
                          "session,arrival_s,prompt_tokens,output_tokens\n"
                          "7,10,100,5\n7,14,120,5\n8,15,60,5\n");
  // Times without gaps count from the start of the turn before.
  const auto timed = served(workload(recorded(csv)), 1);
  CHECK(timed[1].arrival == at(4));
  CHECK(timed[2].arrival == at(5));
  CHECK(ends(timed[1].request) == std::vector<std::int64_t>{100, 105, 120});
  const auto from_end = served(workload(recorded(csv, {{"sessions", {{"gap_from", "end"}}}})), 1);
  CHECK(from_end[1].arrival == at(5));

  // In a file with gaps a turn without one follows at once.
  const TemporaryFile mixed(
      "sessions.jsonl",
      "{\"session_id\": 1, \"timestamp\": 0, \"input_length\": 9, \"output_length\": 5}\n"
      "{\"session_id\": 1, \"timestamp\": 70, \"input_length\": 20, \"output_length\": 5}\n"
      "{\"session_id\": 1, \"input_length\": 30, \"output_length\": 5, \"delay\": 400}\n");
  const auto gaps = served(workload(recorded(mixed)), 1);
  CHECK(gaps[1].arrival == at(1));
  CHECK(gaps[2].arrival == at(2.4));

  const TemporaryFile lengths(
      "sessions.jsonl",
      "{\"session_id\": 1, \"input_length\": 90, \"output_length\": 5}\n"
      "{\"session_id\": 1, \"input_length\": 120, \"output_length\": 5, \"delay_ms\": 300}\n");
  CHECK_THAT(config_error([&] { workload(recorded(lengths)); }),
             Contains("do not say when they start"));
  const Json loop{{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}}, {"requests", 4}};
  const auto looped = served(workload(recorded(lengths, loop)), 1);
  REQUIRE(looped.size() == 4);
  CHECK(looped[1].arrival == at(1.3));
  CHECK(looped[2].arrival == at(2.3));
}

// Chats 1, 2, 3 continue each other, 7 continues one before the file begins, 5 stands alone. Chat
// 5's second block holds what chat 1's second one does, behind another first one.
TEST_CASE("a row that names no session is one by itself") {
  // As BurstGPT has it of requests to an API, among conversations.
  const TemporaryFile csv("burst.csv",
                          "Timestamp,Session ID,Request tokens,Response tokens\n"
                          "5,,472,18\n6,,300,18\n7,a,100,9\n9,a,200,9\n");
  const TemporaryFile json("rows.jsonl",
                           "{\"session_id\": \"a\", \"input_length\": 9, \"output_length\": 5}\n"
                           "{\"session_id\": null, \"input_length\": 20, \"output_length\": 5}\n"
                           "{\"session_id\": null, \"input_length\": 8, \"output_length\": 5}\n");
  for (const auto& path : {csv.path(), json.path()}) {
    CAPTURE(path);
    CHECK(read_session_file(path, 512).sessions.size() == 3);
  }
}

TEST_CASE("chats that continue each other are a session in Bailian's form, with ids of content") {
  const auto row = [](int chat, int parent, double time, int prompt, const char* ids) {
    return fmt::format(
        R"({{"chat_id": {}, "parent_chat_id": {}, "timestamp": {}, "input_length": {}, )"
        R"("output_length": 8, "type": "text", "turn": 1, "hash_ids": {}}})"
        "\n",
        chat, parent, time, prompt, ids);
  };
  const TemporaryFile chats(
      "chats.jsonl", row(1, -1, 0, 40, "[4, 5, 9]") + row(5, -1, 1.5, 48, "[6, 5, 8]") +
                         row(2, 1, 3.5, 60, "[4, 5, 10, 11]") + row(7, 99, 4, 20, "[4, 12]") +
                         row(3, 2, 9, 80, "[4, 5, 10, 13, 14]"));
  REQUIRE(is_session_file(chats.path()));
  const SessionFile file = read_session_file(chats.path(), 512);
  REQUIRE(file.sessions.size() == 3);
  CHECK(file.id_block_tokens == 16);
  CHECK(file.has_starts);
  CHECK(file.sessions[0].turns.size() == 3);
  CHECK(file.sessions[1].turns.size() == 1);
  CHECK(file.sessions[2].turns.size() == 1);
  CHECK(file.sessions[0].turns[1].gap == Seconds(3.5));
  CHECK(file.sessions[0].turns[1].kept == 48);  // all whole blocks, the rest and the reply
  CHECK(file.sessions[0].turns[2].kept == 68);
  const auto spans = [&](std::size_t session) {
    return file.sessions[session].turns[0].ids->spans;
  };
  CHECK(spans(0)[0].id == spans(2)[0].id);
  CHECK(spans(0)[1].id != spans(1)[1].id);
  // As single requests their ids would be taken for other blocks.
  CHECK_THAT(test::config_error([&] { read_request_trace(chats.path()); }),
             Contains("has a column \"chat_id\": write the file under \"sessions\""));
}

TEST_CASE("a session in one line is read in the forms of other simulators") {
  const Json loop{{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}}};
  const auto turns = [&](const std::string& line) {
    const TemporaryFile file("sessions.jsonl", line);
    return served(workload(recorded(file, loop)), 1);
  };
  // 60 of 1,000 tokens are new: 940 come from the 900 + 40 before.
  const auto steps =
      turns(R"({"id": "a", "steps": [{"input": 900, "new": 900, "output": 40, "gap": 0},)"
            R"( {"input": 1000, "new": 60, "output": 20, "gap": 1.5}]})");
  REQUIRE(steps.size() == 2);
  CHECK(steps[1].arrival == at(2.5));
  CHECK(ends(steps[1].request) == std::vector<std::int64_t>{900, 940, 1000});
  // The tool of a request runs after it.
  const auto tools = turns(
      R"({"sub_requests": [{"input_toks": 700, "output_toks": 30, "tool_duration_ns": 900000000},)"
      R"( {"input_toks": 800, "output_toks": 5}]})");
  CHECK(tools.at(1).arrival == at(1.9));
  CHECK(ends(tools[1].request) == std::vector<std::int64_t>{700, 730, 800});
  // One call of a tool makes two requests.
  const std::string call =
      R"({"num_turns": 1, "input_prompt_length": 3000, "assistant_response_length": [80],)"
      R"( "tool_call_output_length": [400], "tool_call_latency": [0.9],)"
      R"( "final_assistant_response_length": 50})";
  const auto calls = turns(call + "\n" + call);
  REQUIRE(calls.size() == 4);
  CHECK(calls[1].arrival == at(1.9));
  CHECK(calls[1].request.prompt_tokens == 3480);
  CHECK(calls[1].request.output_tokens == 50);
  CHECK(calls[2].request.turn->session == 1);

  const auto refused = [&](const std::string& line) { return config_error([&] { turns(line); }); };
  CHECK_THAT(refused(call + "\n{}"), Contains(":2: is no session with"));
  CHECK_THAT(refused(R"({"steps": []})"), Contains(R"("steps" is not a list of requests)"));
  CHECK_THAT(refused(R"({"steps": [{"input": 0, "output": 1}]})"), Contains(R"("input" is 0)"));
  CHECK_THAT(refused(R"({"steps": [7]})"), Contains(R"(has no number "input")"));
  CHECK_THAT(refused(R"({"num_turns": 1e9, "tool_call_latency": [1]})"),
             Contains("but there are 0 replies"));
  CHECK_THAT(
      refused(
          R"({"sub_requests": [{"input_toks": 1, "output_toks": 1, "tool_duration_ns": 1e300}]})"),
      Contains("expected a time"));
}

TEST_CASE("a file that is played again is played by others") {
  const TemporaryFile file(
      "sessions.jsonl",
      R"({"session_id": 1, "input_length": 600, "output_length": 5, "hash_ids": [4, 5]})"
      "\n"
      R"({"session_id": 2, "input_length": 600, "output_length": 5, "hash_ids": [4, 6]})");
  const Json loop{{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}}, {"requests", 4}};
  const auto requests = served(workload(recorded(file, loop)), 1);
  const auto known = [&](std::size_t i) { return requests.at(i).request.turn->known_tokens; };
  CHECK(known(0) == 0);
  CHECK(known(1) == 512);
  CHECK(known(2) == 0);
  CHECK(known(3) == 512);
}

TEST_CASE("hostile sessions are refused in a line that says what would be right") {
  CHECK_THAT(refused({{"sessions", {{"turns", 0}}}}),
             Contains("/sessions/turns: 0 is out of range"));
  CHECK_THAT(refused({{"sessions", {{"gap", "-1 s"}}}}), Contains("is negative"));
  CHECK_THAT(refused({{"sessions", {{"gap", {{"median", "5 s"}, {"sigma", 1}, {"max", "1 s"}}}}}}),
             Contains("is below the median"));
  CHECK_THAT(refused({{"sessions", {{"new", {{"median", 10}}}}}}), Contains("sigma"));
  CHECK_THAT(refused({{"sessions", {{"max_context", {{"do", "drop"}}}}}}),
             Contains(R"(use "end" or "compact")"));
  CHECK_THAT(refused({{"sessions", {{"lanes", 4}}}}), Contains("unknown key \"lanes\""));
  CHECK_THAT(refused({{"lengths", {{"type", "fixed"}, {"prompt", 1}, {"output", 1}}}}),
             Contains("sessions have lengths of their own"));
  CHECK_THAT(refused({{"arrivals", nullptr}}), Contains("\"arrivals\" is missing"));
  CHECK_THAT(refused({{"requests", nullptr}}), Contains("\"requests\" is missing"));

  const auto file_error = [](const std::string& lines) {
    const TemporaryFile file("sessions.jsonl", lines);
    return config_error([&] { workload(recorded(file)); });
  };
  const auto row = [](const std::string& more) {
    return R"({"session_id": "a", "input_length": 600, "output_length": 5)" + more + "}\n";
  };
  CHECK_THAT(file_error(row(R"(, "timestamp": 9)") + row(R"(, "timestamp": 8)")),
             Contains(":2: session \"a\": the turn was sent before the one above it"));
  CHECK_THAT(file_error(row("") + row(R"(, "delay": -5)")),
             Contains(":2: \"delay\" -5 is below zero"));
  CHECK_THAT(config_error([&] {
               const TemporaryFile file("sessions.jsonl", row(R"(, "timestamp": 9)"));
               workload(recorded(file, {{"requests", 2}}));
             }),
             Contains("2 requests of recorded sessions of 1"));
  CHECK_THAT(file_error(row(R"(, "hash_ids": [1])")), Contains("are not 2 ids"));
  CHECK_THAT(file_error(R"({"input_length": 6, "output_length": 5})"),
             Contains("no column that says"));
  CHECK_THAT(file_error(row("") + R"({"input_length": 6, "output_length": 5})"),
             Contains(":2: has no number or text \"session_id\""));
  CHECK_THAT(file_error(R"({"session_id": [1], "input_length": 6, "output_length": 5})"),
             Contains("has no number or text"));

  // However many turns there are, none is made before its time.
  const Json endless{
      {"sessions", {{"turns", 1'000'000'000}, {"first", 1'000'000'000}, {"gap", "0 s"}}}};
  const auto requests = served(workload(three_turns(endless)), 1);
  CHECK(requests.size() == 100);
  // The second turn would be too long for any request.
  CHECK(requests.back().request.turn->session == 99);
  CHECK_THAT(config_error([&] {
               served(workload(three_turns({{"sessions", {{"turns", 90}, {"gap", "700 h"}}}})), 1);
             }),
             Contains("longer than the 60 days"));
}

TEST_CASE("a session with nothing under way waits no longer than its cap, for all agents alike") {
  const auto second = [](const Json& sessions) {
    return served(workload(three_turns({{"sessions", sessions}})), 1.5).at(1).arrival;
  };
  CHECK(second({{"tree_idle_cap", "0.5 s"}}) == at(2));
  CHECK(second({{"tree_idle_cap", "3 s"}}) == at(3.5));
}

// --- agents that start others

struct Sent {
  SessionTurn turn;
  std::int32_t prompt_tokens;
  Time at, ended;
};

// Turns as a system asks for them that takes service(turn) for each, however many there are. Those
// whose client leaves do so at leaves(turn). heard(now, announced) is told what each end makes
// known.
template <class Service, class Leaves, class Heard>
std::vector<Sent> played(RequestSource& source, Service&& service, Leaves&& leaves, Heard&& heard) {
  std::vector<Sent> sent;
  std::set<std::pair<Time, std::size_t>> ends;
  for (;;) {
    if (ends.empty() || source.not_before() <= ends.begin()->first) {
      if (const auto next = source.next()) {
        const SessionTurn turn = *next->request.turn;
        const std::optional<Time> left = leaves(turn);
        const Time end = left ? *left : next->arrival + to_duration(service(turn));
        ends.emplace(end, sent.size());
        sent.push_back({turn, next->request.prompt_tokens, next->arrival, end});
        continue;
      }
      if (ends.empty()) return sent;
    }
    const auto [now, request] = *ends.begin();
    ends.erase(ends.begin());
    source.completed(static_cast<std::int64_t>(request),
                     leaves(sent[request].turn) ? Outcome::abandoned : Outcome::finished, now);
    for (const Announcement& announced : source.announced()) heard(now, announced);
  }
}
template <class Service, class Leaves>
std::vector<Sent> played(RequestSource& source, Service&& service, Leaves&& leaves) {
  return played(source, service, leaves, [](Time, const Announcement&) {});
}
std::optional<Time> nobody(const SessionTurn&) { return std::nullopt; }

// A run of a main agent with two turns that starts X and Y after its first one. By then X had
// answered one turn and Y two; with `y_took` above 1 s Y was not waited for.
std::string tree(const std::string& y_took = "1.0", bool inner_times = false) {
  const auto first = [](const std::string& t, const std::string& took, const std::string& ids) {
    return R"({"t": )" + t + R"(, "type": "n", "in": 130, "out": 9, "api_time": )" + took +
           R"(, "hash_ids": )" + ids + "}";
  };
  const auto second = [](const std::string& t, const std::string& took, const std::string& ids) {
    return R"({"t": )" + t + R"(, "type": "s", "in": 200, "out": 9, "api_time": )" + took +
           R"(, "hash_ids": )" + ids + "}";
  };
  return R"({"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": [)" +
         first("0", "2.0", "[0, 1, 2]") + R"(, {"type": "subagent", "t": 2.5, "requests": [)" +
         first(inner_times ? "0" : "2.5", "3.0", "[7, 8, 9]") +
         R"(]}, {"type": "subagent", "t": 3.0, "requests": [)" +
         first(inner_times ? "0" : "3.0", "1.0", "[17, 18, 19]") + ", " +
         second(inner_times ? "1.25" : "4.25", y_took, "[17, 18, 20, 21]") + "]}, " +
         second("5.9", "1.0", "[0, 1, 3, 4]") + "]}\n";
}

// What a system takes for the turns of this run.
Seconds service_of_tree(const SessionTurn& turn) {
  if (turn.agent == 0) return Seconds(turn.turn == 0 ? 2 : 1);
  return Seconds(turn.agent == 1 ? 3 : 1);
}

// The same as requests that say what they wait for.
std::string waiting(const std::string& last = R"(["r1", "x1", "y2"])") {
  const auto row = [](const std::string& session, const std::string& id, int prompt,
                      const std::string& waits, const std::string& pause) {
    return fmt::format(
        R"({{"session_id": "{}", "request_id": "{}", "input_length": {}, "output_length": 9, )"
        R"("wait_for": {}{}}})"
        "\n",
        session, id, prompt, waits, pause);
  };
  return row("main", "r1", 130, "[]", "") +
         row("x", "x1", 130, R"(["r1"])", R"(, "delay": 100, "tool_wait_ms": 400)") +
         row("y", "y1", 130, R"(["r1"])", R"(, "tool_wait_ms": 1000)") +
         row("y", "y2", 200, R"(["y1"])", R"(, "delay": 250)") +
         row("main", "r2", 200, last, R"(, "delay": 400)");
}

TEST_CASE("known answer 5: a turn waits for the agents that the one before has started") {
  const auto play = [&](const std::string& file, bool x_leaves, SessionLife& life) {
    const TemporaryFile runs("runs.jsonl", file);
    const RequestWorkload load =
        workload({{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
                  {"sessions", {{"type", "recorded"}, {"file", runs.path().string()}}}});
    CHECK(load.requests == 5);
    const auto source = load.make(1, 1);
    const auto sent = played(*source, service_of_tree, [&](const SessionTurn& turn) {
      return x_leaves && turn.agent == 1 ? std::optional(at(3)) : std::nullopt;
    });
    REQUIRE(source->sessions().size() == 1);
    life = source->sessions()[0];
    CHECK(life.state == SessionLife::State::finished);
    return sent;
  };
  // In the background and with times that count from the subagents: the same.
  for (const std::string& file :
       {tree(), tree("9.0"), tree("1.0", true), waiting(), waiting(R"(["r1", "x1"])")}) {
    CAPTURE(file);
    SessionLife life;
    const auto sent = play(file, false, life);
    REQUIRE(sent.size() == 5);
    const std::vector<double> begun{0, 2.5, 3, 4.25, 5.9};
    const std::vector<std::uint32_t> agents{0, 1, 2, 2, 0}, siblings{0, 1, 1, 1, 0};
    Duration service{};
    for (std::size_t i = 0; i < sent.size(); ++i) {
      CHECK(sent[i].at == at(begun[i]));
      CHECK(sent[i].turn.agent == agents[i]);
      CHECK(sent[i].turn.siblings == siblings[i]);
      service += sent[i].ended - sent[i].at;
      const auto in_flight = std::ranges::count_if(sent, [&](const Sent& other) {
        return other.at <= sent[i].at && other.ended > sent[i].at;
      });
      CHECK(in_flight <= 2);
    }
    CHECK(service == to_duration(Seconds(8)));
    CHECK(life.ended == at(6.9));
    CHECK(life.answered == 5);
    CHECK(life.joining == to_duration(Seconds(3.5)));
    // Y's second prompt begins with all of its first; nothing of another agent's is known.
    CHECK(sent[3].turn.known_tokens == 130);
    CHECK(sent[2].turn.known_tokens == 0);
    CHECK(sent[4].turn.known_tokens == 130);
  }
  SessionLife life;
  const auto cut = play(tree(), true, life);
  REQUIRE(cut.size() == 5);
  CHECK(cut.back().at == at(5.65));
  CHECK(life.ended == at(6.65));
  CHECK(life.answered == 4);
}

// As above with at most .1 s without a request under way: X and Y begin .4 s sooner, at 2.1
// and 2.6, and Y's own pause, with X under way, is as long as before. The last turn follows X by .1
// s.
TEST_CASE("pauses of all agents end sooner where their session has nothing under way") {
  const TemporaryFile runs("runs.jsonl", tree());
  const RequestWorkload load = workload(
      {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
       {"sessions",
        {{"type", "recorded"}, {"file", runs.path().string()}, {"tree_idle_cap", "0.1 s"}}}});
  const auto sent = played(*load.make(1, 1), service_of_tree, nobody);
  REQUIRE(sent.size() == 5);
  const std::vector<double> begun{0, 2.1, 2.6, 3.85, 5.2};
  for (std::size_t i = 0; i < sent.size(); ++i) CHECK(sent[i].at == at(begun[i]));
}

// The same tree: when X and Y have begun, the main agent waits for two turns of Y, then for one
// turn of each, at last for one of X alone.
TEST_CASE("agents say when they come back, and how many turns they wait for until they know") {
  const TemporaryFile runs("runs.jsonl", tree());
  const RequestWorkload load =
      workload({{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
                {"sessions", {{"type", "recorded"}, {"file", runs.path().string()}}}});
  struct Heard {
    double at;
    std::uint32_t agent;
    NextRequest next;
    bool operator==(const Heard&) const = default;
  };
  std::vector<Heard> heard;
  played(*load.make(1, 1), service_of_tree, nobody, [&](Time now, const Announcement& announced) {
    heard.push_back(
        {to_seconds(now).count(), static_cast<std::uint32_t>(announced.agent), announced.next});
  });
  using State = NextRequest::State;
  const auto due = [](double s) { return NextRequest{State::due, at(s), 0}; };
  const auto waits = [](int turns) { return NextRequest{State::waits, {}, turns}; };
  const NextRequest never;
  CHECK(heard == std::vector<Heard>{{2, 1, due(2.5)},
                                    {2, 2, due(3)},
                                    {2, 0, waits(2)},
                                    {4, 2, due(4.25)},
                                    {4, 0, waits(1)},
                                    {5.25, 2, never},
                                    {5.25, 0, waits(1)},
                                    {5.5, 1, never},
                                    {5.5, 0, due(5.9)},
                                    {6.9, 0, never}});
}

Json fan_out(double background) {
  return {{"arrivals", {{"concurrency", 3}}},
          {"sessions",
           {{"turns", 6},
            {"gap", "2 s"},
            {"fan_out",
             {{"share", .6},
              {"children", 3},
              {"turns", {{"median", 2}, {"sigma", .5}}},
              {"offset", "0.5 s"},
              {"background", background}}}}},
          {"requests", 600}};
}

TEST_CASE(
    "law 5: arrival(k + 1) = max(end(k), ends of agents waited for) + gap, and lanes stay full") {
  for (const double background : {0., 1.}) {
    CAPTURE(background);
    const auto source = workload(three_turns(fan_out(background))).make(1, 1);
    Rng rng(1, "service");
    const auto sent = played(
        *source, [&](const SessionTurn&) { return Seconds(rng.uniform() * 5); }, nobody);
    REQUIRE(sent.size() == 600);
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Sent>> agents;
    for (const Sent& turn : sent) agents[{turn.turn.session, turn.turn.agent}].push_back(turn);
    std::map<std::uint32_t, Time> last;  // reply of a session
    int children = 0, waited = 0;
    for (const auto& [name, turns] : agents) {
      last[name.first] = std::max(last[name.first], turns.back().ended);
      for (std::size_t k = 0; k < turns.size(); ++k) {
        CHECK(turns[k].turn.turn == k);
        if (k == 0) continue;
        Time from = turns[k - 1].ended;
        for (const auto& [other, of_other] : agents) {
          if (other.first != name.first || other.second == 0 || name.second != 0) continue;
          const Time started = of_other.front().at - to_duration(Seconds(.5));
          if (background == 0 && started == turns[k - 1].ended) {
            from = std::max(from, of_other.back().ended);
            ++waited;
          }
        }
        CHECK(turns[k].at == from + to_duration(Seconds(2)));
      }
      children += name.second > 0 ? 1 : 0;
    }
    CHECK(children > 50);
    CHECK((background == 0) == (waited > 50));
    // Three sessions are alive until the end: one begins when all agents of another have ended.
    const auto lives = source->sessions();
    for (std::size_t s = 3; s < lives.size(); ++s) {
      const auto ended = std::ranges::count_if(lives, [&](const SessionLife& life) {
        return life.state == SessionLife::State::finished && life.ended <= lives[s].begun;
      });
      CHECK(ended == std::ssize(lives.first(s)) - 2);
    }
    for (std::size_t s = 0; s < lives.size(); ++s) {
      if (lives[s].state == SessionLife::State::finished)
        CHECK(lives[s].ended == last[static_cast<std::uint32_t>(s)]);
    }
  }
}

TEST_CASE("of a session whose main agent fails nothing more arrives, and its lane is free again") {
  const auto source = workload(three_turns(fan_out(1))).make(1, 1);
  const auto fails = [](const SessionTurn& turn) {
    return turn.agent == 0 && turn.turn == 2 ? std::optional<Time>(at(1000)) : std::nullopt;
  };
  const auto sent = played(
      *source, [](const SessionTurn&) { return Seconds(1); }, fails);
  std::size_t failed = 0;
  for (const Sent& turn : sent) {
    if (turn.turn.session > 2) continue;
    CHECK(turn.at <= at(1000));
    failed += turn.turn.agent == 0 && turn.turn.turn == 2 ? 1u : 0u;
  }
  CHECK(failed == 3);
  REQUIRE(source->sessions().size() > 3);
  for (std::size_t s = 0; s < 3; ++s)
    CHECK(source->sessions()[s].state == SessionLife::State::broken);
  CHECK(source->sessions()[3].begun == at(1000));
}

TEST_CASE("the first sessions of a loop begin between two shares of their turns") {
  const auto begun = [](const Json& start_at) {
    const auto source = workload(three_turns({{"arrivals", {{"concurrency", 400}}},
                                              {"sessions", {{"turns", 10}, {"start_at", start_at}}},
                                              {"requests", 6000}}))
                            .make(1, 1);
    std::map<std::uint32_t, Sent> first;
    for (const Sent& turn : played(
             *source, [](const SessionTurn&) { return Seconds(1); }, nobody))
      first.try_emplace(turn.turn.session, turn);
    return first;
  };
  const auto middle = begun({{"from", .25}, {"to", .75}});
  REQUIRE(middle.size() > 500);
  std::set<std::uint32_t> turns;
  double sum = 0;
  for (const auto& [session, sent] : middle) {
    if (session >= 400) {
      CHECK(sent.turn.turn == 0);
      continue;
    }
    // 2.5 to 7.5 of ten turns, whole ones; of the context before nothing is in any cache.
    turns.insert(sent.turn.turn);
    sum += sent.turn.turn;
    CHECK(sent.prompt_tokens == 100 + 50 * std::int32_t(sent.turn.turn));
    CHECK(sent.turn.known_tokens == 0);
  }
  CHECK(turns == std::set<std::uint32_t>{2, 3, 4, 5, 6, 7});
  CHECK_THAT(sum / 400, WithinAbs(4.5, .3));
  const auto anywhere = begun("uniform");
  CHECK(std::ranges::count_if(anywhere, [](const auto& of) {
          return of.first < 400 && of.second.turn.turn == 9;
        }) > 20);
  for (const auto& [session, sent] : begun("first_turn")) CHECK(sent.turn.turn == 0);
}

// Turns of 100, 150, .. tokens with replies of 20. The turn before is sent for one token, so its
// whole prompt is known to the next one, and no reply.
TEST_CASE("primed sessions send the turn before the one that they begin with, for one token") {
  const auto source =
      workload(three_turns(
                   {{"arrivals", {{"concurrency", 40}}},
                    {"sessions",
                     {{"turns", 10}, {"start_at", {{"from", .25}, {"to", .75}, {"prime", true}}}}},
                    {"requests", 400}}))
          .make(1, 1);
  std::map<std::uint32_t, std::uint32_t> primed;
  std::vector<std::uint32_t> next;
  for (std::int64_t sent = 0; sent < 40; ++sent) {
    const Request request = source->next()->request;
    CHECK(request.output_tokens == 1);
    CHECK(request.turn->turn >= 1);
    CHECK(request.turn->turn <= 6);
    CHECK(request.turn->known_tokens == 0);
    primed[request.turn->session] = request.turn->turn;
  }
  for (std::int64_t sent = 0; sent < 40; ++sent) source->completed(sent, Outcome::finished, at(1));
  for (std::int64_t sent = 0; sent < 40; ++sent) {
    const Request request = source->next()->request;
    const std::uint32_t before = primed.at(request.turn->session);
    CHECK(request.output_tokens == 20);
    CHECK(request.turn->turn == before + 1);
    CHECK(request.prompt_tokens == 100 + 50 * std::int32_t(before + 1));
    CHECK(request.turn->known_tokens == 100 + 50 * std::int32_t(before));
  }
}

TEST_CASE("hostile runs of agents are refused in a line that says what would be right") {
  CHECK_THAT(refused({{"sessions", {{"start_at", {{"from", .5}, {"to", .25}}}}}}),
             Contains("/sessions/start_at/to: 0.25 is out of range"));
  CHECK_THAT(
      refused({{"sessions", {{"start_at", "uniform"}}},
               {"arrivals", {{"type", "poisson"}, {"rate", "1 /s"}, {"concurrency", nullptr}}}}),
      Contains("begin with their first turn"));
  CHECK_THAT(refused({{"sessions", {{"fan_out", {{"children", 1'000'000'000}}}}}}),
             Contains("/sessions/fan_out/children: 1000000000 is out of range"));
  CHECK_THAT(refused({{"sessions", {{"fan_out", {{"children", 1}, {"turns", 1'000'000'000}}}}}}),
             Contains("/sessions/fan_out/turns: 1000000000 is out of range"));
  CHECK_THAT(refused({{"sessions", {{"fan_out", {{"children", 1}, {"offset", "-1 s"}}}}}}),
             Contains("is negative"));

  const auto error = [](std::string lines, const std::string& from, const std::string& to) {
    const auto place = lines.find(from);
    REQUIRE(place != std::string::npos);
    const TemporaryFile file("runs.jsonl", lines.replace(place, from.size(), to));
    const std::string text = config_error([&] {
      workload({{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
                {"sessions", {{"type", "recorded"}, {"file", file.path().string()}}}});
    });
    CHECK(std::ranges::count(text, '\n') == 0);
    return text;
  };
  const auto refuses = [&](const std::string& from, const std::string& to) {
    return error(tree(), from, to);
  };
  CHECK_THAT(refuses(R"("in": 130)", R"("in": 0)"), Contains(":1: \"in\" is 0; expected 1 to"));
  CHECK_THAT(refuses(R"("out": 9)", R"("out": 1e99)"), Contains("\"out\" is 1e+99; expected 1 to"));
  CHECK_THAT(refuses(R"("t": 5.9)", R"("t": -5.9)"), Contains("\"t\" is -5.9; expected seconds"));
  CHECK_THAT(refuses(R"("api_time": 1.0, "hash_ids": [0)", R"("think_time": -1, "hash_ids": [0)"),
             !Contains("expected"));  // after agents that it waits for, only times count
  CHECK_THAT(refuses(R"("api_time": 2.0)", R"("api_time": "2")"), Contains("expected seconds"));
  CHECK_THAT(refuses("[0, 1, 3, 4]", "[0, 1]"), Contains("\"hash_ids\" are not 4 whole numbers"));
  CHECK_THAT(refuses("[0, 1, 3, 4]", "[0, 1, 1, 4]"), Contains("have 1 twice in one prompt"));
  CHECK_THAT(refuses(R"("t": 4.25)", R"("t": 2.75)"), Contains("sent before the one above it"));
  CHECK_THAT(error(tree() + tree(), "x", "x"),
             Contains(":2: \"id\" \"x\" is that of a line above"));
  CHECK_THAT(error(tree() + R"({"id": "y", "block_size": 16, "requests": [)"
                            R"({"t": 0, "in": 9, "out": 1, "hash_ids": [1]}]})",
                   "x", "x"),
             Contains(":2: \"block_size\" is 16; that of the lines above is 64"));
  CHECK_THAT(error(tree() + R"({"steps": []})", "x", "x"), Contains(":2: is no run with"));
  std::string nested = R"({"t": 1, "type": "n", "in": 1, "out": 1, "hash_ids": [1]})";
  for (int depth = 0; depth < 12; ++depth)
    nested = R"({"t": 1, "type": "n", "in": 1, "out": 1, "hash_ids": [1]}, {"type": "subagent", )"
             R"("t": 1, "requests": [)" +
             nested + "]}";
  CHECK_THAT(error(R"({"block_size": 64, "requests": [)" + nested + "]}", "64", "64"),
             Contains("subagents start subagents 9 times over"));
  // Requests that say what they wait for: none can be in a circle, as none waits for one below it.
  const auto waits = [&](const std::string& from, const std::string& to) {
    return error(waiting(), from, to);
  };
  CHECK_THAT(waits(R"(["r1"])", R"(["r2"])"),
             Contains(":2: waits for \"r2\", which is the id of no"));
  CHECK_THAT(waits(R"(["r1"])", R"(["x1"])"),
             Contains(":2: waits for \"x1\", which is the id of no"));
  CHECK_THAT(waits(R"("y1", "input)", R"("x1", "input)"),
             Contains(":3: \"request_id\" \"x1\" is that of a line above"));
  CHECK_THAT(waits(R"(["y1"])", R"(["r1"])"),
             Contains(":4: waits for \"r1\", which is not the last"));
  CHECK_THAT(waits(R"("x1", "y2"])", R"("x1", "y1"])"),
             Contains(":5: waits for \"y1\", which is not the last turn of a session"));
  CHECK_THAT(waits(R"("request_id": "y2")", R"("request_id": "y1")"),
             Contains("is that of a line"));
  CHECK_THAT(waits(R"("delay": 250)", R"("delay": -250)"),
             Contains("\"delay\" -250 is below zero"));
  CHECK_THAT(waits(R"(["y1"])", "7"), Contains("\"wait_for\" is not a list of request ids"));
  CHECK_THAT(error(waiting() + R"({"session_id": "z", "input_length": 9, "output_length": 9, )"
                               R"("wait_for": ["r2", "y2"]})",
                   "x", "x"),
             Contains(":6: the first turn of its session waits for several"));
  CHECK_THAT(
      error(waiting() + R"({"session_id": "x", "input_length": 9, "output_length": 9})", "x", "x"),
      Contains(":6: is a turn of a session for whose last turn another has waited"));

  // Nothing can have started a subagent that no turn comes before.
  const std::string orphan = R"({"block_size": 64, "requests": [{"type": "subagent", "t": 0, )"
                             R"("requests": [{"t": 0, "in": 9, "out": 1, "hash_ids": [1]}]})";
  CHECK_THAT(error(orphan + "]}", "64", "64"), Contains("hold no request of the main agent"));
  const TemporaryFile dropped("runs.jsonl",
                              orphan + R"(, {"t": 1, "in": 9, "out": 1, "hash_ids": [2]}]})");
  const SessionFile read = read_session_file(dropped.path(), 512);
  CHECK(read.agents_left_out == 1);
  CHECK(count_turns(read.sessions.at(0).turns) == 1);
}

// Sessions of a turn each, every one started by the turn of the one above it.
std::string chain_of_agents(int agents) {
  std::string lines;
  for (int i = 0; i < agents; ++i) {
    lines += fmt::format(
        R"({{"session_id": {}, "request_id": "{}", "wait_for": [{}], "prompt_tokens": 4, )"
        R"("output_tokens": 2}}{})",
        i, i, i == 0 ? "" : fmt::format("\"{}\"", i - 1), "\n");
  }
  return lines;
}

TEST_CASE("agents may start agents a hundred thousand times over") {
  constexpr int agents = 100'000;
  const TemporaryFile file("chain.jsonl", chain_of_agents(agents));
  {
    const SessionFile read = read_session_file(file.path(), 512);
    CHECK(count_turns(read.sessions.at(0).turns) == agents);
  }  // and all of them go
  // Twice the file: the second round is said by others.
  const Json loop{{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}}, {"requests", 3000}};
  const TemporaryFile some("chain.jsonl", chain_of_agents(1500));
  CHECK(served(workload(recorded(some, loop)), 1).size() == 3000);
}

TEST_CASE("an agent of many turns is no list of them, and says what it would have said") {
  const auto turns_of = [](int children, int turns) {
    return served(workload(three_turns({{"sessions",
                                         {{"turns", 2},
                                          {"new", {{"median", 30}, {"sigma", 1}}},
                                          {"output", {{"median", 20}, {"sigma", 1}}},
                                          {"fan_out", {{"children", children}, {"turns", turns}}}}},
                                        {"requests", 40}})),
                  1);
  };
  // Each prompt of an agent is its last one, the reply and something new.
  std::map<std::uint32_t, Request> last;
  for (const TimedRequest& sent : turns_of(3, 6)) {
    const Request& request = sent.request;
    const auto agent = request.turn->session * 100 + request.turn->agent;
    if (const auto before = last.find(agent); before != last.end())
      CHECK(request.prompt_tokens > before->second.prompt_tokens + before->second.output_tokens);
    CHECK((request.turn->turn > 0) == last.contains(agent));
    last[agent] = request;
  }
  // What all turns of a thousand agents would take, 70 bytes each, is far more than this.
  const auto most_kib = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
  };
  const auto before = most_kib();
  CHECK(turns_of(1000, 10'000).size() == 40);
  CHECK(most_kib() - before < 100 * 1024);
}

TEST_CASE("a key twice in the first line of a file of sessions is said with its place") {
  for (const char* line :
       {R"({"id": "x", "id": "y", "block_size": 64, "requests": [{"t": 0}]})",
        R"({"session_id": 1, "session_id": 2, "input_length": 9, "output_length": 1})",
        R"({"steps": [{"input": 1, "input": 2, "output": 1}]})"}) {
    const TemporaryFile file("twice.jsonl", std::string(line) + "\n");
    CHECK(is_session_file(file.path()));
    CHECK_THAT(config_error([&] { read_session_file(file.path(), 512); }),
               Contains("twice.jsonl:1: ") && Contains("is there twice"));
  }
}

TEST_CASE("rows say whole prompts or what turns add, and which where none holds the turn before") {
  // As AIPerf takes them.
  const TemporaryFile file(
      "sessions.jsonl",
      "{\"session_id\": \"a\", \"input_length\": 300, \"output_length\": 40}\n"
      "{\"session_id\": \"a\", \"input_length\": 150, \"output_length\": 20, \"delay\": 500}\n"
      "{\"session_id\": \"a\", \"input_length\": 10, \"output_length\": 20, \"delay\": 500}\n");
  CHECK(read_session_file(file.path(), 512).none_continues);
  const auto prompts = [&](const Json& sessions) {
    const auto requests =
        served(workload(recorded(file, {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
                                        {"sessions", sessions}})),
               1);
    std::vector<std::pair<int, int>> tokens;  // of the prompt; of those known
    for (const TimedRequest& one : requests)
      tokens.emplace_back(one.request.prompt_tokens, one.request.turn->known_tokens);
    return tokens;
  };
  using Tokens = std::vector<std::pair<int, int>>;
  CHECK_THAT(config_error([&] { prompts(Json::object()); }),
             Contains("/sessions/file: no later prompt is as long") && Contains("\"row_tokens\""));
  CHECK(prompts({{"row_tokens", "whole"}}) == Tokens{{300, 0}, {150, 0}, {10, 0}});
  // 300 + 40 + 150; 490 + 20 + 10. The last token of a reply is not computed.
  CHECK(prompts({{"row_tokens", "added"}, {"reuse_output", true}}) ==
        Tokens{{300, 0}, {490, 339}, {520, 509}});
  CHECK(prompts({{"row_tokens", "added"}}) == Tokens{{300, 0}, {490, 300}, {520, 490}});
  const TemporaryFile named(
      "sessions.jsonl",
      "{\"session_id\": 1, \"input_length\": 9, \"output_length\": 4, \"hash_ids\": [1]}\n"
      "{\"session_id\": 1, \"input_length\": 9, \"output_length\": 4, \"hash_ids\": [2]}\n");
  CHECK_FALSE(read_session_file(named.path(), 512).none_continues);
  CHECK_THAT(config_error([&] { read_session_file(named.path(), 512, RowTokens::added); }),
             Contains(":2: has hash_ids"));
}

TEST_CASE("a file may say how many tokens all of its sessions begin with") {
  const TemporaryFile file("sessions.csv",
                           "session,turn,prompt_tokens,output_tokens,shared_prefix\n"
                           "0,0,600,5,500\n1,0,700,5,500\n");
  const Json loop{{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}}, {"requests", 2}};
  const auto requests = served(workload(recorded(file, loop)), 1);
  CHECK(requests.at(0).request.turn->known_tokens == 0);
  CHECK(requests.at(1).request.turn->known_tokens == 500);
}

}  // namespace moesim::test_sessions
