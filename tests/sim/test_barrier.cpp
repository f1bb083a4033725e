// SPDX-License-Identifier: Apache-2.0
// Do ranks of one EP group wait for each other at every layer, and ranks of different groups never?
#include <numeric>

#include <fmt/format.h>

#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_barrier {
namespace {

using test::WithinRel;

// Prompts of very different lengths, so that ranks hold unequal KV.
OrderedJson breakdown(const Json& set) {
  Json json =
      test::tiny_experiment({{"workload",
                              {{"lengths",
                                {{"type", "lognormal"},
                                 {"prompt", {{"median", 40}, {"sigma", 1.5}, {"max", 2000}}},
                                 {"output", {{"median", 20}, {"sigma", 0.5}}}}}}}});
  json.merge_patch(set);
  TraceLibrary traces;
  return run(load_experiment(ConfigNode(json, test::source_dir() / "tests/barrier.json"), traces))
      .document()["breakdown"];
}

TEST_CASE("ranks that share experts wait for the slowest, and the report says how long each did") {
  const OrderedJson group = breakdown(Json::object());
  const auto idle = group["barrier_idle_seconds_per_gpu"].get<std::vector<double>>();
  REQUIRE(idle.size() == 4);
  for (const double seconds : idle) CHECK(seconds > 0);
  const double all = std::accumulate(idle.begin(), idle.end(), 0.0);
  CHECK_THAT(group["barrier_idle_share"].get<double>(),
             WithinRel(all / (4 * group["busy_seconds"].get<double>()), 1e-12));
}

TEST_CASE("a rank that holds all experts itself waits for nobody") {
  // One of four such ranks: a quarter of the clients and requests.
  const OrderedJson alone =
      breakdown({{"parallel", {{"dp", 1}, {"ep", 1}}},
                 {"placement", {{"replication", 1.0}}},
                 {"workload", {{"arrivals", {{"concurrency", 6}}}, {"requests", 30}}}});
  CHECK(alone["barrier_idle_share"] == 0);
  CHECK(alone["barrier_idle_seconds_per_gpu"] == OrderedJson::array({0.0}));
}

TEST_CASE("replicas of the whole model keep their own clocks, and none waits for another") {
  // What one replica computes is the same whether three others serve beside it or none does.
  const auto requests_of = [](int replicas) {
    Json json = test::tiny_experiment(
        {{"instances", replicas},
         {"parallel", {{"dp", 1}, {"ep", 1}}},
         {"placement", {{"replication", 1.0}}},
         {"workload",
          {{"arrivals", {{"type", "constant"}, {"rate", fmt::format("{} /s", 2000 * replicas)}}},
           {"gating", {{"requests", 1}}},
           {"requests", 20 * replicas}}}});
    json["workload"]["arrivals"].erase("concurrency");
    TraceLibrary traces;
    const test::Served report = test::serve(
        load_experiment(ConfigNode(json, test::source_dir() / "tests/barrier.json"), traces));
    CHECK(report.document()["breakdown"]["barrier_idle_share"] == 0);
    std::vector<double> first;
    for (const RequestRecord& r : report.requests) {
      if (r.instance == 0) first.push_back(to_seconds(r.last_token - r.arrival).count());
    }
    return first;
  };
  const auto alone = requests_of(1), beside = requests_of(4);
  REQUIRE(alone.size() == 20);
  REQUIRE(beside.size() == 20);
  for (std::size_t i = 0; i < alone.size(); ++i) CHECK_THAT(beside[i], WithinRel(alone[i], 1e-6));
}

}  // namespace
}  // namespace moesim::test_barrier
