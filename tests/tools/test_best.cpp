// SPDX-License-Identifier: Apache-2.0
// Which value of an axis is best, on otherwise equal points?
#include <cstdlib>
#include <sstream>

#include "tests/support.hpp"
#include "tools/analysis/best.hpp"

namespace moesim::test_best {
namespace {

const std::string over = "/placement/replication";
const std::string throughput = "/metrics/total_token_throughput";

void add(StoredSweep& sweep, Json replication, const char* routing, Json tokens_per_s) {
  const Json config{{"placement", {{"replication", replication}}},
                    {"token_routing", {{"decode", routing}}}};
  StoredPoint point{sweep_point(config).config_hash, config, PointStatus::done, "", {}};
  point.report = {{"metrics", {{"total_token_throughput", tokens_per_s}}},
                  {"steps", {{"decode", {{"mean_ms", 10}, {"mean_decode_tokens", 64}}}}}};
  if (tokens_per_s.is_null()) point.status = PointStatus::infeasible;
  sweep.points.push_back(std::move(point));
}

StoredSweep sweep() {
  StoredSweep sweep;
  sweep.axes = named_axes({over, "/token_routing/decode"});
  add(sweep, 1.0, "even", 100);
  add(sweep, 1.5, "even", 90);
  add(sweep, 1.0, "metro", 100);
  add(sweep, 1.5, "metro", 120);
  add(sweep, 2.0, "metro", Json());
  return sweep;
}

std::vector<Json> best_values(const BestChoice& choice) {
  std::vector<Json> best;
  for (const Alternatives& group : choice.groups) {
    for (const Alternative& value : group.values) {
      if (value.best) best.push_back(value.value);
    }
  }
  return best;
}

TEST_CASE("a key that some points do not have is an axis like others") {
  StoredSweep sweep;
  sweep.axes = named_axes({"/speculative", "/seed"});
  for (const int seed : {1, 2}) {
    for (const bool drafts : {false, true}) {
      Json config{{"seed", seed}};
      if (drafts) config["speculative"] = {{"num_speculative_tokens", 2}};
      StoredPoint point{sweep_point(config).config_hash, config, PointStatus::done, "", {}};
      point.report = {{"metrics", {{"total_token_throughput", drafts ? 120 : 100}}},
                      {"steps", {{"decode", {{"mean_ms", 10}, {"mean_decode_tokens", 64}}}}}};
      sweep.points.push_back(std::move(point));
    }
  }
  const BestChoice choice = best_choice(sweep, "/speculative", throughput, false);
  REQUIRE(choice.groups.size() == 1);
  CHECK(choice.groups.front().values.size() == 2);
  CHECK(best_values(choice) == std::vector<Json>{{{"num_speculative_tokens", 2}}});
}

TEST_CASE("every group names one best value, no replication included") {
  const BestChoice choice = best_choice(sweep(), over, throughput, false);
  REQUIRE(choice.groups.size() == 2);
  CHECK(best_values(choice) == std::vector<Json>{1.0, 1.5});
  CHECK(choice.groups[1].settings == std::vector<Json>{"metro"});
  CHECK(choice.groups[1].without == 1);
  CHECK(best_values(best_choice(sweep(), over, throughput, true)) == std::vector<Json>{1.5, 1.0});
}

TEST_CASE(
    "nothing within noise is the best: equal values tie, and seeds tell how far apart others are") {
  StoredSweep seeds;
  seeds.axes = named_axes({over, "/seed"});
  const auto add_seeds = [&](double replication, std::vector<double> tokens_per_s) {
    for (std::size_t seed = 0; seed < tokens_per_s.size(); ++seed) {
      add(seeds, replication, "even", tokens_per_s[seed]);
      seeds.points.back().config["seed"] = seed;
    }
  };
  add_seeds(1.0, {100, 110});
  add_seeds(1.5, {102, 112});
  CHECK(best_values(best_choice(seeds, over, throughput, false)) == std::vector<Json>{1.0, 1.5});
  CHECK(best_text(best_choice(seeds, over, throughput, false)).find("all tie in") !=
        std::string::npos);
  CHECK(best_json(best_choice(seeds, over, throughput, false))["groups"][0]["best"].is_null());
  // The same difference between seeds that agree.
  seeds.points.clear();
  add_seeds(1.0, {100, 100.1});
  add_seeds(1.5, {102, 102.1});
  CHECK(best_values(best_choice(seeds, over, throughput, false)) == std::vector<Json>{1.5});
}

TEST_CASE("the best value is that of the mean over seeds") {
  StoredSweep seeds;
  seeds.axes = named_axes({over, "/seed"});
  const auto add_seed = [&](double replication, int seed, double tokens_per_s) {
    add(seeds, replication, "even", tokens_per_s);
    seeds.points.back().config["seed"] = seed;
  };
  add_seed(1.0, 1, 100), add_seed(1.0, 2, 104);
  add_seed(1.5, 1, 70), add_seed(1.5, 2, 130);
  const BestChoice choice = best_choice(seeds, over, throughput, false);
  REQUIRE(choice.groups.size() == 1);
  CHECK(choice.axes.empty());
  CHECK(choice.groups[0].values[1].metric == 100);
  CHECK(choice.groups[0].values[1].points.size() == 2);
  // 102 and 100 tie: the seeds of the second are 70 and 130.
  CHECK(best_values(choice) == std::vector<Json>{1.0, 1.5});
  CHECK_THROWS_WITH(best_choice(seeds, "/seed", throughput, false),
                    Catch::Matchers::Contains("luckiest seed"));
}

TEST_CASE("equal values tie") {
  StoredSweep equal;
  equal.axes = named_axes({over});
  for (const double ratio : {1.0, 1.25, 1.5}) add(equal, ratio, "even", 100);
  CHECK(best_values(best_choice(equal, over, throughput, false)) ==
        std::vector<Json>{1.0, 1.25, 1.5});
}

TEST_CASE("the table gives ratios to the first value, and dashes for what a report lacks") {
  const std::string text = best_text(best_choice(sweep(), over, throughput, false));
  CHECK_THAT(text, Catch::Matchers::Contains("decode metro"));
  CHECK_THAT(text, Catch::Matchers::Contains("1.200"));             // 120 / 100
  CHECK_THAT(text, Catch::Matchers::Contains("1.000      1.000"));  // sequences, step
  CHECK_THAT(text, Catch::Matchers::Contains("1 of its points are not done or lack this number"));
  const OrderedJson json = best_json(best_choice(sweep(), over, throughput, false));
  CHECK(json["groups"][1]["best"] == 1.5);
  CHECK(json["groups"][1]["values"][0]["kv_bytes"].is_null());
}

TEST_CASE("a table and what is said of it take 100 columns at most, whatever the axis is called") {
  ::unsetenv("COLUMNS");
  std::istringstream lines(best_text(best_choice(sweep(), over, throughput, false)));
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("an axis that the sweep does not vary is refused, and a metric that nobody has") {
  CHECK_THROWS_WITH(best_choice(sweep(), "/seed", throughput, false),
                    "--best /seed: the luckiest seed is no choice; runs are averaged over seeds");
  CHECK_THROWS_WITH(best_choice(sweep(), over, "/metrics/nothing", false),
                    Catch::Matchers::Contains("no finished point has this number"));
}

}  // namespace
}  // namespace moesim::test_best
