// SPDX-License-Identifier: Apache-2.0
// Does overlap hide what it can, charge what it must, and pad what engines pad?
#include <filesystem>
#include <numeric>

#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "tests/step_parts.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_overlap {
namespace {

using test::seconds_of;
using test::sum;
using test::WithinRel;

Experiment experiment(const Json& patch) {
  const auto file = test::source_dir() / "configs/metro_deepseek_v3.json";
  Json json = ConfigNode::from_file(file).json();
  json["workload"]["gating"]["requests"] = 96;
  json.merge_patch(patch);
  static TraceLibrary traces;  // making one takes longer than a step
  return load_experiment(ConfigNode(json, file), traces);
}

StepCost step_with(const Json& overlap, int sequences = 64) {
  return explain_step(experiment({{"overlap", overlap}}), decode_step(sequences, 2048)).cost;
}

TEST_CASE("two chains share a compute and a link stream") {
  const std::vector<Segment> chain{{false, 2}, {true, 3}, {false, 1}};
  // A computes 0-2 and is on the link 2-5; B computes 2-4, waits for the link, 5-8, computes 8-9.
  CHECK(interleaved_seconds(chain, chain) == 9);
  CHECK(interleaved_seconds(chain, {}) == 6);
  CHECK(interleaved_seconds({}, {}) == 0);
  // Nothing on the links: nothing to hide.
  const std::vector<Segment> computing{{false, 4}};
  CHECK(interleaved_seconds(computing, computing) == 8);
  // Chains that never need the same stream take as long as the longer one.
  const std::vector<Segment> sending{{true, 3}};
  CHECK(interleaved_seconds(computing, sending) == 4);
}

TEST_CASE("what a transfer holds of the SMs slows what computes beside it") {
  // A quarter of the SMs for 4 seconds: 3 of the 5 seconds of computing are done by then.
  const std::vector<Segment> sending{{true, 4, 0.25}}, computing{{false, 5}};
  CHECK_THAT(interleaved_seconds(computing, sending), WithinRel(4 + 2.0, 1e-12));
  // All of them: one after the other.
  const std::vector<Segment> alone{{true, 4, 1}};
  CHECK_THAT(interleaved_seconds(computing, alone), WithinRel(9, 1e-12));
  // Nothing computes: nobody is slowed.
  CHECK_THAT(interleaved_seconds(sending, sending), WithinRel(8, 1e-12));
}

TEST_CASE("a low-latency exchange hides only while it is in flight") {
  const Experiment e =
      experiment({{"cluster", "../hardware/clusters/h100x16.json"},
                  {"placement", "linear"},
                  {"overlap", "two_batch"},
                  {"dispatch", {{"prefill", "all_to_all"}, {"decode", "low_latency"}}},
                  {"token_routing", {{"prefill", "even"}, {"decode", "even"}}}});
  const StepCost split = explain_step(e, decode_step(256, 2048)).cost;
  REQUIRE(split.micro_batches == 2);
  // 16 ranks send 256 tokens of 8 experts in two halves, in each of 58 layers: DeepEP's kernels of
  // dispatch take 60 us for 128 tokens, those of combine 50.
  // What is hidden is hidden of either in proportion.
  const auto exposed = [](const Traffic& traffic) { return traffic.time - traffic.hidden; };
  CHECK(exposed(split.dispatch) + exposed(split.combine) >= 2 * 58 * Seconds(110e-6) * (1 - 1e-9));
  CHECK(split.combine.hidden.count() > 0);
}

TEST_CASE("the host begins a step once, whether or not it is split") {
  const Json charges{{"token_routing", "none"}, {"host_overhead", "500 ms"}};
  const auto other = [&](const Json& overlap) {
    const Experiment e = experiment({{"overlap", overlap}, {"charges", charges}});
    return seconds_of(explain_step(e, decode_step(64, 2048)).cost, Part::other);
  };
  CHECK(other("two_batch") > 0.5);
  CHECK(other("two_batch") < 0.6);
  CHECK(other("none") > 0.5);
}

// A step of a made model on a shipped cluster whose GPU goes by its data sheet or by its tables.
StepCost made_step(const std::string& cluster, int tp, const Json& overlap, const char* host,
                   bool tables, int sequences) {
  const auto file = test::source_dir() / "hardware/clusters" / (cluster + ".json");
  Json json = ConfigNode::from_file(file).json();
  const auto gpu = file.parent_path() / json["gpu"].get<std::string>();
  json["gpu"] = tables ? Json(std::filesystem::canonical(gpu).string()) : test::bare_gpu(gpu);
  Json model = test::tiny_experiment({})["model"];
  model["vocabulary"] = 32'768;
  const Json set{{"cluster", json},
                 {"model", model},
                 {"parallel", {{"dp", 8 / tp}, {"tp", tp}, {"ep", 8}}},
                 {"placement", {{"type", "linear"}, {"replication", 1}}},
                 {"overlap", overlap},
                 {"charges", {{"token_routing", "none"}, {"host_overhead", host}}}};
  return explain_step(test::load_tiny(set), decode_step(sequences, 256)).cost;
}

TEST_CASE(
    "the parts of a step are the step, whatever overlaps, and no more is hidden than there is") {
  Rng rng(1, "overlaps");
  const auto one_of = [&](const std::vector<std::string>& all) {
    return all[static_cast<std::size_t>(rng.uniform() * double(all.size()))];
  };
  const std::vector<Json> overlaps{"none", "two_batch", Json{"two_batch", "combine_attention"},
                                   Json{"two_batch", "shared_expert", "combine_attention"}};
  int split = 0;
  for (int i = 0; i < 60; ++i) {
    const std::string cluster = one_of({"rubin_nvl72", "mi455x_helios72", "trainium3x144",
                                        "tpu_v7x64", "h100x8", "h100x16", "h200x16", "b200x8"});
    const int tp = 1 << static_cast<int>(rng.uniform() * 4);
    const Json overlap = overlaps[static_cast<std::size_t>(rng.uniform() * 4)];
    const int sequences = 8 << static_cast<int>(rng.uniform() * 6);
    const bool tables = rng.uniform() < 0.3;
    INFO(cluster << " tp " << tp << " " << overlap.dump() << " " << sequences
                 << (tables ? " with tables" : ""));
    const auto step = [&](const char* host) {
      return made_step(cluster, tp, overlap, host, tables, sequences);
    };
    const StepCost cost = step("0 us");
    split += cost.micro_batches == 2;
    CHECK_THAT(sum(cost.parts), WithinRel(cost.total.count(), 1e-9));
    for (std::size_t part = 0; part < cost.parts.size(); ++part) {
      const auto& grounds = cost.by_evidence[part];
      const double all = seconds_of(cost, static_cast<Part>(part));
      CHECK(all >= 0);
      CHECK_THAT(std::accumulate(grounds.begin(), grounds.end(), 0.0),
                 WithinRel(all, 1e-9) || test::WithinAbs(all, 1e-15));
    }
    for (const Traffic* traffic : {&cost.dispatch, &cost.combine, &cost.all_reduce}) {
      CHECK(traffic->hidden.count() >= -1e-15);
      CHECK(traffic->hidden <= traffic->time * (1 + 1e-9));
    }
    // Nothing hides what the host does before a step.
    CHECK_THAT(step("10 us").total.count() - cost.total.count(), WithinRel(10e-6, 1e-6));
  }
  CHECK(split > 15);
}

TEST_CASE("sampled steps are split like exact ones") {
  Json patch{{"overlap", "two_batch"},
             {"workload",
              {{"arrivals", {{"concurrency_per_rank", 64}}},
               {"lengths", {{"type", "fixed"}, {"prompt", 256}, {"output", 12}}},
               {"requests", 1024}}}};
  const auto step_ms = [&](const char* fidelity) {
    patch["fidelity"] = fidelity;
    return run(experiment(patch)).document().at("/steps/decode/mean_ms"_json_pointer).get<double>();
  };
  CHECK_THAT(step_ms("sampled"), WithinRel(step_ms("exact"), 0.05));
}

TEST_CASE("the shared expert hides behind dispatch, and no more than there is of either") {
  const StepCost plain = step_with("none"), hidden = step_with("shared_expert");
  const double shared = seconds_of(plain, Part::shared_experts);
  CHECK(hidden.dispatch.time == plain.dispatch.time);
  CHECK(hidden.dispatch.hidden.count() > 0);
  CHECK(hidden.dispatch.hidden.count() <= shared * (1 + 1e-9));
  CHECK(hidden.dispatch.hidden <= plain.dispatch.time);
  CHECK_THAT(plain.total.count() - hidden.total.count(),
             WithinRel(hidden.dispatch.hidden.count(), 1e-9));
  CHECK_THAT(seconds_of(hidden, Part::dispatch),
             WithinRel((plain.dispatch.time - hidden.dispatch.hidden).count(), 1e-9));
}

TEST_CASE("combine beside the next attention leaves exposed what attention does not cover") {
  const StepCost plain = step_with("none"), hidden = step_with("combine_attention");
  CHECK(hidden.combine.hidden.count() > 0);
  CHECK_THAT(plain.total.count() - hidden.total.count(),
             WithinRel(hidden.combine.hidden.count(), 1e-9));
  const StepCost both = step_with({"shared_expert", "combine_attention"});
  CHECK(both.total < hidden.total);
}

TEST_CASE("two micro-batches pay for their own experts") {
  const StepCost plain = step_with("none"), split = step_with("two_batch");
  REQUIRE(split.micro_batches == 2);
  double weights = 0, halves = 0;
  for (std::size_t l = 0; l < plain.layers.size(); ++l) {
    weights += plain.layers[l].load.max_activated;
    halves += split.layers[l].load.max_activated;
    // Nothing is lost: tokens of both halves are the tokens of the step.
    const auto total = [](const LayerLoad& load) {
      return std::accumulate(load.tokens.begin(), load.tokens.end(), 0);
    };
    REQUIRE(total(plain.layers[l].load) == total(split.layers[l].load));
  }
  // Two micro-batches of half the tokens each take 1.3 to 2 times the weight reads.
  CHECK(halves > 1.3 * weights);
  CHECK(halves <= 2 * weights);
  CHECK(seconds_of(split, Part::experts) > 1.3 * seconds_of(plain, Part::experts));
  CHECK(split.dispatch.hidden.count() > 0);
}

TEST_CASE("small batches are not split, and every kind of overlap adds up") {
  CHECK(step_with("two_batch", 32).micro_batches == 1);
  CHECK(step_with("two_batch", 33).micro_batches == 2);
  for (const Json& overlap :
       {Json("none"), Json("shared_expert"), Json("two_batch"),
        Json({"shared_expert", "combine_attention"}), Json({"two_batch", "shared_expert"})}) {
    CAPTURE(overlap.dump());
    const StepCost cost = step_with(overlap);
    CHECK_THAT(sum(cost.parts), WithinRel(cost.total.count(), 1e-9));
    for (const Traffic& traffic : {cost.dispatch, cost.combine, cost.all_reduce}) {
      CHECK(traffic.hidden <= traffic.time * (1 + 1e-9));
    }
  }
}

TEST_CASE("a prompt that is cut in two keeps its attention work") {
  const Experiment e = experiment({{"overlap", "two_batch"}});
  const Experiment plain = experiment(Json::object());
  const StepCost split = explain_step(e, prefill_step(2048)).cost;
  const StepCost whole = explain_step(plain, prefill_step(2048)).cost;
  REQUIRE(split.micro_batches == 2);
  // The second half attends to the first: the same query-key pairs, 2 x 2048^2 / 8 + 1024^2, though
  // keys of the first half are read twice and launches are paid twice.
  CHECK(seconds_of(split, Part::attention) >= seconds_of(whole, Part::attention));
  CHECK(seconds_of(split, Part::attention) < 1.3 * seconds_of(whole, Part::attention));
}

TEST_CASE("decode batches are padded to the captured size of the fullest rank") {
  // Rows of tables are not strictly monotone from 5 to 64 sequences.
  Json small{{"engine", {{"name", "none"}}},
             {"workload",
              {{"arrivals", {{"concurrency_per_rank", 5}}},
               {"lengths", {{"prompt", 16}, {"output", 24}}},
               {"requests", 80}}}};
  const Report plain = run(experiment(small));
  small["cuda_graph"] = {{"sizes", {64}}};
  const Report padded = run(experiment(small));
  const auto step_ms = [](const Report& r) {
    return r.document().at("/steps/decode/mean_ms"_json_pointer).get<double>();
  };
  CHECK(step_ms(padded) > step_ms(plain));
  // 5 sequences exceed every captured size: they run as they are.
  small["cuda_graph"] = {{"sizes", {1, 4}}};
  CHECK(step_ms(run(experiment(small))) == step_ms(plain));
}

TEST_CASE("a link that others use is slower by what they use") {
  const Experiment e = experiment({{"background", {{"nvlink", 0.5}}}});
  const Experiment alone = experiment(Json::object());
  CHECK_THAT(e.decode().cluster.gpu.scale_up_bandwidth.value(),
             WithinRel(alone.decode().cluster.gpu.scale_up_bandwidth.value() / 2, 1e-12));
  CHECK(e.decode().cluster.network.bandwidth == alone.decode().cluster.network.bandwidth);
}

TEST_CASE("an overlap that does not exist is refused with the nearest name") {
  CHECK_THROWS_WITH(
      experiment({{"overlap", "two_batches"}}),
      Catch::Matchers::Contains("/overlap") && Catch::Matchers::Contains("two_batch"));
}

}  // namespace
}  // namespace moesim::test_overlap
