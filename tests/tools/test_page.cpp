// SPDX-License-Identifier: Apache-2.0
// What does a page of a store show by default, and how are its points run again?
#include "tests/support.hpp"
#include "tools/report/page.hpp"
#include "tools/report/page_point.hpp"

namespace moesim::test_page {
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

TEST_CASE("one axis tells curves apart though it has many values, pools though others imply them") {
  Json routers = Json::array();
  for (int i = 0; i < 18; ++i) routers.push_back("router " + std::to_string(i));
  REQUIRE(default_groups(sweep({{"/request_routing", routers}})) == Pointers{"/request_routing"});
  StoredSweep pooled = sweep({{"/instances", {1, 2}}});
  Json config{{"pools", {{"prefill", Json::object()}, {"decode", Json::object()}}}};
  pooled.points.push_back({"pooled", config, PointStatus::done, "", report(1, 1, config)});
  pooled.axes = named_axes({"/instances", "/pools"});
  REQUIRE(default_groups(pooled) == Pointers{"/instances", "/pools"});
  PageOptions options;
  options.axes.by = default_groups(pooled);
  const OrderedJson groups = page_data(pooled, options)["groups"];
  REQUIRE(groups ==
          OrderedJson::parse(R"([["unset", "pools"], ["1", "no pools"], ["2", "no pools"]])"));
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

TEST_CASE("a page's limits begin with the objectives that all points share, in ms") {
  const auto limits = [](const Json& slos) {
    StoredSweep stored = sweep({{"/slo", slos}});
    PageOptions options;
    options.axes.by = default_groups(stored);
    CHECK(has_objectives(stored));
    return page_data(std::move(stored), options)["limits"];
  };
  CHECK(limits({{{"ttft", "1 s"}, {"tpot", "50 ms"}}}) ==
        OrderedJson{{"ttft", 1000.0}, {"tpot", 50.0}});
  CHECK(limits({{{"ttft", "1 s"}, {"tpot", "50 ms"}}, {{"ttft", "1 s"}}}) ==
        OrderedJson{{"ttft", 1000.0}});
  StoredSweep without = sweep({{"/seed", {1}}});
  CHECK_FALSE(has_objectives(without));
}

TEST_CASE("of points with pools or several groups a page has each group, and prefill steps too") {
  StoredSweep stored = sweep({{"/seed", {1, 2, 3}}});
  const auto instance = [](int number, double idle) {
    return Json{{"instance", number},         {"mean_step_ms", 2.5},  {"utilization", 0.5},
                {"barrier_idle_share", idle}, {"output_tokens", 100}, {"kv_mean_utilization", 0.25},
                {"prefix_hit_rate", 0.0},     {"preemptions", 3}};
  };
  const auto steps = [](const char* kind, double attention) {
    return Json{{kind, {{"steps", 4}, {"parts_mean_ms", {{"attention", attention}}}}}};
  };
  Json& pooled = stored.points[1].report;
  pooled["steps"] = steps("decode", 1.0);
  pooled["pools"] = {{"prefill", {{"steps", steps("prefill", 7.0)}}},
                     {"decode", {{"instances", Json::array({instance(1, 0.2)})}}}};
  pooled["pools"]["prefill"]["instances"] = Json::array({instance(0, 0.1)});
  stored.points[2].report["instances"] = Json::array({instance(0, 0.3), instance(1, 0.4)});
  const OrderedJson data = page_data(stored, {});
  const auto of_seed = [&](std::size_t i) -> const OrderedJson& {
    for (const OrderedJson& point : data["points"]) {
      if (point["id"] == stored.points[i].config_hash) return point;
    }
    throw std::logic_error("a point is missing");
  };
  CHECK(of_seed(0)["instances"].empty());
  const auto row = [](const char* pool, int number, double idle) {
    return OrderedJson{pool, number, 2.5, 0.5, idle, 100.0, 0.25, 0.0, 3.0};
  };
  CHECK(of_seed(1)["instances"] ==
        OrderedJson::array({row("prefill", 0, 0.1), row("decode", 1, 0.2)}));
  CHECK(of_seed(1)["parts"]["decode"][0] == 1.0);
  CHECK(of_seed(1)["parts"]["prefill pool: prefill"][0] == 7.0);
  CHECK(of_seed(2)["instances"] == OrderedJson::array({row("", 0, 0.3), row("", 1, 0.4)}));
}

TEST_CASE("of sessions told one by one a page has the times of each turn and hits by tier") {
  StoredSweep stored = sweep({{"/seed", {1, 2}}});
  Json& told = stored.points[1].report;
  const Json turn{{"agent", 0},         {"turn", 2},           {"sent_s", 1.0},
                  {"loading_s", 0.5},   {"begun_s", 2.0},      {"first_token_s", 3.0},
                  {"last_token_s", 7.}, {"prompt_tokens", 90}, {"output_tokens", 8}};
  const Json session{
      {"session", 5}, {"begun_s", 1.0}, {"ended_s", 7.0}, {"turns", Json::array({turn})}};
  told["sessions"]["slowest"] = Json::array({session});
  told["turns"]["over_time"] = Json::array({{{"begin_s", 0.0},
                                             {"end_s", 4.0},
                                             {"queried_tokens", 100},
                                             {"hit_tokens", 70},
                                             {"loaded_tokens", 20}}});
  int seen = 0;
  const OrderedJson data = page_data(stored, {});
  for (const OrderedJson& point : data["points"]) {
    if (point["id"] != stored.points[1].config_hash) {
      CHECK(!point.contains("sessions"));
      continue;
    }
    ++seen;
    const OrderedJson& sessions = point["sessions"];
    CHECK(sessions["over_time"] == OrderedJson::parse("[[0.0, 4.0, 100, 50, 20]]"));
    CHECK(sessions["slowest"][0]["session"] == 5);
    CHECK(sessions["slowest"][0]["turns"] ==
          OrderedJson::parse("[[0, 2, 1.0, 1.5, 2.0, 3.0, 7.0, 90, 8]]"));
  }
  CHECK(seen == 1);
}

TEST_CASE("a setting is what was set, also where a section of the report has its name") {
  StoredSweep stored = sweep({{"/instances", {1, 2}}});
  stored.points[1].report["instances"] = Json::array();
  PageOptions options;
  options.axes.by = {"/instances"};
  REQUIRE(page_data(stored, options)["groups"] == OrderedJson({{"1"}, {"2"}}));
}

}  // namespace
}  // namespace moesim::test_page
