// SPDX-License-Identifier: Apache-2.0
// Several models on one cluster: does each get GPUs of its own, is each alone what it is by itself,
// and does the spine slow each by what the others send?
#include <cmath>

#include <fmt/format.h>

#include "sim/serving/shared_run.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_shared_cluster {
namespace {

using Catch::Matchers::Contains;
using test::tiny_experiment;
using test::WithinAbs;
using test::WithinRel;

// Four nodes of 8 GPUs.
Json cluster(const Json& network = Json::object()) {
  Json json = ConfigNode::from_file(test::source_dir() / "hardware/clusters/h100x32.json").json();
  json["gpu"] = "h100";
  json["network"].merge_patch(network);
  return json;
}

// A deployment over two nodes, whose decode steps send tokens straight to experts: what such a step
// takes is a + V / (what the spine carries), where the spine is slower than the NICs.
Json wide(const char* name, const Json& set = Json::object()) {
  Json json = {
      {"name", name},
      {"parallel", {{"dp", 16}, {"tp", 1}, {"ep", 16}}},
      {"placement", {{"type", "linear"}, {"replication", 1.0}}},
      {"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}},
      {"dispatch", {{"prefill", "all_to_all"}, {"decode", "low_latency"}}},
      {"workload", tiny_experiment(Json::object())["workload"]},
  };
  json["workload"]["arrivals"]["concurrency"] = 128;
  json["workload"]["requests"] = 640;
  json.merge_patch(set);
  return json;
}

Json shared(const Json& deployments, const Json& network = Json::object()) {
  Json json = tiny_experiment({{"deployments", deployments}});
  json["cluster"] = cluster(network);
  return json;
}

ConfigNode node_of(const Json& json) { return {json, test::source_dir() / "tests" / "tiny.json"}; }
SharedCluster read(const Json& json) { return read_shared_cluster(node_of(json)); }
ClusterReport run_all(const Json& json) {
  TraceLibrary traces;
  return run_shared(read(json), traces);
}
std::string refused(const Json& json) {
  return test::config_error([&] { read(json); });
}

// The same experiment, written by hand.
Json plain(const Json& common, const Json& deployment) {
  Json json = common;
  json.erase("deployments");
  for (const auto& [key, value] : deployment.items()) json[key] = value;
  json.erase("name");
  return json;
}
std::string document(const Report& report) { return report.document().dump(); }
std::string without_config(const Report& report) {
  OrderedJson json = report.document();
  json.erase("context");
  return json.dump();
}

const DeploymentStats& stats_of(const ClusterReport& report, std::string_view name) {
  for (const auto& [key, stats] : report.deployments)
    if (key == name) return stats;
  throw std::logic_error("no such deployment");
}

double mean_step_s(const Report& report) {
  for (const auto& [kind, steps] : report.pool.steps.by_kind)
    if (kind == "decode") return steps.mean_ms / 1e3;
  return 0;
}
double bytes_of_step(const Report& report) {
  const CommunicationStats& sent = report.pool.communication;
  for (const auto& [kind, steps] : report.pool.steps.by_kind) {
    if (kind == "decode")
      return (sent.dispatch.all.network.value() + sent.combine.all.network.value()) /
             double(steps.steps);
  }
  return 0;
}

}  // namespace

TEST_CASE("a lone deployment is the plain experiment, byte for byte") {
  for (const Json& network : {Json::object(), Json{{"spine_bandwidth", "4 GB/s"}}}) {
    const Json json = shared(Json::array({wide("one")}), network);
    const ClusterReport report = run_all(json);
    const Report alone = run(test::load(plain(json, wide("one"))));
    CHECK(document(report.deployments[0].second.report) == document(alone));
    CHECK(report.cluster.output_throughput == alone.metrics.output_throughput);
  }
}

TEST_CASE("deployments on a non-blocking network are what each is alone") {
  const Json two{wide("a"), wide("b", {{"seed", 7}})};
  const Json json = shared(two);
  const ClusterReport report = run_all(json);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(document(report.deployments[i].second.report) ==
          document(run(test::load(plain(json, two[i])))));
  }
  CHECK_FALSE(report.cluster.spine);
  // A spine that carries what all NICs send is no bottleneck, whatever the others send.
  const ClusterReport wide_enough = run_all(shared(two, {{"spine_bandwidth", "1600 GB/s"}}));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(without_config(wide_enough.deployments[i].second.report) ==
          without_config(report.deployments[i].second.report));
  }
}

TEST_CASE("an exchange takes as long on a spine as on NICs that send as much together") {
  // 16 GPUs in two nodes, `bytes` from each to each: 8 x 16 messages cross the spine.
  const auto time = [](const Json& network) {
    const Fabric fabric(read_cluster(node_of(cluster(network))));
    return fabric.all_to_all(even_traffic(16, 1e6)).time.count();
  };
  const double narrow = time({{"bandwidth", "2 GB/s"}, {"bandwidth_share", 1}});
  CHECK_THAT(time({{"spine_bandwidth", "32 GB/s"}}), WithinRel(narrow, 1e-12));
  // 128 MB at 32 GB/s are 4 ms; the rest is the latency and the ramp of an all-to-all.
  CHECK(narrow > 4e-3);
  CHECK(narrow < 4.3e-3);
  CHECK(time({{"spine_bandwidth", "800 GB/s"}}) == time(Json::object()));
}

