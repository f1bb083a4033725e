// SPDX-License-Identifier: Apache-2.0
// How many selections does the GPU of their token serve, how many its NVLink domain?
#include "sim/dispatch/token_traffic.hpp"
#include "sim/replay/replay.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "tests/support.hpp"
#include "tests/trace_meta.hpp"

namespace moesim::test_locality {

using namespace moesim::test;

namespace {

using Tokens = std::vector<std::int32_t>;

TEST_CASE("selections are counted on their own rank and within its domain") {
  // Slots 0 to 3 on ranks 0 to 3, two ranks to a domain; one selection does not run.
  const LayerPlacement four(4, {{0}, {1}, {2}, {3}});
  const Tokens slots{0, 1, /**/ 2, 3, /**/ 0, 2, /**/ -1, 3};
  const Locality near = locality(four, slots, Tokens{0, 1, 3, 3}, 2);
  CHECK(near.selections == 7);
  // Slot 0 of the first token, slot 3 of the last one.
  CHECK(near.own_gpu == 2);
  // These, slot 1 of the first token and slot 2 of the third.
  CHECK(near.own_domain == 4);
  const Locality one_domain = locality(four, slots, Tokens{0, 1, 3, 3}, 4);
  CHECK(one_domain.own_domain == 7);
  CHECK(locality(four, {}, {}, 1).selections == 0);
}

Experiment experiment(const Json& patch) {
  const auto file = source_dir() / "configs/study_prefill.json";
  Json json = ConfigNode::from_file(file).json()["base"];
  json["workload"]["gating"]["requests"] = 96;
  json["workload"]["requests"] = 64;
  json["measurement"] = {{"locality", true}};
  json.merge_patch(patch);
  static TraceLibrary traces;
  return load_experiment(ConfigNode(json, file), traces);
}

TEST_CASE("a step counts what its messages say") {
  const Experiment e = experiment({{"dispatch", {{"decode", "low_latency"}}}});
  const StepCost cost = explain_step(e, decode_step(16, 512)).cost;
  std::int64_t elsewhere = 0;
  for (const LayerOutcome& layer : cost.layers) {
    const Locality& near = layer.locality;
    REQUIRE(near.selections == 16 * 16 * 8);
    REQUIRE(near.own_gpu <= near.own_domain);
    REQUIRE(near.own_domain <= near.selections);
    elsewhere += near.selections - near.own_gpu;
  }
  // Every other selection is a message of 7,168 values in bf16.
  const double bytes = (cost.dispatch.nvlink + cost.dispatch.network).value();
  CHECK_THAT(bytes, WithinRel(2.0 * 7168 * static_cast<double>(elsewhere), 1e-9));
}

TEST_CASE("a run reports shares where it is asked for them, and is the same otherwise") {
  const Json asked = run(experiment(Json::object())).document();
  const Json silent = run(experiment({{"measurement", {{"locality", false}}}})).document();
  CHECK(asked.at("metrics") == silent.at("metrics"));
  CHECK_FALSE(silent.at("experts").contains("own_gpu_share"));
  const double own = asked.at("experts").at("own_gpu_share").get<double>();
  const double domain = asked.at("experts").at("own_domain_share").get<double>();
  // 16 ranks in two domains, and a routing that does not look where a token is.
  CHECK_THAT(own, WithinAbs(1.0 / 16, 0.02));
  CHECK_THAT(domain, WithinAbs(0.5, 0.05));
  // All replicas on all GPUs: nothing leaves one domain.
  const Json near = run(experiment({{"cluster", "../hardware/clusters/h200x16.json"},
                                    {"parallel", {{"dp", 8}, {"ep", 8}}},
                                    {"precision", {{"experts", "fp8_block"}}}}))
                        .document();
  CHECK(near.at("experts").at("own_domain_share") == 1.0);
}

TEST_CASE("no share where experts have GPUs of their own") {
  CHECK_THAT(
      config_error([] {
        experiment({{"parallel", {{"dp", 8}, {"ep", 8}, {"ffn_gpus", 8}}}});
      }),
      Catch::Matchers::Contains("/measurement/locality") && Catch::Matchers::Contains("ffn_gpus"));
}

TEST_CASE("replay counts by the same function") {
  // Two requests of one token; each chooses both experts of its own GPU.
  const RoutingTrace trace(test::trace_meta("hand", 4, 2, {0}), {"any"},
                           {{0, 1, 0, 0, false}, {1, 1, 0, 0, false}}, {0, 1, 0, 1});
  ReplayConfig config;
  config.gpus = 2;
  config.placements = {ConfigNode("linear", "test")};
  config.replications = {1};
  config.routings = {ConfigNode("even", "test")};
  config.batches = {2};
  config.sampled_batches = 3;
  config.nodes = 2;
  CHECK_FALSE(replay(trace, config)[0].own_gpu_share);
  config.locality = true;
  const auto rows = replay(trace, config);
  // Experts 0 and 1 are on GPU 0, and so is one token of two.
  CHECK(rows[0].own_gpu_share == 0.5);
  CHECK(rows[0].own_node_share == 0.5);
  CHECK(to_json(rows)["rows"][0].at("own_gpu_share") == 0.5);
  config.nodes = 1;
  CHECK(replay(trace, config)[0].own_node_share == 1.0);
}

}  // namespace

}  // namespace moesim::test_locality
