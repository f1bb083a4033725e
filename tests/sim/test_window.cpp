// SPDX-License-Identifier: Apache-2.0
// Is what a run measures that of a stretch long enough, and does the report say when it is not?
#include <algorithm>

#include <fmt/format.h>

#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_window {
namespace {

using test::load_tiny;
using test::WithinRel;

// Two groups, 12 requests in flight on each, so that they finish nearly, but not quite, together.
OrderedJson two_groups(int requests, const Json& set = Json::object()) {
  Json json = {{"instances", 2}, {"workload", {{"requests", requests}}}};
  json.merge_patch(set);
  return run(load_tiny(json)).document();
}

double throughput(const OrderedJson& report) { return report["metrics"]["output_throughput"]; }

// Adds up the HBM traffic of what lies between two moments, step by step.
struct Between : RunObserver {
  Between(double from, double to) : begin(from), end(to) {}
  void step_ended(const StepRecord& record, Time now) override {
    const double start = to_seconds(record.step.start).count();
    const double stop = to_seconds(now).count();
    const double inside = std::max(0.0, std::min(stop, end) - std::max(start, begin));
    hbm_bytes += record.cost.hbm_bytes * inside / (stop - start);
  }
  double begin, end, hbm_bytes = 0;
};

Json poisson(const char* rate, int requests) {
  return {{"workload",
           {{"arrivals", {{"type", "poisson"}, {"rate", rate}, {"concurrency", nullptr}}},
            {"requests", requests}}}};
}

TEST_CASE("a window shorter than the steps of any group is never what is measured") {
  const double long_run = throughput(two_groups(960));
  for (const int requests : {24, 30, 36, 48, 60}) {
    CAPTURE(requests);
    const OrderedJson report = two_groups(requests);
    const double seconds = report["metrics"]["duration_s"];
    for (const OrderedJson& group : report["instances"]) {
      CHECK(seconds * 1e3 > 3 * group["mean_step_ms"].get<double>());
      CHECK(group["utilization"].get<double>() <= 1 + 1e-12);
    }
    CHECK(throughput(report) < 1.2 * long_run);
  }
}

TEST_CASE("a run of one wave is measured whole, every token once, and says that it was too short") {
  // All prompts fit one step, so that all requests of a group leave with the same one.
  const Json lengths{{"type", "fixed"}, {"prompt", 4}, {"output", 30}};
  const OrderedJson report = two_groups(
      24, {{"measurement", {{"warmup", 0.1}}},
           {"workload",
            {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 24}}}, {"lengths", lengths}}}});
  CHECK(report["measurement"]["window"] == "whole");
  CHECK(report["measurement"]["state"] == "offline");
  const double seconds = report["metrics"]["duration_s"];
  CHECK_THAT(throughput(report) * seconds, WithinRel(24 * 30.0, 1e-12));
  CHECK(report["metrics"]["completed_while_measured"] == 24);
}

TEST_CASE("a run whose requests all arrive before the warm-up ends is measured whole") {
  Json burst = poisson("1000000 /s", 200);
  burst["measurement"]["warmup"] = 0.1;
  const OrderedJson report = run(load_tiny(burst)).document();
  const OrderedJson& metrics = report["metrics"];
  CHECK(report["measurement"]["window"] == "whole");
  CHECK(metrics["measured_requests"] == 200);
  CHECK(metrics["completed_while_measured"] == 200);
  CHECK(metrics["median_ttft_ms"].is_number());
  CHECK(metrics["median_tpot_ms"].is_number());
  // Every prompt of 20 and output of 30 tokens once.
  CHECK_THAT(metrics["total_token_throughput"].get<double>() * metrics["duration_s"].get<double>(),
             WithinRel(200 * 50.0, 1e-9));
}

TEST_CASE("requests are measured by when the engine received them, not by when they were sent") {
  Json late = poisson("1000000 /s", 200);
  late["measurement"]["warmup"] = 0;
  late["api_server"] = {{"latency", "30 ms"}, {"tokenization", "10 us"}};
  const OrderedJson report = run(load_tiny(late)).document();
  CHECK(report["metrics"]["measured_requests"] == 200);
  CHECK(report["metrics"]["median_ttft_ms"].is_number());
}

TEST_CASE("requests that are all sent at once are all measured, whatever the warm-up") {
  const Json at_once{
      {"workload",
       {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 64}}}, {"requests", 64}}},
      {"measurement", {{"warmup", .1}}},
      {"api_server", {{"tokenization", "1 ms"}}}};
  CHECK(run(load_tiny(at_once)).document()["metrics"]["measured_requests"] == 64);
}

TEST_CASE("a limit on requests in flight that is never reached changes no report") {
  Json config = poisson("200000 /s", 1000);
  const OrderedJson free = run(load_tiny(config)).document();
  config["workload"]["arrivals"]["max_concurrency"] = 1000;
  const OrderedJson limited = run(load_tiny(config)).document();
  CHECK(free["measurement"] == limited["measurement"]);
  CHECK(free["metrics"] == limited["metrics"]);
}

