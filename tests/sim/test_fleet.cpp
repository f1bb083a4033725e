// SPDX-License-Identifier: Apache-2.0
// Several EP groups behind one router: is nothing lost, does each keep its own clock, and do queues
// behave as queues must?
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "sim/request_routing/active_experts.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_fleet {
namespace {

using test::load;
using test::refused;
using test::WithinAbs;
using test::WithinRel;

// `instances` groups of 4 GPUs on 16.
Json fleet(int instances, const Json& set = Json::object()) {
  Json json = test::tiny_experiment({{"instances", instances}});
  json.merge_patch(set);
  return json;
}

OrderedJson without_context(OrderedJson report) {
  report.erase("context");
  return report;
}

void check_all_finished(const test::Served& report) {
  for (const RequestRecord& r : report.requests) {
    REQUIRE(r.state == RequestRecord::State::finished);
    REQUIRE(r.generated == r.output_tokens);
    REQUIRE(r.arrival <= r.first_token);
    REQUIRE(r.first_token <= r.last_token);
  }
}

TEST_CASE("one instance is the same run, byte for byte, as none named") {
  Json plain = test::tiny_experiment(Json::object());
  CHECK(without_context(run(load(fleet(1))).document()).dump() ==
        without_context(run(load(plain)).document()).dump());
}

TEST_CASE("a fleet that does not fit its cluster, or its domains, is refused with what would fit") {
  CHECK(refused(fleet(4)).empty());
  CHECK_THAT(refused(fleet(5)), Catch::Contains("/instances: 5 instances of 4 GPUs take 20") &&
                                    Catch::Contains("4 fit"));
  // Groups of 3 in domains of 8: the third would lie across two nodes.
  const Json odd = {{"parallel", {{"dp", 3}, {"tp", 1}, {"ep", 3}}},
                    {"placement", {{"type", "linear"}, {"replication", 1.0}}}};
  CHECK_THAT(refused(fleet(3, odd)), Catch::Contains("domains of 8"));
  CHECK_THAT(refused(fleet(0)), Catch::Contains("/instances"));
}

TEST_CASE("two instances in turns do what each of them would do with every other request") {
  // Closed form: uniform work in a lockstep of two groups; each gets half of the requests and, with
  // half of the clients, steps as a single group does.
  const Report one = run(load(test::tiny_experiment(Json::object())));
  const Json half = {
      {"workload",
       {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 48}}}, {"requests", 240}}}};
  const test::Served two = test::serve(load(fleet(2, half)));
  check_all_finished(two);
  std::array<int, 2> requests{};
  for (const RequestRecord& r : two.requests) ++requests.at(static_cast<std::size_t>(r.instance));
  CHECK(requests == std::array{120, 120});
  const OrderedJson m1 = one.document()["metrics"];
  const OrderedJson m2 = two.document()["metrics"];
  CHECK_THAT(m2["output_throughput"].get<double>(),
             WithinRel(2 * m1["output_throughput"].get<double>(), 0.05));
  CHECK_THAT(m2["tokens_per_s_per_gpu"].get<double>(),
             WithinRel(m1["tokens_per_s_per_gpu"].get<double>(), 0.05));
  CHECK_THAT(m2["mean_tpot_ms"].get<double>(), WithinRel(m1["mean_tpot_ms"].get<double>(), 0.05));
  const OrderedJson groups = two.document()["instances"];
  REQUIRE(groups.size() == 2);
  for (const OrderedJson& group : groups) {
    CHECK_THAT(group["output_tokens"].get<double>(),
               WithinRel(one.document()["metrics"]["output_throughput"].get<double>() *
                             m2["duration_s"].get<double>(),
                         0.05));
    CHECK_THAT(group["utilization"].get<double>(), WithinAbs(1.0, 0.05));
  }
  CHECK_FALSE(one.document().contains("instances"));
}

TEST_CASE("an instance waits for nobody: a group with one request steps alone") {
  // Two requests, on two groups; one has 30 tokens, as the other. Twice alone is twice together.
  const auto requests = [](int n) {
    return Json{{"workload",
                 {{"arrivals", {{"type", "closed_loop"}, {"concurrency", n}}}, {"requests", n}}}};
  };
  // Round robin over ranks puts the first four requests on the first group.
  const test::Served eight = test::serve(load(fleet(2, requests(8))));
  std::set<std::pair<int, int>> ranks;
  for (const RequestRecord& r : eight.requests) ranks.emplace(r.instance, r.rank);
  CHECK(ranks.size() == 8);
  const test::Served four = test::serve(load(fleet(2, requests(4))));
  for (const RequestRecord& r : four.requests) CHECK(r.instance == 0);
  CHECK(four.document()["instances"][1]["steps"] == 0);
  CHECK(four.document()["instances"][0]["steps"] == 30);
}

