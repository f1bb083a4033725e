// SPDX-License-Identifier: Apache-2.0
// What do sessions do to a run: which tokens are hit, how many are alive, and for how long?
#include <algorithm>
#include <map>
#include <set>

#include "sim/serving/simulator.hpp"
#include "tests/tiny_experiment.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim::test_session_runs {
namespace {

using test::load_tiny;
using test::serve;
using test::Served;
using test::WithinAbs;
using test::WithinRel;

// Sessions on one rank with prefix caching.
Json sessions(const Json& of_kind, int requests, int lanes = 1) {
  Json set{{"parallel", {{"dp", 1}, {"tp", 4}, {"ep", 4}}},
           {"kv_cache", {{"prefix_caching", true}}},
           {"scheduling", {{"max_num_batched_tokens", 2048}}},
           {"measurement", {{"warmup", 0}}},
           {"workload",
            {{"arrivals", {{"concurrency", lanes}}},
             {"lengths", nullptr},
             {"requests", requests},
             {"sessions", {{"type", "generated"}}}}}};
  set["workload"]["sessions"].merge_patch(of_kind);
  return set;
}

TEST_CASE("known answer 1: of T turns of whole blocks (T - 1) / (T + 1) of the tokens are hit") {
  for (const int turns : {6, 8}) {
    CAPTURE(turns);
    constexpr int grown = 4 * 16;
    const Json of_kind{{"turns", turns}, {"first", grown},        {"new", grown - 1},
                       {"output", 1},    {"reuse_output", false}, {"gap", "1 s"}};
    const Served report = serve(load_tiny(sessions(of_kind, 3 * turns)));
    const OrderedJson json = report.document();
    CHECK(json["sessions"]["finished"] == 3);
    CHECK(json["sessions"]["open"] == 0);
    CHECK_THAT(json["turns"]["all"]["prefix"]["hit_rate"].get<double>(),
               WithinRel((turns - 1.) / (turns + 1.), 1e-12));
    CHECK(json["turns"]["all"]["prefix"]["queried_tokens"] == 3 * grown * turns * (turns + 1) / 2);
    for (const RequestRecord& request : report.requests) {
      const int turn = int(request.turn->turn);
      CHECK(request.prompt_tokens == grown * (turn + 1));
      CHECK(request.cached_tokens == grown * turn);  // turn k hits (k - 1) / k
    }
    // Nothing was forgotten, so an endless cache does no better.
    const OrderedJson& later = json["turns"]["later"]["prefix"];
    CHECK(later["hit_tokens"] == later["ideal_hit_tokens"]);
    CHECK(json["turns"]["first"]["prefix"]["hit_tokens"] == 0);
    CHECK(json["turns"]["later"]["mean_computed_tokens"] == grown);
  }
}

// Turns of 100, 183, 266 tokens, one session after the other.
class ThreeTurns final : public Lengths {
 public:
  Request request(std::int64_t index, Rng&) const override {
    return {static_cast<std::int32_t>(100 + 83 * (index % 3)), 20};
  }
};

TEST_CASE("bounds: a lane without gaps is a chain of single requests") {
  const Json of_kind{{"turns", 3}, {"first", 100}, {"new", 63}, {"output", 20}, {"gap", "0 s"}};
  Json set = sessions(of_kind, 12);
  set["kv_cache"]["prefix_caching"] = false;
  const Served lane = serve(load_tiny(set));
  set["workload"].erase("sessions");
  set["workload"].erase("lengths");
  Experiment e = load_tiny(set);
  e.decode().workload.lengths = std::make_shared<ThreeTurns>();
  const Served chain = serve(e);
  REQUIRE(lane.requests.size() == chain.requests.size());
  for (std::size_t i = 0; i < lane.requests.size(); ++i) {
    CHECK(lane.requests[i].prompt_tokens == chain.requests[i].prompt_tokens);
    CHECK(lane.requests[i].arrival == chain.requests[i].arrival);
    CHECK(lane.requests[i].first_token == chain.requests[i].first_token);
    CHECK(lane.requests[i].last_token == chain.requests[i].last_token);
  }
}

// Turns of 100, 164 and 228 tokens. The fourth would have 292 and goes on from the first prompt:
// 163, then 227, and 163 again.
TEST_CASE("turns after a compaction stand apart, and have shorter prompts than the turn before") {
  const Json of_kind{{"turns", 6},   {"first", 100},
                     {"new", 63},    {"output", 1},
                     {"gap", "1 s"}, {"max_context", {{"at", 250}, {"do", "compact"}}}};
  const Served served = serve(load_tiny(sessions(of_kind, 12)));
  std::int64_t turns = 0, tokens = 0, before = 0;
  for (const RequestRecord& request : served.requests) {
    if (request.turn->turn > 0 && request.prompt_tokens < before) {
      ++turns;
      tokens += request.prompt_tokens;
    }
    before = request.prompt_tokens;
  }
  CHECK(turns == 2 * 2);
  const OrderedJson json = served.document()["turns"];
  CHECK(json["after_compaction"]["requests"] == turns);
  CHECK(json["after_compaction"]["mean_prompt_tokens"] == double(tokens) / double(turns));
  CHECK(json["after_compaction"]["prefix"]["hit_tokens"] == turns * 96);
  Json never = of_kind;
  never.erase("max_context");
  CHECK_FALSE(
      serve(load_tiny(sessions(never, 12))).document()["turns"].contains("after_compaction"));
}

TEST_CASE("sticky sessions stay on a rank and hit all that they can; in turn they hit less") {
  const auto served = [](const Json& routing) {
    Json set =
        sessions({{"turns", 5}, {"first", 256}, {"new", 64}, {"output", 4}, {"gap", "1 s"}}, 60, 6);
    set["parallel"] = {{"dp", 4}, {"tp", 1}, {"ep", 4}};
    set["request_routing"] = routing;
    return serve(load_tiny(set));
  };
  const auto ranks_used = [](const Served& report) {
    std::map<std::uint32_t, std::set<int>> ranks;
    for (const RequestRecord& request : report.requests)
      ranks[request.turn->session].insert(request.rank);
    std::size_t most = 0;
    for (const auto& [session, used] : ranks) most = std::max(most, used.size());
    return most;
  };
  const auto hits = [](const Served& report) {
    const OrderedJson prefix = report.document()["turns"]["later"]["prefix"];
    return prefix["hit_tokens"].get<double>() / prefix["ideal_hit_tokens"].get<double>();
  };
  const Served sticky = served({{"type", "sticky"}, {"else", "round_robin"}});
  CHECK(ranks_used(sticky) == 1);
  CHECK(hits(sticky) > .9);  // but for the seam in a block
  const Served in_turn = served("round_robin");
  CHECK(ranks_used(in_turn) > 1);
  CHECK(hits(in_turn) < hits(sticky));
  // Idle for a second: with a shorter ttl every turn is the first one to the other router.
  CHECK(
      served({{"type", "sticky"}, {"ttl", "0.5 s"}, {"else", "round_robin"}}).document()["turns"] ==
      in_turn.document()["turns"]);
}

TEST_CASE("a report parts the time of sessions with several agents into one part more") {
  const auto shares = [](const Json& fan_out) {
    Json set =
        sessions({{"turns", 4}, {"first", 64}, {"new", 32}, {"output", 8}, {"gap", "1 s"}}, 120, 2);
    if (!fan_out.is_null()) set["workload"]["sessions"]["fan_out"] = fan_out;
    return run(load_tiny(set)).document()["sessions"]["share_of_time"];
  };
  const OrderedJson tree = shares({{"children", 2}, {"turns", 2}, {"offset", "3 s"}});
  double sum = 0;
  for (const auto& [part, share] : tree.items()) sum += share.get<double>();
  CHECK_THAT(sum, WithinRel(1., 1e-9));
  // Each of four turns starts agents that take 3 s + 1 s; three gaps of 1 s lie between the turns.
  // Compute takes next to nothing.
  CHECK_THAT(tree["join"].get<double>(), WithinAbs(16. / 19, .02));
  CHECK_THAT(tree["gap"].get<double>(), WithinAbs(3. / 19, .02));
  const OrderedJson chain = shares(nullptr);
  CHECK_FALSE(chain.contains("join"));
  // In the background no turn waits, but the session does at its end.
  const OrderedJson background =
      shares({{"children", 2}, {"turns", 2}, {"offset", "3 s"}, {"background", 1}});
  CHECK_THAT(background["join"].get<double>(), WithinAbs(4. / 7, .03));
}

TEST_CASE("children of one agent may be kept on one rank, wherever their parent is") {
  Json set =
      sessions({{"turns", 3}, {"first", 64}, {"new", 32}, {"output", 8}, {"gap", "1 s"}}, 200, 3);
  set["workload"]["sessions"]["fan_out"] = {{"children", 3}, {"turns", 2}};
  set["parallel"] = {{"dp", 4}, {"tp", 1}, {"ep", 4}};
  const auto ranks = [&](const char* by, bool siblings) {
    set["request_routing"] = {{"type", "sticky"}, {"by", by}, {"else", "round_robin"}};
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<int>> used;
    for (const RequestRecord& request : serve(load_tiny(set)).requests)
      used[{request.turn->session, siblings ? request.turn->siblings : 0}].insert(request.rank);
    std::size_t most = 0;
    for (const auto& [kin, of] : used) most = std::max(most, of.size());
    return most;
  };
  CHECK(ranks("session", false) == 1);
  CHECK(ranks("parent", true) == 1);
  CHECK(ranks("parent", false) == 2);
}

TEST_CASE("sessions hit all that they can until the cache is smaller than what they grow to") {
  constexpr int lanes = 4, turns = 6, grown = 96;  // blocks a turn
  const auto hit_rate = [&](int blocks) {
    Json set = sessions({{"turns", turns},
                         {"first", grown * 16},
                         {"new", grown * 16 - 1},
                         {"output", 1},
                         {"reuse_output", false}},
                        turns * 4 * lanes, lanes);
    set["scheduling"]["max_num_batched_tokens"] = 8192;
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = blocks;
    return run(e).document()["turns"]["all"]["prefix"]["hit_rate"].get<double>();
  };
  // What all but one add in their last turn is hit by none, but has to be somewhere; the last one
  // takes the place of the first one's.
  constexpr int all_but_last = lanes * (turns - 1) * grown + (lanes - 1) * grown;
  CHECK_THAT(hit_rate(lanes * turns * grown), WithinRel(5. / 7, 1e-12));
  CHECK_THAT(hit_rate(all_but_last), WithinRel(5. / 7, 1e-12));
  CHECK(hit_rate(all_but_last - 1) < 5. / 7 - 1e-4);
  CHECK(hit_rate(all_but_last / 2) < .3);
}

TEST_CASE("known answer 2: a reply that is used again is hit as far as its whole blocks reach") {
  const auto second = [](bool reuse, bool drafts) {
    Json set = sessions(
        {{"turns", 2}, {"first", 1024}, {"new", 192}, {"output", 64}, {"reuse_output", reuse}}, 2);
    if (drafts)
      set["speculative"] = {
          {"num_speculative_tokens", 1}, {"acceptance_rate", 0}, {"draft", "mtp"}};
    const Served report = serve(load_tiny(set));
    REQUIRE(report.requests.size() == 2);
    CHECK(report.requests[1].prompt_tokens == 1280);
    return report.requests[1].cached_tokens;
  };
  // 1,024 + 63 tokens are in the cache: 67 whole blocks of 16.
  CHECK(second(true, false) == 67 * 16);
  CHECK(second(false, false) == 64 * 16);
  // A drafting module computes the last block of a hit again.
  CHECK(second(true, true) == 66 * 16);
  CHECK(second(false, true) == 63 * 16);
}

TEST_CASE("law 6: sessions of one turn each are a closed loop, byte for byte") {
  const auto document = [](const Json& set) {
    OrderedJson json = run(load_tiny(set)).document();
    json.erase("context");
    json.erase("sessions");
    json.erase("turns");
    return json.dump();
  };
  for (const bool staggered : {false, true}) {
    CAPTURE(staggered);
    const Json loop{{"workload", {{"arrivals", {{"staggered", staggered}}}}},
                    {"kv_cache", {{"prefix_caching", true}}},
                    {"api_server", {{"latency", "30 ms"}, {"tokenization", "1 us"}}}};
    Json one_turn = loop;
    one_turn["workload"]["lengths"] = nullptr;
    one_turn["workload"]["sessions"] = {
        {"type", "generated"}, {"turns", 1}, {"first", 20}, {"new", 1}, {"output", 30}};
    CHECK(document(one_turn) == document(loop));
  }
  const Json drawn{{"median", 18}, {"sigma", .6}, {"max", 40}};
  const Json loop{
      {"workload", {{"lengths", {{"type", "lognormal"}, {"prompt", drawn}, {"output", drawn}}}}}};
  const Json one_turn{
      {"workload",
       {{"lengths", nullptr},
        {"sessions",
         {{"type", "generated"}, {"turns", 1}, {"first", drawn}, {"new", 1}, {"output", drawn}}}}}};
  CHECK(document(one_turn) == document(loop));
}

// When each session began and ended, and its requests by turn.
struct Session {
  std::vector<const RequestRecord*> turns;
  Time begun() const { return turns.front()->arrival; }
  Time ended() const { return turns.back()->last_token; }
};
std::map<std::uint32_t, Session> by_session(const Served& report) {
  std::map<std::uint32_t, Session> sessions;
  for (const RequestRecord& request : report.requests) {
    Session& session = sessions[request.turn->session];
    CHECK(request.turn->turn == session.turns.size());
    session.turns.push_back(&request);
  }
  return sessions;
}

TEST_CASE(
    "law 5: a turn arrives a gap after the reply before, and as many sessions are alive as lanes") {
  const Json of_kind{{"turns", {{"median", 3}, {"sigma", .8}, {"max", 9}}},
                     {"first", {{"median", 60}, {"sigma", .5}, {"max", 200}}},
                     {"new", 20},
                     {"output", {{"median", 12}, {"sigma", .5}, {"max", 60}}},
                     {"gap", "5 ms"}};
  constexpr int lanes = 7;
  const Served report = serve(load_tiny(sessions(of_kind, 300, lanes)));
  const auto sessions = by_session(report);
  REQUIRE(report.requests.size() == 300);
  std::size_t turns = 0;
  std::map<Time, int> change;  // of sessions alive
  const Time deadline = report.requests.back().arrival;
  for (const auto& [number, session] : sessions) {
    turns += session.turns.size();
    for (std::size_t k = 1; k < session.turns.size(); ++k) {
      REQUIRE(session.turns[k]->arrival ==
              session.turns[k - 1]->last_token + to_duration(Seconds(.005)));
    }
    ++change[session.begun()];
  }
  CHECK(turns == 300);
  // Each session but the first ones begins when another one ends.
  std::map<Time, int> ends;
  for (const auto& [number, session] : sessions) ++ends[session.ended()];
  int first = 0, replaced = 0;
  for (const auto& [begun, count] : change) {
    if (begun == Time{}) {
      first = count;
      continue;
    }
    REQUIRE(ends[begun] >= count);
    replaced += count;
  }
  CHECK(first == lanes);
  CHECK(replaced + lanes == std::ssize(sessions));
  const OrderedJson json = report.document();
  const OrderedJson& of_sessions = json["sessions"];
  CHECK_THAT(of_sessions["mean_alive"].get<double>(), WithinRel(double(lanes), 1e-9));
  CHECK(of_sessions["finished"].get<std::int64_t>() + of_sessions["open"].get<std::int64_t>() ==
        std::ssize(sessions));
  // Only sessions whose last turn was not sent before the deadline are open.
  CHECK(of_sessions["open"] <= lanes);
  const OrderedJson& shares = of_sessions["share_of_time"];
  CHECK_THAT(
      shares["service"].get<double>() + shares["queue"].get<double>() + shares["gap"].get<double>(),
      WithinRel(1., 1e-9));
  CHECK(deadline > Time{});
}

TEST_CASE("prompt tokens are hit or computed, and never hit more than in an endless cache") {
  const Json of_kind{
      {"turns", 4}, {"first", 150}, {"new", 33}, {"output", 21}, {"shared_prefix", 70}};
  for (const int blocks : {30, 4000}) {
    CAPTURE(blocks);
    Experiment e = load_tiny(sessions(of_kind, 160, 5));
    e.decode().memory.kv_blocks = blocks;
    const Served report = serve(e);
    const OrderedJson json = report.document();
    for (const char* which : {"all", "first", "later"}) {
      const OrderedJson& prefix = json["turns"][which]["prefix"];
      CHECK(prefix["computed_tokens"].get<std::int64_t>() ==
            prefix["queried_tokens"].get<std::int64_t>() -
                prefix["hit_tokens"].get<std::int64_t>());
      CHECK(prefix["hit_tokens"] <= prefix["ideal_hit_tokens"]);
    }
    std::int64_t queried = 0, hit = 0;
    for (const RequestRecord& request : report.requests) {
      queried += request.prompt_tokens;
      hit += request.cached_tokens;
    }
    CHECK(json["turns"]["all"]["prefix"]["queried_tokens"] == queried);
    CHECK(json["turns"]["all"]["prefix"]["hit_tokens"] == hit);
    CHECK(hit > 0);
    std::int64_t by_number = 0;
    for (const auto& group : json["turns"]["by_number"])
      by_number += group["requests"].get<std::int64_t>();
    CHECK(by_number == 160);
  }
}

TEST_CASE("law 5: no turn of a session arrives whose client left or whose request was too long") {
  Json set = sessions({{"turns", 6}, {"first", 40}, {"new", 20}, {"output", 30}}, 200, 12);
  set["workload"]["cancellation"] = {{"share", .3}, {"mean_after", "1 ms"}};
  const Served report = serve(load_tiny(set));
  std::int64_t broken = 0;
  for (const auto& [number, session] : by_session(report)) {
    for (std::size_t k = 0; k + 1 < session.turns.size(); ++k)
      REQUIRE(session.turns[k]->state == RequestRecord::State::finished);
    broken += session.turns.back()->state == RequestRecord::State::cancelled ? 1 : 0;
  }
  CHECK(broken > 10);
  CHECK(report.document()["sessions"]["broken"] == broken);

  // The third turn would have 160 + 30 tokens, the first one has 70.
  Json limited = sessions({{"turns", 6}, {"first", 40}, {"new", 30}, {"output", 30}}, 20);
  limited["max_model_len"] = 189;
  const Served ends = serve(load_tiny(limited));
  CHECK(ends.document()["sessions"]["finished"] == 10);
  limited["workload"]["sessions"]["max_context"] = {{"at", 1000}};
  const Served breaks = serve(load_tiny(limited));
  CHECK(breaks.document()["sessions"]["broken"] == 6);
  CHECK(breaks.document()["metrics"]["rejected"] == 6);
}

TEST_CASE("law 7: a run of sessions is the same for one seed, and another for another") {
  const Json set = sessions({{"turns", {{"median", 3}, {"sigma", 1}}},
                             {"first", 30},
                             {"new", 20},
                             {"output", 10},
                             {"gap", {{"median", "3 ms"}, {"sigma", 1}}}},
                            150, 6);
  const auto bytes = [&](int seed) {
    Json seeded = set;
    seeded["seed"] = seed;
    return run(load_tiny(seeded)).document().dump();
  };
  CHECK(bytes(1) == bytes(1));
  CHECK(bytes(1) != bytes(2));
}

}  // namespace
}  // namespace moesim::test_session_runs
