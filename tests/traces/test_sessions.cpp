// SPDX-License-Identifier: Apache-2.0
// When does the next turn of a session arrive, and what is its prompt?
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
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

}  // namespace moesim::test_sessions
