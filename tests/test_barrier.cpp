// SPDX-License-Identifier: Apache-2.0
// Who waits for whom: ranks of one EP group at every layer, ranks that share no experts never?
#include <numeric>

#include "sim/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim {
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
      .document["breakdown"];
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

}  // namespace
}  // namespace moesim
