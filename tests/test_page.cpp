// SPDX-License-Identifier: Apache-2.0
// What does a page of a store show when nobody says, and how are its points run again?
#include "tests/support.hpp"
#include "tools/report/page.hpp"

namespace moesim {
namespace {

using Pointers = std::vector<std::string>;

Json report(double tpot, double throughput, const Json& config) {
  return {{"context", {{"moesim", "0"}, {"config", config}}},
          {"metrics", {{"median_tpot_ms", tpot}, {"tokens_per_s_per_gpu", throughput}}}};
}

// A store with every combination of these values, written out as the sweep would.
StoredSweep sweep(const Json& axes) {
  StoredSweep stored;
  stored.document = {{"base", "base.json"}, {"axes", axes}};
  std::vector<Json> configs{Json::object()};
  for (const auto& [pointer, values] : axes.items()) {
    std::vector<Json> next;
    for (const Json& config : configs) {
      for (const Json& value : values) {
        next.push_back(config);
        next.back()[Json::json_pointer(pointer)] = value;
      }
    }
    configs = std::move(next);
  }
  double tpot = 1;
  for (const Json& config : configs) {
    const std::string hash = sweep_point(config).config_hash;
    stored.points.push_back({hash, config, PointStatus::done, "", report(tpot, tpot, config)});
    tpot += 1;
  }
  stored.axes = axes_of(stored.document);
  return stored;
}

TEST_CASE("what runs along a curve does not tell curves apart, policies do") {
  REQUIRE(default_groups(sweep({{"/placement/replication", {1.0, 1.5}},
                                {"/token_routing/decode", {"even", "metro"}},
                                {"/workload/arrivals/concurrency", {1, 2, 4}},
                                {"/scheduling/max_num_seqs", {8, 16}},
                                {"/parallel/ep", {4, 8}},
                                {"/seed", {1, 2}}})) ==
          Pointers{"/placement/replication", "/token_routing/decode"});
  REQUIRE(default_groups(sweep({{"/workload/arrivals/rate", {"1 /s", "2 /s"}}})).empty());
}

TEST_CASE("an axis that another implies tells nothing more: the dispatch of a routing policy") {
  StoredSweep zipped = sweep(
      {{"/token_routing/decode", {"even", "metro"}}, {"/dispatch/decode", {"a2a", "gather"}}});
  std::erase_if(zipped.points, [](const StoredPoint& point) {
    return (point.config["token_routing"]["decode"] == "even") !=
           (point.config["dispatch"]["decode"] == "a2a");
  });
  REQUIRE(zipped.points.size() == 2);
  REQUIRE(default_groups(zipped) == Pointers{"/token_routing/decode"});
}

TEST_CASE("more groups than can be told apart lose the axis with the most values") {
  // 7 * 2 = 14 groups are more than 12.
  REQUIRE(default_groups(sweep({{"/placement/replication", {1, 2, 3, 4, 5, 6, 7}},
                                {"/token_routing/decode", {"even", "metro"}}})) ==
          Pointers{"/token_routing/decode"});
}

TEST_CASE("a point's command sets what the sweep sets, outer pointers for inner ones, in quotes") {
  StoredSweep stored = sweep({{"/placement", {Json{{"type", "eplb"}, {"replication", 1.5}}}},
                              {"/placement/replication", {1.25}},
                              {"/workload/arrivals/rate", {"12 /s"}},
                              {"/token_routing/decode", {"metro"}},
                              {"/note", {"7", "it's"}}});
  REQUIRE(reproduce_command(stored, stored.points[0], "") ==
          R"(moesim run base.json --set '/note="7"')"
          R"( --set '/placement={"replication":1.25,"type":"eplb"}')"
          R"( --set /token_routing/decode=metro --set '/workload/arrivals/rate=12 /s')");
  REQUIRE(reproduce_command(stored, stored.points[1], "my configs/b.json")
              .starts_with(R"(moesim run 'my configs/b.json' --set '/note=it'\''s')"));
  stored.document["base"] = Json::object();
  REQUIRE(reproduce_command(stored, stored.points[0], "") ==
          "moesim run " + stored.points[0].config_hash + ".json");
}

TEST_CASE("a page's data holds every point once, its config as a patch on the first's") {
  const StoredSweep stored = sweep(
      {{"/placement/replication", {1.0, 1.5}}, {"/workload/arrivals/concurrency", {1, 2, 4}}});
  PageOptions options;
  options.axes.by = default_groups(stored);
  const OrderedJson data = page_data(stored, options);
  REQUIRE(data["points"].size() == 6);
  REQUIRE(data["groups"] == OrderedJson({{"1.0"}, {"1.5"}}));
  const Json config = Json::parse(data["config"].dump());
  for (const OrderedJson& shown : data["points"]) {
    const auto same = [&](const StoredPoint& point) { return point.config_hash == shown["id"]; };
    const auto point = std::find_if(stored.points.begin(), stored.points.end(), same);
    REQUIRE(point != stored.points.end());
    REQUIRE(config.patch(Json::parse(shown["patch"].dump())) == point->config);
  }
  REQUIRE(data["comparisons"].size() == 1);
  REQUIRE(data["comparisons"][0]["pairs"].size() == 3);
  options.axes.x = "/metrics/no_such";
  REQUIRE(test::config_error([&] { page_data(stored, options); }).find("/metrics/no_such") !=
          std::string::npos);
}

}  // namespace
}  // namespace moesim