TEST_CASE("no request is lost under any router, with cramped caches, failures and whole groups") {
  const Json events =
      Json::array({{{"gpu", 1}, {"instance", 0}, {"at", "10 ms"}, {"recovers_after", "15 ms"}},
                   {{"instance", 1}, {"at", "12 ms"}, {"recovers_after", "10 ms"}},
                   {{"instance", 2}, {"at", "15 ms"}}});
  for (const auto& entry : request_routers().entries()) {
    CAPTURE(entry.name);
    Experiment e = load(fleet(3, {{"request_routing", std::string(entry.name)},
                                  {"failures", events},
                                  {"kv_cache", {{"prefix_caching", true}}}}));
    e.decode().memory.kv_blocks = 8;  // 128 tokens: two requests of 49 and a bit
    const test::Served report = test::serve(e);
    REQUIRE(report.document()["metrics"]["completed"] == 120);
    check_all_finished(report);
    const OrderedJson failures = report.document()["failures"];
    REQUIRE(failures.size() == 3);
    CHECK(failures[1]["what"] == "instance 1");
    CHECK(failures[1]["instance"] == 1);
    CHECK(failures[1]["bytes_reloaded"] > 0.0);
    CHECK(failures[2]["recovered_at_s"].is_null());
    for (const RequestRecord& r : report.requests) {
      if (to_seconds(r.arrival).count() > 0.015) REQUIRE(r.instance != 2);
    }
  }
}

TEST_CASE("the last group may not fail, and groups are counted from 0") {
  const auto whole = [](int instance) {
    return Json{{"instance", instance}, {"at", fmt::format("{} s", instance + 1)}};
  };
  CHECK(refused(fleet(2, {{"failures", Json::array({whole(0)})}})).empty());
  CHECK_THAT(refused(fleet(2, {{"failures", Json::array({whole(0), whole(1)})}})),
             Catch::Contains("no attention rank is left"));
  CHECK_THAT(refused(fleet(2, {{"failures", Json::array({whole(2)})}})),
             Catch::Contains("/failures/0/instance"));
  CHECK_THAT(refused(fleet(1, {{"failures", Json::array({whole(0)})}})),
             Catch::Contains("no attention rank is left"));
}

// Prompts that begin alike: groups of `sharing` in a row have their first block of 512 in
// common.
std::string shared_prompts(int requests, int sharing) {
  std::string lines;
  for (int i = 0; i < requests; ++i) {
    const int prompt = i % (requests / sharing);
    lines += fmt::format(
        R"({{"timestamp": {}, "input_length": 600, "output_length": 5, "hash_ids": [{}, {}]}})"
        "\n",
        i * 10, 1000 + prompt, 3000 + i);
  }
  return lines;
}

TEST_CASE("no router hits more than the trace repeats, and who looks for prefixes hits more") {
  const test::TemporaryFile file("prompts.jsonl", shared_prompts(45, 5));
  Json set = {{"workload", {{"arrivals", {{"type", "trace"}, {"file", file.path().string()}}}}},
              {"kv_cache", {{"prefix_caching", true}}}};
  Json json = fleet(4, set);
  json["workload"].erase("lengths");
  json["workload"]["arrivals"].erase("concurrency");
  json["workload"]["requests"] = 45;
  json["scheduling"]["max_num_batched_tokens"] = 600;
  // 9 distinct prefixes of 512 tokens, 45 prompts: 36 prompts can hit 512 of 600 tokens.
  const double ideal = 36.0 * 512 / (45 * 600);
  std::map<std::string, double> rate;
  for (const char* router :
       {"round_robin", "cache_aware", "dynamo_kv", "activation_aware", "affinity"}) {
    json["request_routing"] = router;
    const OrderedJson report = run(load(json)).document();
    CHECK(report["metrics"]["completed"] == 45);
    rate[router] = report["kv"]["prefix_hit_rate"];
    CHECK(rate[router] <= ideal + 1e-12);
  }
  CHECK(rate["cache_aware"] > 2 * rate["round_robin"]);
  CHECK(rate["dynamo_kv"] > 2 * rate["round_robin"]);
}

TEST_CASE("one fixed-time server under Poisson arrivals waits as M/D/1 does") {
  // One GPU, one seat, one layer whose two experts every token takes: all prompts cost the same.
  Json json =
      test::tiny_experiment({{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
                             {"placement", {{"type", "linear"}, {"replication", 1.0}}},
                             {"scheduling", {{"max_num_batched_tokens", 32}, {"max_num_seqs", 1}}},
                             {"measurement", {{"expert_counts", false}}}});
  json["model"]["experts"] = {{"count", 2}, {"per_token", 2}, {"width", 256}};
  json["model"]["layers"] =
      Json::array({{{"repeat", 1}, {"pattern", Json::array({{{"ffn", "moe"}}})}}});
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 8}, {"output", 1}};
  json["workload"]["gating"] = {
      {"type", "uniform"}, {"requests", 4}, {"prompt_rows", 8}, {"decode_rows", 1}};
  json["workload"]["requests"] = 1;
  const double service = run(load(json)).document()["metrics"]["mean_ttft_ms"].get<double>() / 1e3;
  constexpr double load_factor = 0.5;
  json["workload"]["arrivals"] = {{"type", "poisson"},
                                  {"rate", fmt::format("{:.17g} /s", load_factor / service)}};
  json["workload"]["requests"] = 60000;
  const OrderedJson metrics = run(load(json)).document()["metrics"];
  const double waiting = metrics["mean_ttft_ms"].get<double>() / 1e3 - service;
  // rho D / (2 (1 - rho))
  CHECK_THAT(waiting, WithinRel(load_factor * service / (2 * (1 - load_factor)), 0.02));
}