TEST_CASE("prompts that arrive computed count in no throughput") {
  const OrderedJson report =
      run(load_tiny(
              {{"workload", {{"requests", 60}}},
               {"scheduling", {{"type", "decode_only"}, {"max_num_batched_tokens", nullptr}}}}))
          .document();
  const OrderedJson& metrics = report["metrics"];
  CHECK(metrics["output_throughput"].get<double>() > 0);
  CHECK(metrics["total_token_throughput"] == metrics["output_throughput"]);
  CHECK(metrics["total_tokens_per_s_per_gpu"] == metrics["tokens_per_s_per_gpu"]);
}

TEST_CASE("a step counts by its share within the window") {
  const Experiment e = load_tiny(poisson("2000 /s", 400));
  const OrderedJson report = run(e).document();
  const OrderedJson& window = report["measurement"];
  CHECK(window["window"] == "steady");
  Between oracle(window["begin_s"], window["end_s"]);
  test::serve(e, {&oracle});
  const double seconds = report["metrics"]["duration_s"];
  const double hbm = e.decode().cluster.gpu.hbm_bandwidth.value() * e.decode().parallel.gpus();
  CHECK_THAT(report["metrics"]["mbu"].get<double>() * seconds * hbm,
             WithinRel(oracle.hbm_bytes, 1e-6));
}

TEST_CASE("a run says whether it kept up with what arrived") {
  const OrderedJson calm = run(load_tiny(poisson("2000 /s", 1000))).document()["measurement"];
  CHECK(calm["state"] == "stable");
  CHECK_THAT(calm["offered_request_rate"].get<double>(), WithinRel(2000, .15));
  CHECK_THAT(calm["served_request_rate"].get<double>(), WithinRel(2000, .15));
  const OrderedJson flood = run(load_tiny(poisson("200000 /s", 1000))).document()["measurement"];
  CHECK(flood["state"] == "overloaded");
  CHECK(flood["served_request_rate"].get<double>() <
        .5 * flood["offered_request_rate"].get<double>());
  // Somewhat more than can be served, in a queue that grows all along.
  const double most = flood["served_request_rate"];
  const std::string above = fmt::format("{} /s", 1.08 * most);
  const OrderedJson slow = run(load_tiny(poisson(above.c_str(), 4000))).document()["measurement"];
  CHECK(slow["state"] == "overloaded");
  // Five requests tell of no queue.
  CHECK(run(load_tiny(poisson("200000 /s", 5))).document()["measurement"]["state"] != "overloaded");
  // A client that waits for an answer before asking again cannot ask for too much.
  const OrderedJson closed = two_groups(960)["measurement"];
  CHECK(closed["offered_request_rate"].is_null());
  CHECK(closed["state"] == "stable");
  // All requests wait from the start.
  const Json load{{"arrivals", {{"type", "closed_loop"}, {"concurrency", 960}}}};
  const OrderedJson offline = two_groups(960, {{"workload", load}})["measurement"];
  CHECK(offline["offered_request_rate"].is_null());
  CHECK(offline["state"] == "offline");
}

TEST_CASE("TPOT grows from that of the first rate of arrivals to that of the last") {
  const auto report_at = [](const Json& rate, int requests) {
    Json load = poisson("1 /s", requests);
    load["workload"]["arrivals"]["rate"] = rate;
    load["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 4}, {"output", 30}};
    return run(load_tiny(load)).document();
  };
  const auto tpot = [](const OrderedJson& report) {
    return report["metrics"]["mean_tpot_ms"].get<double>() / 1e3;
  };
  const OrderedJson calm = report_at("1000 /s", 4000), busy = report_at("3000 /s", 4000);
  CHECK(calm["measurement"]["tpot_growth"] == 0);
  // A thousand requests in a second, then three thousand in one: the middles of the first and the
  // last quarter are 1/2 s after the begin and 1/6 s before the end.
  const Json rates{{{"rate", "1000 /s"}, {"until", "1 s"}}, {{"rate", "3000 /s"}}};
  const OrderedJson both = report_at(rates, 4000)["measurement"];
  CHECK(both["state"] == "stable");
  CHECK_THAT(both["tpot_growth"].get<double>(),
             WithinRel((tpot(busy) - tpot(calm)) / (2 - 1. / 2 - 1. / 6), .15));
  // Where rates fall, TPOT falls.
  const Json falling{{{"rate", "3000 /s"}, {"until", "1 s"}}, {{"rate", "1000 /s"}}};
  CHECK(report_at(falling, 4000)["measurement"]["tpot_growth"] == 0);
}

}  // namespace
}  // namespace moesim::test_window
