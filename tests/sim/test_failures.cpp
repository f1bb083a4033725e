// SPDX-License-Identifier: Apache-2.0
// When GPUs stop, is nothing lost but what the report says?
#include <numeric>

#include <fmt/format.h>

#include "sim/placement/live_ranks.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_failures {
namespace {

using test::config_error;
using test::WithinAbs;
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

struct Asked {
  std::uint32_t requests;
  std::int32_t prompt, output;
};

// Requests alike, on four ranks in turn.
void submit(Instance& instance, Requests& requests, RowSource& rows, const Asked& asked) {
  for (std::uint32_t id = 0; id < asked.requests; ++id) {
    RequestRecord& r = requests.add();
    r.prompt_tokens = asked.prompt;
    r.output_tokens = asked.output;
    r.binding = rows.bind();
  }
  for (std::uint32_t id = 0; id < asked.requests; ++id) instance.submit(id, id % 4);
}

TEST_CASE("survivors keep their slots, a lost expert takes the last slot of the most copied one") {
  // GPU 2 goes, and with it the only copies of 4 and 5. Expert 0 has three copies left, 1 has two.
  const LayerPlacement map(6, {{0, 1, 2}, {3, 0, 1}, {4, 5, 2}, {0, 1, 3}});
  const std::vector<char> live{1, 1, 0, 1};
  // 4 takes 0's slot on GPU 3; then 0, 1 and 3 have 2, 3 and 2 copies: 5 takes 1's on GPU 3.
  CHECK(on_survivors({map}, live) ==
        ExpertPlacement{LayerPlacement(6, {{0, 1, 2}, {3, 0, 1}, {}, {4, 5, 3}})});
  const std::vector<char> all(4, 1);
  CHECK(on_survivors({map}, all) == ExpertPlacement{map});
}

TEST_CASE("without copies lost experts take further slots, on the ranks that have fewest") {
  const LayerPlacement map(6, {{0, 1}, {2, 3}, {4, 5}});
  const LayerPlacement uneven(5, {{0, 1}, {2}, {3, 4}});
  const std::vector<char> live{1, 1, 0};
  CHECK(on_survivors({map, uneven}, live) ==
        ExpertPlacement{LayerPlacement(6, {{0, 1, 4}, {2, 3, 5}, {}}),
                        LayerPlacement(5, {{0, 1, 4}, {2, 3}, {}})});
  // One more on each of two ranks that have two; a layer later, the other one goes first.
  const LayerPlacement odd(5, {{0, 1}, {2, 3}, {4}});
  CHECK(on_survivors({odd, odd}, live) ==
        ExpertPlacement{LayerPlacement(5, {{0, 1, 4}, {2, 3}, {}}),
                        LayerPlacement(5, {{0, 1}, {2, 3, 4}, {}})});
}

TEST_CASE("failures that leave nothing to serve with are refused") {
  CHECK(refused(Json::array()).empty());
  CHECK_THAT(refused(Json::array({{{"gpu", 4}, {"at", "1 s"}}})), Catch::Contains("gpu"));
  CHECK_THAT(refused(Json::array({{{"node", 0}, {"at", "1 s"}}})),
             Catch::Contains("no attention rank is left"));
  // Two GPUs with 6 slots each hold 16 experts only if they give up KV blocks.
  CHECK(refused(Json::array({{{"gpu", 0}, {"at", "1 s"}}, {{"gpu", 1}, {"at", "2 s"}}})).empty());
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

TEST_CASE("an instance with nothing to do stays as it is until something changes") {
  const Experiment e = load(Json::array({{{"gpu", 2}, {"at", "1 s"}}}));
  RowSource rows(e.decode().trace, e.decode().prefill_trace, e.decode().bind_odd_only,
                 e.decode().seed);
  Requests requests;
  Instance instance(e.decode(), rows, requests);
  REQUIRE_FALSE(instance.begin_step(Time{}));
  const std::int64_t changes = instance.changes();
  REQUIRE_FALSE(instance.begin_step(Time{} + to_duration(Seconds(1))));
  CHECK(instance.changes() == changes);
  submit(instance, requests, rows, {.requests = 1, .prompt = 10, .output = 1});
  Time now{};
  const auto length = instance.begin_step(now);
  REQUIRE(length);
  now += to_duration(*length);
  CHECK(instance.end_step(now).milestones.size() == 1);
  CHECK_FALSE(instance.begin_step(now));
  // An outage is a change, whatever the instance does.
  instance.fail(e.decode().failures.outages[0], now);
  const std::int64_t after = instance.changes();
  CHECK_FALSE(instance.begin_step(now));
  CHECK(instance.changes() > after);
}

TEST_CASE("a rank that stops computes nothing, and its experts are served elsewhere") {
  const Experiment e = load(Json::array({{{"gpu", 2}, {"at", "1 s"}}}));
  RowSource rows(e.decode().trace, e.decode().prefill_trace, e.decode().bind_odd_only,
                 e.decode().seed);
  Requests requests;
  Instance instance(e.decode(), rows, requests);
  submit(instance, requests, rows, {.requests = 16, .prompt = 10, .output = 5});
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

// Of 16 experts 4 on each of 4 GPUs, and memory for a KV cache of so many blocks, or none more.
Json without_copies(const Json& failures, const Json& set = Json::object()) {
  Json json = experiment(failures);
  json["placement"] = {{"type", "linear"}, {"replication", 1.0}};
  json["token_routing"]["decode"] = "even";
  json.merge_patch(set);
  return json;
}

// On GPUs whose memory has room for so many KV blocks.
Experiment with_kv_blocks(const Json& json, std::int64_t blocks) {
  Experiment e = test::load(json);
  MemoryBudget& memory = e.pools.front().memory;
  memory.kv_blocks = blocks;
  memory.kv = e.decode().kv_layout.block * (double(blocks) + .5);
  memory.usable = memory.weights + memory.experts + memory.replicas + memory.buffers + memory.kv;
  return e;
}

// An expert has 3 x 512 x 256 weights of 2 B. Three GPUs need ceil(16 / 3) = 6 slots in each of 3
// layers, two more than they have: 6 x 0.75 MiB of each GPU. A KV block has 16 tokens of 3
// layers, 2 x 4 heads of 64 elements of 2 B: 48 KiB. So each rank gives up 96 blocks.
constexpr std::int64_t given_up = 96;

TEST_CASE("experts without room take KV blocks of the ranks that are up, until the GPU is back") {
  const bool prefixes = GENERATE(false, true);
  const Json json = without_copies(Json::array({{{"gpu", 2}, {"at", "1 s"}}}),
                                   {{"kv_cache", {{"prefix_caching", prefixes}}}});
  const Experiment e = with_kv_blocks(json, given_up + 6);
  const MemoryBudget& memory = e.decode().memory;
  const Bytes expert = expert_bytes(e.decode().model, e.decode().parallel, e.decode().precision);
  RowSource rows(e.decode().trace, e.decode().prefill_trace, e.decode().bind_odd_only,
                 e.decode().seed);
  Requests requests;
  Instance instance(e.decode(), rows, requests);
  const auto rank_blocks = [&] {
    std::vector<RankLoad> loads;
    instance.loads(false, loads);
    std::vector<std::int64_t> blocks;
    for (const RankLoad& load : loads) blocks.push_back(load.total_blocks);
    return blocks;
  };
  // What a GPU holds: everything but KV and experts, its slots of all layers, its KV blocks.
  const auto sums_up = [&](int slots) {
    for (int gpu = 0; gpu < 4; ++gpu) {
      std::int64_t held = 0;
      for (const LayerPlacement& layer : instance.placement())
        held += layer.first_slot(gpu + 1) - layer.first_slot(gpu);
      CHECK(held <= 3 * slots);
    }
    for (const std::int64_t blocks : rank_blocks()) {
      const Bytes all = memory.weights + memory.buffers + expert * (3.0 * slots) +
                        e.decode().kv_layout.block * double(blocks);
      CHECK(all <= memory.usable);
      CHECK(all + e.decode().kv_layout.block > memory.usable);
    }
  };
  sums_up(4);
  // Three requests of 2 blocks on each rank: 6 of 102.
  submit(instance, requests, rows, {.requests = 12, .prompt = 20, .output = 20});
  Time now{};
  const auto step = [&] {
    const auto length = instance.begin_step(now);
    if (!length) return false;
    now += to_duration(*length);
    instance.end_step(now);
    return true;
  };
  for (int i = 0; i < 14; ++i) REQUIRE(step());  // 33 tokens: 3 blocks each
  const Instance::Stopped stopped = instance.fail(e.decode().failures.outages[0], now);
  CHECK(rank_blocks() == std::vector<std::int64_t>(3, 6));
  sums_up(6);
  const OutageRecord record = instance.outages().front();
  CHECK(record.experts_lost == 3 * 4);
  CHECK(record.kv_blocks == 3 * given_up);
  CHECK(record.preempted == 3);  // the last of each rank, which holds 3 blocks of 9
  CHECK(record.reloaded == expert * 12.0);
  // Ranks take turns over the layers: 4 experts each, of which a rank loads 3.1 MB in a row.
  CHECK_THAT(stopped.time.count(),
             WithinRel((expert * 4.0 / e.decode().failures.reload).count(), 1e-9));
  RequestRecord largest{};
  largest.prompt_tokens = 96;
  largest.output_tokens = 1;
  CHECK(instance.can_ever_hold(largest));
  largest.prompt_tokens = 97;
  CHECK_FALSE(instance.can_ever_hold(largest));
  for (const std::uint32_t id : stopped.requests) instance.submit(id, id % 2);
  for (int i = 0; i < 5; ++i) REQUIRE(step());
  instance.recover(e.decode().failures.outages[0], now);
  CHECK(rank_blocks() == std::vector<std::int64_t>(4, given_up + 6));
  CHECK(instance.placement() == e.decode().placement);
  sums_up(4);
  CHECK(instance.can_ever_hold(largest));
  while (step()) continue;
  for (std::uint32_t id = 0; id < 12; ++id) CHECK(requests[id].generated == 20);
  CHECK(instance.used_blocks() == 0);
}

TEST_CASE("a run without copies keeps every token through an outage, and says what KV it cost") {
  const auto with = [&](std::int64_t blocks, const Json& lengths) {
    const Json outage = {{"gpu", 1}, {"at", "10 ms"}, {"recovers_after", "20 ms"}};
    return with_kv_blocks(
        without_copies(Json::array({outage}), {{"workload", {{"lengths", lengths}}}}), blocks);
  };
  const Json lengths = {{"type", "fixed"}, {"prompt", 20}, {"output", 30}};
  const test::Served report = test::serve(with(given_up + 4, lengths));
  CHECK(report.document()["metrics"]["completed"] == 120);
  for (const RequestRecord& r : report.requests) REQUIRE(r.generated == r.output_tokens);
  const OrderedJson outage = report.document()["failures"][0];
  CHECK(outage["kv_blocks_given_up"] == 3 * given_up);
  CHECK(outage["kv_given_up_seconds"].get<double>() ==
        outage["recovered_at_s"].get<double>() - outage["at_s"].get<double>());
  CHECK(outage["requests_preempted"] > 0);
  CHECK(run(with(given_up + 4, lengths)).document().dump() == report.document().dump());
  // With as much room as before the outage nothing more is lost than the GPU's own requests.
  CHECK(run(with(1000, lengths)).document()["failures"][0]["requests_preempted"] == 0);
  // Requests of 200 tokens need 13 blocks: none fits while there are 12.
  const Json longer = {{"type", "fixed"}, {"prompt", 170}, {"output", 30}};
  const OrderedJson metrics = run(with(given_up + 12, longer)).document()["metrics"];
  CHECK(metrics["rejected"] > 24);
  CHECK(metrics["completed"] > 0);
  CHECK(metrics["rejected"].get<int>() + metrics["completed"].get<int>() == 120);
  CHECK_THAT(config_error([&] { check_outages(with(given_up, lengths).decode()); }),
             Catch::Contains("/failures: without GPU 1 12 slots are left for 16 experts") &&
                 Catch::Contains("give up 96 KV blocks for the others but has 96") &&
                 Catch::Contains("a replication of at least 1.33"));
}

TEST_CASE("an outage during another one's stop does not end that stop sooner") {
  // GPU 2's experts come from outside, and stop the engine for longer than those of GPU 3.
  const Json events = Json::array({{{"gpu", 2}, {"at", "10 ms"}}, {{"gpu", 3}, {"at", "11 ms"}}});
  Json json = experiment({{"events", events}, {"reload_bandwidth", "1 MB/s"}});
  json["placement"] = {{"type", "linear"}, {"replication", 1.5}};
  const test::Served report = test::serve(test::load(json));
  const OrderedJson outages = report.document()["failures"];
  const auto end = [](const OrderedJson& outage) {
    return outage["at_s"].get<double>() + outage["stopped_seconds"].get<double>();
  };
  CAPTURE(outages.dump());
  REQUIRE(end(outages[0]) > end(outages[1]));
  for (const RequestRecord& r : report.requests) {
    const double last = to_seconds(r.last_token).count();
    CHECK((last < 0.011 || last >= end(outages[0])));
  }
}

// A step that is lost may have admitted a request that has fewer tokens left than those that run.
TEST_CASE("a step that is lost as it admits a request costs no request a token, or more tokens") {
  // Every expert has a copy left, so that the others go on at once.
  Json json = test::tiny_experiment(
      {{"placement", {{"type", "linear"}, {"replication", 2}}},
       {"request_routing", "least_kv"},
       {"workload",
        {{"arrivals", {{"type", "constant"}, {"rate", "1354 /s"}, {"concurrency", nullptr}}},
         {"lengths",
          {{"type", "lognormal"},
           {"prompt", {{"median", 5}, {"sigma", .5}, {"max", 40}}},
           {"output", {{"median", 9}, {"sigma", 1}, {"max", 60}}}}},
         {"requests", 40}}}});
  json["model"]["layers"][0]["repeat"] = 1;
  for (int i = 1; i < 80; ++i) {
    CAPTURE(i);
    json["failures"] = Json::array({{{"gpu", 3}, {"at", fmt::format("{:.3f} ms", .113 * i)}}});
    const test::Served served = test::serve(test::load(json));
    REQUIRE(served.requests.size() == 40);
    for (const RequestRecord& request : served.requests) {
      REQUIRE(request.state == RequestRecord::State::finished);
      REQUIRE(request.generated == request.output_tokens);
    }
  }
}

// Each of two groups restarts once, the second when the first is back.
TEST_CASE("a new version of the weights loads copies too, group after group") {
  const auto update = [](double replication) {
    const Json events =
        Json::array({{{"instance", 0}, {"at", "5 ms"}, {"recovers_after", "1 ms"}},
                     {{"instance", 1}, {"at", "20 ms"}, {"recovers_after", "1 ms"}}});
    Json json = experiment({{"events", events}, {"reload_bandwidth", "100 GB/s"}});
    json["placement"] = {{"type", "linear"}, {"replication", replication}};
    json["instances"] = 2;
    return test::load(json);
  };
  std::vector<double> loaded;
  for (const double replication : {1.0, 2.0}) {
    const Experiment e = update(replication);
    const MemoryBudget& memory = e.decode().memory;
    const Bytes of_a_gpu = memory.weights + memory.experts + memory.replicas;
    const OrderedJson report = test::serve(e).document();
    CHECK(report["metrics"]["completed"] == 120);
    REQUIRE(report["failures"].size() == 2);
    for (const OrderedJson& group : report["failures"]) {
      CHECK_THAT(group["bytes_reloaded"].get<double>(),
                 WithinRel(of_a_gpu.value() * e.decode().parallel.gpus(), 1e-9));
      // The first steps of the new version begin when all is loaded.
      CHECK_THAT(group["recovered_at_s"].get<double>() - group["at_s"].get<double>() - .001,
                 WithinAbs(0, 1e-9));
      CHECK_THAT(group["stopped_again_seconds"].get<double>(),
                 WithinRel(of_a_gpu.value() / 100e9, 1e-9));
    }
    // Both versions serve in between.
    CHECK(report["failures"][0]["recovered_at_s"] < report["failures"][1]["at_s"]);
    loaded.push_back(report["failures"][0]["bytes_reloaded"].get<double>());
  }
  CHECK(loaded[1] > loaded[0]);
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