TEST_CASE("arrivals far beyond capacity end with the last request") {
  const Json flood = {
      {"workload",
       {{"arrivals", {{"type", "poisson"}, {"rate", "1000000 /s"}}}, {"requests", 200}}}};
  Json json = fleet(2, flood);
  json["workload"]["arrivals"].erase("concurrency");
  const test::Served report = test::serve(load(json));
  check_all_finished(report);
  CHECK(report.document()["metrics"]["completed"] == 200);
}

TEST_CASE("zero requests are refused in a sentence") {
  CHECK_THAT(refused(fleet(2, {{"workload", {{"requests", 0}}}})),
             Catch::Contains("/workload/requests"));
}

TEST_CASE("experts that a group reads already count less, by hand") {
  // 1 layer, 4 experts, of which a token takes one of two: p = 1/2.
  ActiveExperts active(2, 1, 4);
  const std::vector<LikelyExpert> profile{{0, .5F}, {1, .5F}}, other{{1, .5F}, {2, .5F}};
  CHECK_THAT(active.expected_new(0, profile), WithinRel(1.0, 1e-12));
  active.add(7, 0, profile);
  CHECK_THAT(active.expected(0), WithinRel(1.0, 1e-12));
  // Expert 0 and 1 are read with 1/2 each: new is 1/2 1/2 + 1/2 1/2.
  CHECK_THAT(active.expected_new(0, profile), WithinRel(0.5, 1e-12));
  CHECK_THAT(active.expected_new(0, other), WithinRel(0.75, 1e-12));
  CHECK_THAT(active.expected_new(1, profile), WithinRel(1.0, 1e-12));
  active.add(8, 0, other);
  CHECK_THAT(active.expected_new(0, profile), WithinRel(0.25 + 0.125, 1e-12));
  // 1/2 + 3/4 + 1/2
  CHECK_THAT(active.expected(0), WithinRel(1.75, 1e-12));
  CHECK(active.expected(1) == 0);
  active.remove(7);
  CHECK_THAT(active.expected(0), WithinRel(1.0, 1e-12));
  active.remove(8);
  active.remove(9);  // never came
  CHECK_THAT(active.expected_new(0, profile), WithinRel(1.0, 1e-12));
  CHECK_THAT(active.expected(0), WithinAbs(0.0, 1e-12));
}

TEST_CASE("activation_aware joins its topic's group when both are as large, else the smaller one") {
  RouterContext context;
  context.ranks = context.groups = 2;
  context.kv_token_s = 1e-9;
  context.expert_read_s = 1e-6;
  const auto router = request_routers().make(test::config(R"("activation_aware")"), context)();
  const auto pick = [&](const std::vector<double>& experts_read) {
    std::vector<RankLoad> ranks(2);
    ranks[0].kv_tokens = 1000;
    ranks[1].kv_tokens = 900;
    ranks[1].rank = ranks[1].group = 1;
    PendingRequest request;
    request.prompt_tokens = 100;
    request.experts_read = experts_read;
    std::vector<Assignment> assignments;
    router->route({{}, {&request, 1}, ranks, 0, {}}, assignments);
    return assignments.at(0).rank;
  };
  // Of the topic of group 0, which then reads 50 experts; group 1 would read 58 or 40.
  CHECK(pick({50, 58}) == 0);
  CHECK(pick({50, 40}) == 1);
}

TEST_CASE(
    "affinity goes to its like while their group is little larger, there to the shortest queue") {
  const auto pick = [](std::vector<std::int64_t> running, const std::vector<double>& added) {
    std::vector<RankLoad> ranks(running.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].rank = static_cast<std::int32_t>(i);
      ranks[i].group = static_cast<std::int32_t>(i / 2);
      ranks[i].running = running[i];
    }
    PendingRequest request;
    request.experts_added = added;
    std::vector<Assignment> assignments;
    const auto router = request_routers().make(
        test::config(R"({"type": "affinity", "slack": 0.25})"), RouterContext{})();
    router->route({{}, {&request, 1}, ranks, 0, {}}, assignments);
    return assignments.at(0).rank;
  };
  // Groups of 5 and 4 requests, mean 4.5: the larger may have 1.125 more.
  CHECK(pick({3, 2, 2, 2}, {1, 1, 9, 9}) == 1);
  CHECK(pick({3, 2, 2, 2}, {9, 9, 1, 1}) == 2);
  // 6 and 4: 2 more are too many.
  CHECK(pick({3, 3, 2, 2}, {1, 1, 9, 9}) == 2);
  // As many new experts on both: the smaller group.
  CHECK(pick({3, 2, 1, 3}, {5, 5, 5, 5}) == 2);
}

}  // namespace
}  // namespace moesim::test_fleet
