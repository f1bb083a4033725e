// SPDX-License-Identifier: Apache-2.0
// Which clients leave before they are served, and what do they leave behind?
#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_patience {
namespace {

using State = RequestRecord::State;
using test::load_tiny;
using test::WithinAbs;

std::int64_t in_state(const test::Served& report, State state) {
  return std::count_if(report.requests.begin(), report.requests.end(),
                       [&](const RequestRecord& r) { return r.state == state; });
}

double seconds(Duration duration) { return to_seconds(duration).count(); }

// Half of the clients cancel, some time out; arrivals come faster than they are served. Clients'
// clocks run while the API server has their requests.
Json hurried(std::uint64_t seed) {
  Rng rng(seed, "test/hurried");
  const auto pick = [&](std::initializer_list<const char*> names) {
    return std::string(names.begin()[rng.below(names.size())]);
  };
  return {{"seed", seed},
          {"scheduling", {{"type", pick({"chunked_prefill", "prefill_first", "decode_only"})}}},
          {"request_routing", pick({"round_robin", "vllm", "least_kv", "bfio", "fast_phi", "br0"})},
          {"kv_cache", {{"prefix_caching", seed % 2 == 0}}},
          {"api_server", {{"latency", "500 us"}}},
          {"workload",
           {{"arrivals", {{"type", "poisson"}, {"rate", "40000 /s"}, {"concurrency", nullptr}}},
            {"timeout", "12 ms"},
            {"ttft_timeout", "6 ms"},
            {"cancellation", {{"share", 0.5}, {"mean_after", "3 ms"}}}}}};
}

TEST_CASE("every client that arrives finishes, is rejected, times out or cancels") {
  std::int64_t timed_out = 0, cancelled = 0, finished = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    CAPTURE(seed);
    Experiment e = load_tiny(hurried(seed));
    if (seed % 3 == 0)
      e.decode().memory.kv_blocks = 8;  // of 16 tokens: two requests of 49 fit at once
    const test::Served report = test::serve(e);
    REQUIRE(std::ssize(report.requests) == 120);
    const auto of = [&](State state) { return in_state(report, state); };
    REQUIRE(of(State::finished) + of(State::timed_out) + of(State::cancelled) == 120);
    const OrderedJson metrics = report.document()["metrics"];
    REQUIRE(metrics["completed"] == of(State::finished));
    REQUIRE(metrics["timed_out"] == of(State::timed_out));
    REQUIRE(metrics["cancelled"] == of(State::cancelled));
    for (const RequestRecord& r : report.requests) {
      const double age = seconds(r.abandoned_at - r.arrival);
      if (r.state == State::finished) REQUIRE(seconds(r.last_token - r.arrival) <= .012);
      if (r.state == State::timed_out) {
        REQUIRE_THAT(age, WithinAbs(r.generated == 0 && age < .009 ? .006 : .012, 1e-9));
      }
      if (r.state != State::finished) REQUIRE(r.generated < r.output_tokens);
    }
    timed_out += of(State::timed_out);
    cancelled += of(State::cancelled);
    finished += of(State::finished);
  }
  CHECK(timed_out > 0);
  CHECK(cancelled > 0);
  CHECK(finished > 0);
}

TEST_CASE("blocks of who leaves are free when the step ends, and none is lost") {
  for (const bool caching : {false, true}) {
    Experiment e = load_tiny({{"kv_cache", {{"prefix_caching", caching}}}});
    e.decode().memory.kv_blocks = 12;
    RowSource rows(e.decode().trace, e.decode().prefill_trace, e.decode().bind_odd_only,
                   e.decode().seed);
    Requests requests;
    Instance instance(e.decode(), rows, requests);
    for (std::uint32_t id = 0; id < 24; ++id) {
      RequestRecord& r = requests.add();
      r.prompt_tokens = 20;
      r.output_tokens = 30;
      r.binding = rows.bind();
    }
    for (std::uint32_t id = 0; id < 24; ++id) instance.submit(id, id % 4);
    Rng rng(1, "test/leave");
    Time now{};
    while (const auto length = instance.begin_step(now)) {
      const std::int64_t held = instance.used_blocks();
      REQUIRE(held > 0);
      const auto id = static_cast<std::uint32_t>(rng.below(24));
      if (requests[id].open() && rng.below(4) == 0) {
        requests[id].state = State::cancelled;
        instance.abandon(id);
        REQUIRE(instance.used_blocks() == held);
      }
      now += to_duration(*length);
      for (const Milestone& token : instance.end_step(now).milestones) {
        REQUIRE_FALSE(requests[token.request].abandoned());
      }
      REQUIRE(instance.used_blocks() <= instance.total_blocks());
    }
    CHECK(instance.used_blocks() == 0);
    std::int64_t abandoned = 0;
    for (std::uint32_t id = 0; id < 24; ++id) abandoned += requests[id].abandoned() ? 1 : 0;
    CHECK(abandoned > 0);
    std::vector<RankLoad> loads;
    instance.loads(true, loads);
    for (const RankLoad& load : loads) {
      CHECK(load.kv_tokens == 0);
      CHECK(load.blocks == 0);
      CHECK(load.requests.empty());
    }
  }
}