TEST_CASE("two deployments slow each other as worked out by hand") {
  // Both are the same, and send V bytes in a step of a + V / (C - r) seconds, of which the other
  // sends r = V / (a + V / (C - r)) a second: a r^2 - (a C + 2 V) r + V C = 0.
  constexpr double c = 4e9;
  const Json json = shared({wide("a"), wide("b")}, {{"spine_bandwidth", "4 GB/s"}});
  const ClusterReport report = run_all(json);
  const Report alone = run(test::load(plain(json, wide("a"))));
  const double v = bytes_of_step(alone), a = mean_step_s(alone) - v / c;
  REQUIRE(a > 0);
  const double b = a * c + 2 * v;
  const double r = (b - std::sqrt(b * b - 4 * a * v * c)) / (2 * a);
  const double step = a + v / (c - r);
  CAPTURE(a, v, r, step);
  // The spine matters, and is not full.
  CHECK(step > 1.1 * mean_step_s(alone));
  REQUIRE(r < 0.45 * c);
  for (const auto& [name, stats] : report.deployments) {
    CAPTURE(name);
    CHECK_THAT(mean_step_s(stats.report), WithinRel(step, 0.01));
    CHECK_THAT(stats.spine_bytes_per_s, WithinRel(r, 0.01));
    CHECK_THAT(stats.others_spine_bytes_per_s, WithinAbs(r, 0.01 * c));
    CHECK(stats.alone.output_throughput == alone.metrics.output_throughput);
    CHECK(stats.report.metrics.output_throughput < stats.alone.output_throughput);
  }
}

TEST_CASE("a deployment that others crowd out keeps its fair part of the spine") {
  // Both would fill the spine by themselves.
  const Json json = shared({wide("a"), wide("b")}, {{"spine_bandwidth", "100 MB/s"}});
  const ClusterReport report = run_all(json);
  for (const auto& [name, stats] : report.deployments) {
    CAPTURE(name);
    CHECK(stats.others_spine_bytes_per_s <= 50e6);
    CHECK_THAT(stats.others_spine_bytes_per_s, WithinRel(50e6, 0.05));
    CHECK_THAT(stats.spine_bytes_per_s, WithinRel(50e6, 0.05));
    CHECK_THAT(stats.report.metrics.output_throughput,
               WithinRel(stats.alone.output_throughput / 2, 0.05));
  }
}

TEST_CASE("traffic on the spine adds up, and is what the reports say") {
  Json pools = wide("pools", {{"parallel", {{"dp", 4}, {"tp", 1}, {"ep", 4}}}});
  pools["dispatch"]["decode"] = "all_to_all";
  pools["pools"] = {
      {"prefill",
       {{"scheduling",
         {{"type", "chunked_prefill"}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 8}}}}},
      {"decode", Json::object()}};
  pools["kv_transfer"] = {{"level", "network"}};
  const Json json = shared({wide("a"), pools}, {{"spine_bandwidth", "4 GB/s"}});
  const ClusterReport report = run_all(json);
  double sum = 0;
  for (const auto& [name, stats] : report.deployments) {
    sum += stats.spine_bytes_per_s;
    CHECK(stats.spine_bytes_per_s > 0);
  }
  CHECK(report.cluster.spine_bytes_per_s == sum);
  CHECK_THAT(report.cluster.spine->load, WithinRel(sum / 4e9, 1e-12));
  CHECK(report.cluster.spine->residual <= 0.005);
  const DeploymentStats& a = stats_of(report, "a");
  const OrderedJson sent = a.report.document()["communication"];
  CHECK_THAT(a.spine_bytes_per_s * a.report.metrics.duration_s,
             WithinRel(sent["dispatch"]["network_bytes"].get<double>() +
                           sent["combine"]["network_bytes"].get<double>(),
                       1e-9));
  // Groups of 4 GPUs are within NVLink domains: their KV caches alone cross the network. A prompt
  // of 20 tokens is two blocks of 16, of 3 layers' K and V, 4 heads of 64 in bf16.
  const DeploymentStats& p = stats_of(report, "pools");
  CHECK_THAT(p.spine_bytes_per_s,
             WithinRel(3 * 2 * 4 * 64 * 2 * 32.0 * p.report.metrics.request_throughput, 1e-9));
  CHECK_THAT(a.others_spine_bytes_per_s, WithinAbs(p.spine_bytes_per_s, 0.005 * 4e9));
}

