// SPDX-License-Identifier: Apache-2.0
// Does plan measure sessions as it says, and find the most that keep their limits?
#include <cmath>

#include <fmt/format.h>

#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/plan/session_plan.hpp"
#include "tools/policies/request_info.hpp"
#include "tools/run/run_csv.hpp"
#include "tools/sweep/axes.hpp"

namespace moesim::test_session_plan {

namespace {

using test::load;
using test::source_dir;
using test::TemporaryFile;
using test::tiny_experiment;

// Turns of a session: 1,000 tokens, then 200 more each time, 100 out, 2 s apart.
Json four_turns() {
  return {{"type", "generated"}, {"turns", 4},    {"first", 1000},
          {"new", 200},          {"output", 100}, {"gap", "2 s"}};
}

Json with_sessions(const Json& sessions, int clients, std::int64_t requests) {
  Json config = tiny_experiment(
      {{"workload",
        {{"arrivals", {{"concurrency", clients}}}, {"sessions", sessions}, {"requests", requests}}},
       {"scheduling", {{"max_num_batched_tokens", 2048}}},
       {"kv_cache", {{"prefix_caching", true}}},
       {"request_routing", "sticky"}});
  config["workload"].erase("lengths");
  return config;
}

// A search for the most sessions at a time on 4 and on 2 ranks.
SloSearch small_search() {
  SloSearch search;
  search.base_file = source_dir() / "tests" / "tiny.json";
  Json config = with_sessions({{"type", "generated"},
                               {"turns", 6},
                               {"first", 400},
                               {"new", 60},
                               {"output", 30},
                               {"gap", "1 ms"}},
                              8, 600);
  config["measurement"]["warmup"] = .2;
  config["slo"] = {{"tpot", "1 s"}};
  search.places = {config, config};
  search.places[1]["parallel"] = {{"dp", 2}, {"tp", 1}, {"ep", 2}};
  search.document = {{"base", config}, {"axes", Json::object()}};
  search.sessions = true;
  search.ladder = session_ladder(200, 1.05);
  return search;
}

SloResult find(const SloSearch& search) {
  TraceLibrary traces;
  Remarks remarks;
  return search_slo(search, traces, remarks, {});
}

Report run_with(const Json& place, std::int64_t sessions) {
  Json config = place;
  config[Json::json_pointer(lanes_pointer)] = sessions;
  return run(load(config));
}

}  // namespace

TEST_CASE("the means of turns are those of the sessions by hand") {
  const TurnMeans means = turn_means(load(with_sessions(four_turns(), 64, 4096)));
  // Prompts of 1,000, 1,300, 1,600, 1,900. All but the last token of a reply has been computed.
  CHECK(means.prompt == Approx(1450));
  CHECK(means.output == Approx(100));
  CHECK(means.computed == Approx((1000 + 3 * 201) / 4.));
  CHECK(means.turns == Approx(4));
  // Three pauses of 2 s in four turns.
  CHECK(means.gap == Approx(1.5));
}

TEST_CASE("sessions that reach the longest context, and turns beyond it, are counted and told") {
  Json config = with_sessions(four_turns(), 64, 4096);
  CHECK(too_long_text(turn_means(load(config)), load(config).decode()).empty());
  // 1,000 and 1,300 fit with their outputs, 1,600 does not: every session ends after two turns.
  config["max_model_len"] = 1500;
  const Experiment two = load(config);
  const TurnMeans means = turn_means(two);
  CHECK(means.turns == Approx(2));
  CHECK(means.prompt == Approx(1150));
  CHECK(means.rejected == 0);
  CHECK(means.too_long >= means.sessions - 64);
  CHECK(std::abs(means.sessions - means.served / 2) <= 64);
  CHECK_THAT(too_long_text(means, two.decode()),
             Catch::Matchers::Contains(fmt::format("Of {} sampled sessions {} reach 1500 tokens",
                                                   means.sessions, means.too_long)) &&
                 Catch::Matchers::Contains("end there"));
  // Half of the first prompts are above the median, and too long.
  config["workload"]["sessions"]["first"] = {{"median", 1400}, {"sigma", 1}};
  const Experiment half = load(config);
  const TurnMeans of_half = turn_means(half);
  CHECK(double(of_half.rejected) / double(of_half.sessions) == Approx(.5).margin(.05));
  CHECK_THAT(too_long_text(of_half, half.decode()),
             Catch::Matchers::Contains(
                 fmt::format("{} are rejected: the model takes 1500", of_half.rejected)));
  config["workload"]["sessions"]["first"] = 1501;
  const TurnMeans none = turn_means(load(config));
  CHECK(none.served == 0);
  CHECK(none.rejected == 4096);
}

TEST_CASE("a run says how many sessions reached the longest context") {
  Json config = with_sessions(four_turns(), 8, 200);
  CHECK(!run(load(config)).document()["sessions"].contains("too_long"));
  config["max_model_len"] = 1500;
  const OrderedJson sessions = run(load(config)).document()["sessions"];
  CHECK(sessions["too_long"].get<int>() >= sessions["finished"].get<int>());
  CHECK(sessions["finished"].get<int>() > 80);
}

TEST_CASE("requests that a run wrote are replayed with their classes and their hits") {
  Json sessions = four_turns();
  sessions["shared_prefix"] = 300;
  Json config = with_sessions(sessions, 1, 40);
  const auto hits_of = [](const test::Served& run) {
    std::vector<std::pair<std::uint32_t, std::int32_t>> hits;
    for (const RequestRecord& request : run.requests)
      hits.emplace_back(request.of_class, request.cached_tokens);
    return hits;
  };
  config["workload"]["classes"] = {{{"name", "a,b"}, {"share", .5}},
                                   {{"name", "=1+1"}, {"share", .3}},
                                   {{"name", " x "}, {"share", .2}}};
  const Experiment drawn = load(config);
  const test::Served first = test::serve(drawn);
  const test::TemporaryFile file("requests.csv",
                                 requests_csv(first.requests, drawn.decode().classes, 0, 300));
  config["workload"]["sessions"] = {
      {"type", "recorded"}, {"file", file.path().string()}, {"reuse_output", true}};
  for (Json& of_class : config["workload"]["classes"]) of_class.erase("share");
  const test::Served again = test::serve(load(config));
  CHECK(hits_of(again) == hits_of(first));
  CHECK(first.requests.at(4).cached_tokens > 0);  // of the second session's first turn
}

TEST_CASE("a ladder of sessions has whole numbers, each no nearer to the next than it is asked") {
  const RateLadder ladder = session_ladder(300, 1.05);
  CHECK(ladder.rate(0) == 1);
  CHECK(ladder.rate(1) == 2);
  for (int rung = 1; rung < ladder.size(); ++rung) {
    const double below = ladder.rate(rung - 1), here = ladder.rate(rung);
    CHECK(here == std::round(here));
    CHECK(here >= below + 1);
    CHECK(here <= std::max(below + 1, std::round(1.05 * below)));
  }
  CHECK(ladder.rate(ladder.size() - 1) <= 300);
  CHECK(ladder.rate(ladder.size() - 1) * 1.05 > 299);
}

TEST_CASE("more GPUs, a cheaper prompt and a longer pause each leave room for more sessions") {
  const auto estimate = [](const Json& changes) {
    Json config = with_sessions(four_turns(), 64, 4096);
    config.merge_patch(changes);
    const Experiment e = load(config);
    return estimate_sessions(e, turn_means(e)).goodput;
  };
  const double usual = estimate(Json::object());
  CHECK(usual > 1);
  CHECK(estimate({{"instances", 2}}) == Approx(2 * usual).epsilon(.02));
  CHECK(estimate({{"workload", {{"sessions", {{"first", 4000}}}}}}) < usual);
  CHECK(estimate({{"workload", {{"sessions", {{"gap", "4 s"}}}}}}) > 1.2 * usual);
  CHECK(estimate({{"slo", {{"tpot", "1 us"}}}}) == 0);
}

TEST_CASE("the most sessions keep the limit on later turns, and the next load misses it") {
  SloSearch search = small_search();
  const double usual = run_with(search.places[0], 8).turns->later->ttft.p90;
  search.session_limits.later_ttft = Seconds(3e-3 * usual);
  const SloResult result = find(search);
  REQUIRE(!result.found.empty());
  for (const SloRun& best : {result.found.front()}) {
    const auto sessions = static_cast<std::int64_t>(best.per_second());
    CHECK(best.rate == fmt::format("{} sessions", sessions));
    CHECK(best.config.at(Json::json_pointer(lanes_pointer)) == sessions);
    CHECK(run_with(best.config, sessions).turns->later->ttft.p90 <= 3 * usual);
    const int next = search.ladder->above(best.per_second());
    const auto more = static_cast<std::int64_t>(search.ladder->rate(next));
    CHECK(run_with(best.config, more).turns->later->ttft.p90 > 3 * usual);
    // Goodput counts sessions, by the turns that keep the SLO.
    CHECK(best.trial.goodput == Approx(double(sessions) * best.trial.attainment));
  }
}

TEST_CASE("a limit on whole sessions binds too, and what cannot be kept is told") {
  SloSearch search = small_search();
  const double usual = run_with(search.places[0], 8).sessions->completion.p90;
  search.session_limits.completion = Seconds(1.5 * usual);
  const SloResult some = find(search);
  REQUIRE(!some.found.empty());
  search.session_limits.completion = Seconds(3 * usual);
  const SloResult more = find(search);
  REQUIRE(!more.found.empty());
  CHECK(more.found.front().per_second() > some.found.front().per_second());
  search.session_limits.completion = Seconds(1e-9);
  const SloResult none = find(search);
  CHECK(none.found.empty());
  REQUIRE(!none.nearest.empty());
  CHECK(none.nearest.front().trial.excess > 1e6);
}

TEST_CASE("sessions of --sessions: a preset, what workload/sessions has, or an error with names") {
  CHECK(sessions_of_option("codex") == Json{{"type", "codex"}});
  CHECK_THROWS_WITH(sessions_of_option("codexx"), Catch::Matchers::Contains("codex"));
  const Json deployment = session_deployment(
      {{"workload", {{"lengths", {{"type", "fixed"}}}}}, {"measurement", Json::object()}},
      {{"type", "chat"}});
  CHECK(!deployment.at("workload").contains("lengths"));
  CHECK(find_value(deployment, "/workload/sessions/start_at")->get<std::string>() == "uniform");
  CHECK(find_value(deployment, "/kv_cache/prefix_caching")->get<bool>());
}

TEST_CASE("a key without a value says as little as no key") {
  const std::string row = R"({"session_id": "a", "input_length": 600, "output_length": 5)";
  const TemporaryFile bare("sessions.jsonl", row + "}\n" + row + R"(, "delay": 5})"),
      nulls("sessions.jsonl",
            row + R"(, "timestamp": null, "delay": null, "hash_ids": null, "class": null})" + "\n" +
                row + R"(, "timestamp": null, "delay": 5})");
  CHECK(request_info(nulls.path(), 512) == request_info(bare.path(), 512));
}

TEST_CASE("reuse is counted in the blocks that a file's ids have") {
  const std::string row =
      R"({"timestamp": 1, "input_length": 192, "output_length": 3, "hash_ids": )";
  const TemporaryFile file("requests.jsonl", row + "[1, 2, 3]}\n" + row + "[1, 2, 4]}");
  const Json reuse = request_info(file.path(), 512).at("reuse");
  CHECK(reuse.at("block_tokens") == 64);
  CHECK(reuse.at("lru").at(0).at("hit_rate") == reuse.at("ideal_hit_rate"));
  CHECK(std::abs(reuse.at("ideal_hit_rate").get<double>() - 1.0 / 3) < 1e-12);
}

}  // namespace moesim::test_session_plan
