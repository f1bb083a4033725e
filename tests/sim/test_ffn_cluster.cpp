// SPDX-License-Identifier: Apache-2.0
// Does each side of a group take its own GPUs' time, memory, power and price when experts have a
// cluster of their own?
#include <fmt/format.h>

#include "sim/experiment/pools.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "tests/step_parts.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_ffn_cluster {
namespace {

using Catch::Matchers::Contains;
using test::refused;
using test::seconds_of;
using test::WithinRel;

constexpr const char* h100 = "h100x16.json";
constexpr const char* h200 = "h200x16.json";
constexpr const char* b200 = "b200x8.json";

// A shipped cluster with its GPU inline, changed by merge patches.
Json cluster_of(const std::string& file, const Json& gpu = Json::object(),
                const Json& set = Json::object()) {
  const auto path = test::source_dir() / "hardware/clusters" / file;
  Json cluster = ConfigNode::from_file(path).json();
  Json of_gpu = test::bare_gpu(path.parent_path() / cluster["gpu"].get<std::string>());
  of_gpu.merge_patch(gpu);
  cluster["gpu"] = of_gpu;
  cluster["network"]["bandwidth"] = "50 GB/s";
  cluster.merge_patch(set);
  return cluster;
}

// Eight GPUs for attention and eight for experts, of `experts` if it is a cluster.
Json apart(const Json& attention, const Json& experts, const Json& set = Json::object()) {
  Json json = test::tiny_experiment(
      {{"parallel", {{"dp", 8}, {"ep", 8}, {"ffn_gpus", 8}, {"micro_batches", 1}}}});
  json["cluster"] = attention;
  if (!experts.is_null()) json["ffn_cluster"] = experts;
  json.merge_patch(set);
  return json;
}

StepCost step_of(const Json& json) {
  return explain_step(test::load(json), decode_step(8, 256)).cost;
}

TEST_CASE("the same cluster twice is one cluster, to the bit") {
  for (const int micro_batches : {1, 3}) {
    const Json set{{"parallel", {{"micro_batches", micro_batches}}}};
    const StepCost one = step_of(apart(cluster_of(h100), nullptr, set));
    const StepCost two = step_of(apart(cluster_of(h100), cluster_of(h100), set));
    CHECK(two.total == one.total);
    CHECK(two.parts == one.parts);
    CHECK(two.idle == one.idle);
    CHECK(two.afd->critical == one.afd->critical);
    for (std::size_t part = 0; part < one.energy.joules.size(); ++part)
      CHECK_THAT(two.energy.joules[part], WithinRel(one.energy.joules[part], 1e-12));
  }
}

TEST_CASE("each side computes as it does on a cluster of its own GPUs alone") {
  const Json b200s = cluster_of(b200, Json::object(), {{"nodes", 2}});
  const StepCost mixed = step_of(apart(cluster_of(h100), b200s));
  const StepCost of_h100 = step_of(apart(cluster_of(h100), nullptr));
  const StepCost of_b200 = step_of(apart(b200s, nullptr));
  for (const Part part : {Part::attention, Part::gate, Part::permute, Part::other})
    CHECK(seconds_of(mixed, part) == seconds_of(of_h100, part));
  CHECK(seconds_of(mixed, Part::experts) == seconds_of(of_b200, Part::experts));
  CHECK(seconds_of(mixed, Part::experts) != seconds_of(of_h100, Part::experts));
  // NICs alike: tokens travel as from attention's GPUs.
  CHECK(mixed.dispatch.time == of_h100.dispatch.time);
  CHECK(mixed.combine.time == of_h100.combine.time);
}

TEST_CASE("tokens travel at the rate of the slower NIC, whichever side has it") {
  // So wide that bytes count.
  const auto with = [](const Json& attention, const Json& experts) {
    Json json = apart(attention, experts);
    json["model"]["hidden"] = 16'384;
    return step_of(json);
  };
  const Json fast = cluster_of(h100);
  const Json slow = cluster_of(h100, Json::object(), {{"network", {{"bandwidth", "5 GB/s"}}}});
  const StepCost of_fast = with(fast, fast);
  for (const StepCost& mixed : {with(slow, fast), with(fast, slow)}) {
    CHECK(mixed.dispatch.time == with(slow, nullptr).dispatch.time);
    CHECK(mixed.dispatch.time > 2 * of_fast.dispatch.time);
    CHECK(mixed.dispatch.network == of_fast.dispatch.network);
  }
}

TEST_CASE("experts may be on a cluster whose nodes are of another size") {
  const auto all = [](const char* attention, const char* experts, int dp, int ffn) {
    return step_of(apart(cluster_of(attention), cluster_of(experts),
                         {{"model", {{"experts", {{"count", 64}}}}},
                          {"placement", {{"replication", 1}}},
                          {"parallel", {{"dp", dp}, {"ep", ffn}, {"ffn_gpus", ffn}}}}));
  };
  for (const StepCost& cost : {all("h200x64.json", "tpu_v7x64.json", 64, 64),
                               all("tpu_v7x64.json", "h100x32.json", 64, 32),
                               all("h100x16.json", "h200x64.json", 16, 64)}) {
    CHECK(cost.dispatch.time > Seconds{});
    CHECK(cost.dispatch.nvlink.value() == 0);  // no NVLink joins the sides
  }
}

TEST_CASE("memory is that of the side's own GPU") {
  const Json large = cluster_of(h100, {{"hbm_capacity", "200 GB"}});
  const Deployment mixed = test::load(apart(cluster_of(h100), large)).decode();
  const Deployment alone = test::load(apart(cluster_of(h100), nullptr)).decode();
  CHECK(mixed.memory.kv_blocks == alone.memory.kv_blocks);
  CHECK(mixed.ffn_memory->capacity == Bytes(200e9));
  CHECK_THAT((mixed.ffn_memory->kv - alone.ffn_memory->kv).value(),
             WithinRel((Bytes(200e9) - alone.ffn_memory->capacity).value() * 0.9, 1e-9));
}

TEST_CASE("a step knows how long GPUs compute on the experts' side") {
  const StepCost cost = step_of(apart(cluster_of(h100), cluster_of(h100)));
  double seconds = 0;
  for (const LayerOutcome& layer : cost.layers)
    for (const Cost& rank : layer.experts) seconds += rank.time.count();
  CHECK_THAT(cost.energy.computing_experts, WithinRel(seconds, 1e-12));
  CHECK(cost.energy.computing > seconds);
}

TEST_CASE("a side's GPUs that draw more while they wait draw so much more in all") {
  const auto watts = [](const Json& experts) {
    return test::load(apart(cluster_of(h200), experts, {{"workload", {{"requests", 240}}}}));
  };
  const Json gpu = cluster_of(h200)["gpu"];
  const double idle = std::stod(gpu["power"]["idle"].get<std::string>());
  const Json warm = cluster_of(h200, {{"power", {{"idle", fmt::format("{} W", idle + 50)}}}});
  const Report before = run(watts(cluster_of(h200))), after = run(watts(warm));
  REQUIRE(after.energy);
  // Half of the GPUs; waiting is nearly all that experts so small do.
  const double more = after.energy->watts_per_gpu - before.energy->watts_per_gpu;
  CHECK(more < 25);
  CHECK(more > 15);
  // Where a side's draw is not known, none is told.
  Json unknown = cluster_of(h200);
  unknown["gpu"].erase("power");
  CHECK(!run(watts(unknown)).energy);
}

TEST_CASE("an hour costs what the GPUs of both sides cost") {
  const auto priced = [](double dollars) {
    return cluster_of(h100,
                      {{"price", {{"dollars_per_hour", dollars}, {"source", "made for a test"}}}});
  };
  const Metrics m = run(test::load(apart(priced(2), priced(4)))).metrics;
  REQUIRE(m.cost_per_million_output_tokens);
  CHECK_THAT(*m.cost_per_million_output_tokens,
             WithinRel(8 * (2.0 + 4) / 3600 / m.output_throughput * 1e6, 1e-9));
  Json unpriced = cluster_of(h100);
  unpriced["gpu"].erase("price");
  CHECK(!run(test::load(apart(priced(2), unpriced))).metrics.cost_per_million_output_tokens);
}

TEST_CASE("utilisation counts each side's own GPUs") {
  const Json twice = cluster_of(h100, {{"hbm_bandwidth", "6.7 TB/s"}});
  const auto read = [](const Experiment& e) {
    double bandwidth = 0;
    for (const auto& [gpu, gpus] : kinds_of_gpus(e.decode()))
      bandwidth += gpu.hbm_bandwidth.value() * gpus;
    const Metrics m = run(e).metrics;
    return m.mbu * bandwidth * m.duration_s;
  };
  const Experiment mixed = test::load(apart(cluster_of(h100), twice));
  CHECK(kinds_of_gpus(mixed.decode()).size() == 2);
  CHECK_THAT(read(mixed), WithinRel(read(test::load(apart(cluster_of(h100), nullptr))), 1e-6));
}

TEST_CASE("the resolved config names both clusters and gives the same run") {
  const Json b200s = cluster_of(b200);
  const OrderedJson report = run(test::load(apart(cluster_of(h100), b200s))).document();
  const Json config = Json::parse(report["context"]["config"].dump());
  CHECK(config["ffn_cluster"]["name"] == b200s["name"]);
  CHECK(config["cluster"]["name"] == cluster_of(h100)["name"]);
  CHECK(run(test::load(config)).document()["metrics"].dump() == report["metrics"].dump());
}

TEST_CASE("GPUs of the experts' cluster are not counted in the other, in a pool neither") {
  const Json pools{{"pools",
                    {{"prefill", {{"parallel", {{"dp", 8}}}}},
                     {"decode",
                      {{"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}},
                       {"ffn_cluster", cluster_of(b200)},
                       {"parallel", {{"dp", 8}, {"ffn_gpus", 8}}}}}}}};
  const Json json = test::tiny_experiment(pools);
  const Experiment e = test::load(json);
  CHECK(gpus_of(e) == 24);
  CHECK(gpus_in_cluster(e.decode()) == 8);
  CHECK(run(e).metrics.completed == 120);
  Json one = json;
  one["pools"]["decode"].erase("ffn_cluster");
  CHECK_THAT(refused(one), Contains("8 GPUs for prefill and 16 for decode are 24"));
}

TEST_CASE("groups on two clusters do not move between pools") {
  const Json group{{"ffn_cluster", cluster_of(b200)}, {"parallel", {{"dp", 8}, {"ffn_gpus", 8}}}};
  Json decode = group;
  decode["scheduling"] = {{"type", "decode_only"}, {"max_num_seqs", 8}};
  const Json json =
      test::tiny_experiment({{"pools", {{"prefill", group}, {"decode", decode}}},
                             {"pool_roles", {{"type", "thresholds"}, {"least_groups", 1}}}});
  CHECK_THAT(refused(json), Contains("/pool_roles") && Contains("leave out \"ffn_cluster\""));
}

TEST_CASE("drafts and moving experts take the experts' GPUs, too") {
  const auto with = [](const Json& experts, const Json& set) {
    return run(test::load(apart(cluster_of(h100), experts, set))).document();
  };
  // Twice the experts' HBM bandwidth, nothing else.
  const Json fast = cluster_of(h100, {{"hbm_bandwidth", "6.7 TB/s"}});
  const Json drafts{{"speculative", {{"num_speculative_tokens", 1}, {"acceptance_rate", 0.7}}},
                    {"scheduling", {{"max_num_seqs", 4}}}};
  const auto draft_ms = [&](const Json& experts) {
    return with(experts, drafts)["speculative"]["draft_seconds"].get<double>();
  };
  CHECK(draft_ms(fast) < draft_ms(nullptr));
  const Json moves{
      {"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 20}, {"window_size", 20}}},
      {"placement", {{"type", "eplb"}, {"replication", 1.5}}}};
  CHECK(with(fast, moves)["metrics"]["completed"] == 120);
}

TEST_CASE("clusters that do not fit together are refused in a sentence") {
  const auto with = [](const Json& set) {
    return refused(apart(cluster_of(h100), cluster_of(b200), set));
  };
  CHECK(with(Json::object()).empty());
  CHECK_THAT(with({{"parallel", {{"ffn_gpus", nullptr}, {"micro_batches", nullptr}}}}),
             Contains("/ffn_cluster") && Contains("give \"parallel/ffn_gpus\""));
  CHECK_THAT(with({{"parallel", {{"ep", 16}, {"ffn_gpus", 16}}}}),
             Contains("ffn_gpus = 16, but 8 x B200 has 8 GPUs"));
  CHECK_THAT(with({{"parallel", {{"dp", 4}}}}),
             Contains("dp * tp = 4 GPUs for attention do not fill NVLink domains of 8"));
  CHECK_THAT(with({{"parallel", {{"dp", 24}}}}), Contains("dp * tp = 24 GPUs, but"));
  CHECK_THAT(with({{"instances", 2}}),
             Contains("2 instances of 8 GPUs take 16, but 8 x B200 has 8; 1 fit"));
}

}  // namespace
}  // namespace moesim::test_ffn_cluster
