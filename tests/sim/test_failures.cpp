// SPDX-License-Identifier: Apache-2.0
// When GPUs stop, is nothing lost but what the report says?
#include <numeric>

#include "sim/placement/live_ranks.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_failures {
namespace {

using test::config_error;
using test::WithinRel;

Json experiment(const Json& failures) {
  return test::tiny_experiment({{"placement", {{"type", "eplb_distinct"}}},
                                {"token_routing", {{"decode", "vllm"}}},
                                {"request_routing", "least_kv"},
                                {"failures", failures}});
}

Experiment load(const Json& failures) {
  TraceLibrary traces;
  return load_experiment(
      ConfigNode(experiment(failures), test::source_dir() / "tests" / "failures.json"), traces);
}

std::string refused(const Json& failures) {
  return config_error([&] { load(failures); });
}

TEST_CASE("survivors keep their slots, a lost expert takes the last slot of the most copied one") {
  // GPU 2 goes, and with it the only copies of 4 and 5. Expert 0 has three copies left, 1 has two.
  const LayerPlacement map(6, {{0, 1, 2}, {3, 0, 1}, {4, 5, 2}, {0, 1, 3}});
  const std::vector<char> live{1, 1, 0, 1};
  // 4 takes 0's slot on GPU 3; then 0, 1 and 3 have 2, 3 and 2 copies: 5 takes 1's on GPU 3.
  CHECK(on_survivors(map, live) == LayerPlacement(6, {{0, 1, 2}, {3, 0, 1}, {}, {4, 5, 3}}));
  const std::vector<char> all(4, 1);
  CHECK(on_survivors(map, all) == map);
}

TEST_CASE("failures that leave nothing to serve with are refused") {
  CHECK(refused(Json::array()).empty());
  CHECK_THAT(refused(Json::array({{{"gpu", 4}, {"at", "1 s"}}})), Catch::Contains("gpu"));
  CHECK_THAT(refused(Json::array({{{"node", 0}, {"at", "1 s"}}})),
             Catch::Contains("no attention rank is left"));
  // 2 GPUs with 6 slots each cannot hold 16 experts: twice as many slots as experts would do.
  CHECK_THAT(refused(Json::array({{{"gpu", 0}, {"at", "1 s"}}, {{"gpu", 1}, {"at", "2 s"}}})),
             Catch::Contains("12 slots left for 16 experts") && Catch::Contains("at least 2"));
  // One after the other is fine.
  CHECK(refused(Json::array({{{"gpu", 0}, {"at", "1 s"}, {"recovers_after", "1 s"}},
                             {{"gpu", 1}, {"at", "2 s"}}}))
            .empty());
  CHECK_THAT(refused(Json::array({{{"gpu", 0}, {"at", "1 s"}}, {{"gpu", 0}, {"at", "2 s"}}})),
             Catch::Contains("down already"));
  CHECK_THAT(refused({{"events", Json::array()}, {"placement", "linear"}}),
             Catch::Contains("does not use the observed"));
  CHECK_THAT(refused({{"events", Json::array()}, {"reload_bandwidth", "0 GB/s"}}),
             Catch::Contains("/failures/reload_bandwidth: must be more than zero"));
}

TEST_CASE("failures of a pipeline are refused before any GPU of it is looked up") {
  Json json = experiment(Json::array({{{"gpu", 2}, {"at", "1 s"}}}));
  json["parallel"] = {{"dp", 1}, {"tp", 1}, {"ep", 1}, {"pp", 3}};
  json["placement"] = "linear";
  TraceLibrary traces;
  const ConfigNode config(json, test::source_dir() / "tests" / "failures.json");
  CHECK_THAT(config_error([&] { load_experiment(config, traces); }),
             Catch::Contains("/failures: failures are not modelled with pp 3"));
}

TEST_CASE("a rank that stops computes nothing, and its experts are served elsewhere") {
  const Experiment e = load(Json::array({{{"gpu", 2}, {"at", "1 s"}}}));
  RowSource rows(e.decode().trace, e.decode().prefill_trace, e.decode().bind_odd_only,
                 e.decode().seed);
  Requests requests;
  Instance instance(e.decode(), rows, requests);
  for (std::uint32_t id = 0; id < 16; ++id) {
    RequestRecord& r = requests.add();
    r.prompt_tokens = 10;
    r.output_tokens = 5;
    r.binding = rows.bind();
  }
  for (std::uint32_t id = 0; id < 16; ++id) instance.submit(id, id % 4);
  Time now{};
  const auto step = [&] {
    const auto length = instance.begin_step(now);
    if (length) now += to_duration(*length);
    return length.has_value();
  };
  REQUIRE(step());
  instance.end_step(now);
  REQUIRE(step());  // in flight when the GPU stops: no request gets a token of it
  const Instance::Stopped stopped = instance.fail(e.decode().failures.outages[0], now);
  CHECK(stopped.requests == std::vector<std::uint32_t>{2, 6, 10, 14});
  CHECK(instance.outages().front().tokens_lost == 4 * 10);
  CHECK(instance.outages().front().step_lost.count() > 0);
  for (std::uint32_t id = 0; id < 16; ++id) CHECK(requests[id].generated == 1);
  std::vector<RankLoad> loads;
  instance.loads(false, loads);
  CHECK(loads.size() == 3);
  CHECK(loads[2].rank == 3);  // the third that is up
  for (const std::uint32_t id : stopped.requests) instance.submit(id, 3);
  while (step()) {
    CHECK(instance.batch().ranks[2].tokens == 0);
    std::int64_t tokens = 0;
    for (const RankStep& rank : instance.batch().ranks) tokens += rank.tokens;
    for (const LayerOutcome& layer : instance.cost().layers) {
      REQUIRE(layer.load.tokens[2] == 0);
      REQUIRE(std::accumulate(layer.load.tokens.begin(), layer.load.tokens.end(), 0) ==
              tokens * e.decode().model.experts_per_token);
    }
    instance.end_step(now);
  }
  for (std::uint32_t id = 0; id < 16; ++id) {
    CHECK(requests[id].state == RequestRecord::State::finished);
    CHECK(requests[id].generated == 5);
  }
  CHECK(instance.used_blocks() == 0);
}

TEST_CASE(
    "every request finishes through failures and returns, and the report says what was lost") {
  const Json events = Json::array(
      {{{"gpu", 1}, {"at", "10 ms"}, {"recovers_after", "15 ms"}}, {{"gpu", 3}, {"at", "30 ms"}}});
  for (const Json& failures :
       {Json(events), Json{{"events", events}, {"placement", "eplb"}, {"detection", "2 ms"}}}) {
    CAPTURE(failures.dump());
    const test::Served report = test::serve(load(failures));
    CHECK(report.document()["metrics"]["completed"] == 120);
    for (const RequestRecord& r : report.requests) REQUIRE(r.generated == r.output_tokens);
    const OrderedJson out = report.document()["failures"];
    REQUIRE(out.size() == 2);
    CHECK(out[0]["what"] == "GPU 1");
    CHECK(out[0]["at_s"] == 0.01);
    CHECK(out[0]["requests_moved"] > 0);
    CHECK(out[0]["kv_tokens_lost"] > 0);
    CHECK(out[0]["recovered_at_s"] >= 0.025);
    CHECK(out[0]["bytes_moved_back"] > 0.0);
    CHECK(out[1]["recovered_at_s"].is_null());
    const double detection = failures.is_array() ? 0 : 2e-3;
    for (const auto& outage : out) CHECK(outage["stopped_seconds"] >= detection);
    const double busy = report.document()["breakdown"]["busy_seconds"];
    CHECK(busy < report.document()["metrics"]["duration_s"]);
    CHECK(run(load(failures)).document().dump() == report.document().dump());
  }
}

TEST_CASE("without a copy left experts come from outside, at the rate that was given") {
  // No replica at all of most experts: those of GPU 1 are lost.
  Json json = experiment(Json{{"events", Json::array({{{"gpu", 1}, {"at", "10 ms"}}})},
                              {"reload_bandwidth", "1 MB/s"}});
  json["placement"] = {{"type", "flat"}, {"replication", 1.5}};
  TraceLibrary traces;
  const Experiment e =
      load_experiment(ConfigNode(json, test::source_dir() / "tests/failures.json"), traces);
  const OrderedJson outage = run(e).document()["failures"][0];
  REQUIRE(outage["experts_lost"] > 0);
  const double w =
      expert_bytes(e.decode().model, e.decode().parallel, e.decode().precision).value();
  const double lost = outage["experts_lost"];
  CHECK_THAT(outage["bytes_reloaded"].get<double>(), WithinRel(lost * w, 1e-12));
  // Three GPUs load side by side: at best a third of it each.
  CHECK(outage["stopped_seconds"].get<double>() >= lost * w / 3 / 1e6);
}

TEST_CASE("an outage after the last request changes nothing") {
  OrderedJson before = run(load(Json::array())).document();
  OrderedJson after = run(load(Json::array({{{"gpu", 1}, {"at", "1000 s"}}}))).document();
  for (OrderedJson* report : {&before, &after}) report->erase("context");
  CHECK(before.dump() == after.dump());
}

TEST_CASE("periodic rebalancing places over the ranks that are up") {
  Json json = experiment(Json::array({{{"gpu", 1}, {"at", "10 ms"}}}));
  json["rebalancing"] = {{"type", "eplb_periodic"}, {"step_interval", 20}, {"window_size", 50}};
  TraceLibrary traces;
  const Experiment e =
      load_experiment(ConfigNode(json, test::source_dir() / "tests/failures.json"), traces);
  const OrderedJson report = run(e).document();
  CHECK(report["metrics"]["completed"] == 120);
  CHECK(report["rebalancing"]["count"] > 1);
}

// Sends requests to the ranks in turn, but keeps the last of several back until time has passed;
// notes when published counts were those that stand.
class KeepsOneBack final : public RequestRouter {
 public:
  inline static std::vector<std::pair<Time, bool>> notes{};  // of the last run; makers hold nothing
  KeepsOneBack() { notes.clear(); }
  RouterNeeds needs() const override {
    RouterNeeds needs;
    needs.window = 1000;
    needs.statistics_interval = Duration(1);
    return needs;
  }
  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    const bool asked_again = !notes.empty() && notes.back().first == state.now;
    notes.emplace_back(state.now, std::ranges::all_of(state.ranks, [](const RankLoad& rank) {
                         return rank.published_waiting == rank.waiting &&
                                rank.published_running == rank.running;
                       }));
    const std::size_t kept = state.pending.size() > 1 || asked_again ? 1 : 0;
    for (std::size_t i = 0; i + kept < state.pending.size(); ++i) {
      assignments.push_back({i, state.ranks[i % state.ranks.size()].rank, 0});
    }
  }
};

TEST_CASE(
    "statistics are published before an engine goes on after an outage, as before any event") {
  Policies policies;
  policies.request_routing.add({"keeps_one_back", "for this test",
                                [](ConfigReader&, const RouterContext&) -> RequestRouterFactory {
                                  return [] { return std::make_unique<KeepsOneBack>(); };
                                }});
  Json json = experiment(Json::array({{{"gpu", 1}, {"at", "10 ms"}}}));
  json["request_routing"] = "keeps_one_back";
  TraceLibrary traces;
  const Experiment e = load_experiment(
      ConfigNode(json, test::source_dir() / "tests" / "failures.json"), traces, policies);
  const Report report = run(e);
  REQUIRE(report.pool.failures.at(0).outage.requests > 1);
  // The first call after that of the outage: the engine is ready again, with all but one of the
  // requests that moved waiting where they were sent.
  const auto& notes = KeepsOneBack::notes;
  const auto ready = std::ranges::find_if(
      notes, [](const auto& note) { return to_seconds(note.first) > Seconds(10e-3); });
  REQUIRE(ready != notes.end());
  CHECK(ready->second);
}

}  // namespace
}  // namespace moesim::test_failures