TEST_CASE("a report of a deployment is that of its own config, with the others as background") {
  const Json json = shared({wide("a"), wide("b", {{"instances", 1}, {"seed", 3}})},
                           {{"spine_bandwidth", "4 GB/s"}});
  const ClusterReport report = run_all(json);
  for (const auto& [name, stats] : report.deployments) {
    CAPTURE(name);
    const Json& config = stats.report.context.config;
    CHECK(config["background"]["spine"] ==
          fmt::format("{:.0f} B/s", stats.others_spine_bytes_per_s));
    CHECK(without_config(run(test::load(config))) == without_config(stats.report));
  }
  CHECK(run_all(json).document().dump() == report.document().dump());
}

TEST_CASE("groups alike share the spine evenly, and others take theirs first") {
  Json json = plain(shared(Json::array(), {{"spine_bandwidth", "10 GB/s"}}), wide("a"));
  CHECK_THAT(test::load(json).decode().cluster.network.spine->value(), WithinRel(10e9, 1e-12));
  json["instances"] = 2;
  json["background"] = {{"spine", "4 GB/s"}};
  CHECK_THAT(test::load(json).decode().cluster.network.spine->value(), WithinRel(3e9, 1e-12));
}

TEST_CASE("deployments take GPUs in order, and none is cut by the end of an NVLink domain") {
  const auto of = [](const char* name, int gpus, int instances = 1) {
    return Json{{"name", name},
                {"parallel", {{"dp", gpus}, {"tp", 1}, {"ep", gpus}}},
                {"instances", instances}};
  };
  const SharedCluster placed =
      read(shared({of("a", 4), of("b", 4), of("c", 2), of("d", 8), of("e", 4, 2)}));
  std::vector<int> first;
  for (const Tenant& tenant : placed.tenants) first.push_back(tenant.first_gpu);
  CHECK(first == std::vector{0, 4, 8, 16, 24});
  CHECK_THAT(refused(shared({of("a", 4), of("b", 16), of("c", 4), of("d", 8)})),
             Contains("\"d\" needs 8 GPUs from GPU 32 on, but 32 x H100"));
}

TEST_CASE("what cannot be is refused in a sentence") {
  CHECK_THAT(refused(shared(Json::array())), Contains("at least one deployment"));
  CHECK_THAT(refused(shared(Json::array({Json::object()}))), Contains("\"name\" is missing"));
  CHECK_THAT(refused(shared({{{"name", ""}}})), Contains("is empty"));
  CHECK_THAT(refused(shared({{{"name", "a"}}, {{"name", "a"}}})),
             Contains("two deployments are called \"a\""));
  for (const char* key : {"cluster", "background", "power", "deployments"}) {
    CHECK_THAT(refused(shared({{{"name", "a"}, {key, Json::object()}}})),
               Contains(fmt::format("/deployments/0/{}: applies to the whole cluster", key)));
  }
  CHECK_THAT(refused(shared({{{"name", "a"}, {"modle", 1}}})), Contains("modle"));
  Json fails = shared({{{"name", "a"}}});
  fails["failures"] = Json::array();
  CHECK_THAT(refused(fails), Contains("does not say which deployment"));
  // Verbs that know one model.
  CHECK_THAT(test::refused(shared({{{"name", "a"}}})), Contains("--deployment"));
  CHECK_THAT(test::config_error([] {
               tenant_experiment(node_of(shared({{{"name", "a"}}, {{"name", "b"}}})), "c");
             }),
             Contains("none is called \"c\"; there are: a, b"));
  const Json spine{{"background", {{"spine", "4 GB/s"}}}};
  CHECK_THAT(test::refused(tiny_experiment(spine)), Contains("give network/spine_bandwidth"));
  Json full = tiny_experiment(spine);
  full["cluster"] = cluster({{"spine_bandwidth", "4 GB/s"}});
  CHECK_THAT(test::refused(full), Contains("is all of the spine's 4 GB/s"));
  full["cluster"] = cluster({{"spine_bandwidth", "0 GB/s"}});
  CHECK_THAT(test::refused(full), Contains("must be more than zero"));
}

TEST_CASE("every key of a report of several models is documented") {
  const OrderedJson json =
      run_all(shared({wide("a"), wide("b")}, {{"spine_bandwidth", "4 GB/s"}})).document();
  const std::function<void(const OrderedJson&, const std::string&)> look =
      [&](const OrderedJson& value, const std::string& at) {
        const bool leaf = !value.is_object() || at == "/context/config" || at.ends_with("/report");
        if (!leaf) {
          for (const auto& [key, child] : value.items()) look(child, at + "/" + key);
          return;
        }
        std::string documented = at;
        for (const char* name : {"/a/", "/b/"}) {
          if (const auto found = documented.find(name); found != std::string::npos)
            documented.replace(found, 3, "/NAME/");
        }
        CAPTURE(documented);
        CHECK(std::ranges::find(cluster_report_keys(), documented, &ReportKey::pointer) !=
              cluster_report_keys().end());
      };
  look(json, "");
}

}  // namespace moesim::test_shared_cluster