TEST_CASE("clients with more patience than they need change nothing") {
  OrderedJson plain = run(load_tiny(Json::object())).document();
  OrderedJson patient =
      run(load_tiny({{"workload",
                      {{"timeout", "5000 s"},
                       {"ttft_timeout", "5000 s"},
                       {"cancellation", {{"share", 1}, {"mean_after", "100000 s"}}}}}}))
          .document();
  CHECK(patient["metrics"]["timeout_share"] == 0.0);
  for (const char* key : {"timed_out", "cancelled", "timeout_share", "cancelled_share"}) {
    CHECK_FALSE(plain["metrics"].contains(key));
    patient["metrics"].erase(key);
  }
  plain.erase("context");
  patient.erase("context");
  CHECK(patient.dump() == plain.dump());
}

TEST_CASE("a time-out for the first token spares those who have it") {
  // All 24 clients of the closed loop are seated at once: the first token comes after a few steps,
  // the last after 30 more.
  const test::Served calm = test::serve(load_tiny(Json::object()));
  double slowest = 0;
  for (const RequestRecord& r : calm.requests)
    slowest = std::max(slowest, seconds(r.first_token - r.arrival));
  const std::string limit = fmt::format("{} s", slowest * 1.0001);
  const test::Served report = test::serve(load_tiny({{"workload", {{"ttft_timeout", limit}}}}));
  CHECK(in_state(report, State::finished) == 120);
  CHECK(in_state(test::serve(load_tiny({{"workload", {{"timeout", limit}}}})), State::timed_out) ==
        120);
}

TEST_CASE("a client that has left before the engine has its request leaves then") {
  const test::Served report = test::serve(
      load_tiny({{"api_server", {{"latency", "2 ms"}}}, {"workload", {{"timeout", "1 ms"}}}}));
  REQUIRE(in_state(report, State::timed_out) == 120);
  for (const RequestRecord& r : report.requests) {
    REQUIRE_THAT(seconds(r.abandoned_at - r.arrival), WithinAbs(.002, 1e-9));
    REQUIRE(r.generated == 0);
  }
}

TEST_CASE("who times out misses every objective, who cancels counts for none") {
  const auto metrics = [](Json workload) {
    return run(load_tiny({{"workload", std::move(workload)}, {"slo", {{"ttft", "100 s"}}}}))
        .document()["metrics"];
  };
  const OrderedJson late = metrics({{"timeout", "1 us"}});
  CHECK(late["timeout_share"] == 1.0);
  CHECK(late["attainment"]["ttft"] == 0.0);
  CHECK(late["slo_attainment"] == 0.0);
  CHECK(late["request_goodput"] == 0.0);
  CHECK(late["median_ttft_ms"].is_null());

  const OrderedJson leaving = metrics({{"cancellation", {{"share", 0.5}, {"mean_after", "1 us"}}}});
  CHECK(leaving["cancelled_share"].get<double>() > 0.3);
  CHECK(leaving["cancelled_share"].get<double>() < 0.7);
  CHECK(leaving["attainment"]["ttft"] == 1.0);
  CHECK(leaving["request_goodput"] == leaving["request_throughput"]);
}

TEST_CASE("clients leave while their rank is down, and none is lost") {
  Json json = hurried(4);
  json["failures"] = Json::array({{{"gpu", 1}, {"at", "1 ms"}, {"recovers_after", "4 ms"}}});
  json["scheduling"]["type"] = "chunked_prefill";
  const test::Served report = test::serve(load_tiny(json));
  CHECK(in_state(report, State::finished) + in_state(report, State::timed_out) +
            in_state(report, State::cancelled) ==
        120);
}

}  // namespace
}  // namespace moesim::test_patience
