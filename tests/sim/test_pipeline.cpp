// SPDX-License-Identifier: Apache-2.0
// Do pipeline stages take the time, the memory and the transfers that they should?
#include <numeric>

#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "sim/step/micro_batches.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_pipeline {
namespace {

using Catch::Matchers::Contains;
using namespace test;

using Times = std::vector<std::vector<Seconds>>;

// Six layers and as many GPUs as asked for.
Experiment experiment(int dp, int tp, int pp, Json set = Json::object()) {
  Json json = tiny_experiment({{"parallel", {{"dp", dp}, {"tp", tp}, {"ep", dp * tp}}},
                               {"placement", {{"type", "linear"}, {"replication", 1}}}});
  json["model"]["layers"][0]["repeat"] = 6;
  json["parallel"]["pp"] = pp;
  json.merge_patch(set);
  return load(json);
}

double sum(const Breakdown& parts) {
  double seconds = 0;
  for (const auto& part : parts) seconds += std::accumulate(part.begin(), part.end(), 0.0);
  return seconds;
}

double pipeline_of(const StepCost& cost) {
  const auto& row = cost.parts[static_cast<std::size_t>(Part::pipeline)];
  return std::accumulate(row.begin(), row.end(), 0.0);
}

double tokens_of(const StepCost& cost) {
  double tokens = 0;
  for (const LayerOutcome& layer : cost.layers) {
    tokens += std::accumulate(layer.load.tokens.begin(), layer.load.tokens.end(), 0.0);
  }
  return tokens;
}

TEST_CASE("the slowest stage or the slowest micro-batch sets a pipeline's period") {
  const Seconds t(1), none(0);
  const Times free_ways{{none, none}, {none, none}};
  // Balanced: both stages are always busy, a micro-batch is back after its two.
  CHECK(pipeline_period(Times{{t, t}, {t, t}}, free_ways) == 2 * t);
  // Stage 1 serves 3 + 3 in each round, whatever stage 0 does.
  CHECK(pipeline_period(Times{{t, 3 * t}, {t, 3 * t}}, free_ways) == 6 * t);
  // Micro-batch 0 needs 2 + 5 of its own before it can start again.
  CHECK(pipeline_period(Times{{2 * t, 5 * t}, {t, t}}, free_ways) == 7 * t);
  // Ways take time too, but no stage: 1 + 4 + 1.
  CHECK(pipeline_period(Times{{t, t}, {t, t}}, Times{{4 * t, none}, {none, none}}) == 6 * t);
  // A single micro-batch leaves all stages but one idle.
  CHECK(pipeline_period(Times{{t, t, t}}, Times{{none, none, none}}) == 3 * t);
}

TEST_CASE("the first round of a pipeline fills it") {
  const Seconds t(1), none(0);
  const Times free_ways{{none, none}, {none, none}};
  // Micro-batch 1 follows a stage behind: 2 + 1.
  CHECK(first_round(Times{{t, t}, {t, t}}, free_ways) == 3 * t);
  CHECK(first_round(Times{{t, 3 * t}, {t, 3 * t}}, free_ways) == 7 * t);
  CHECK(first_round(Times{{t, t, t}}, Times{{none, none, none}}) == 3 * t);
}

TEST_CASE("a lone prompt is not cut: it passes all stages, one after the other") {
  const auto ttft = [](int pp, int prompt_chunk) {
    Json set{{"workload",
              {{"requests", 1},
               {"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
               {"lengths", {{"type", "fixed"}, {"prompt", 16'384}, {"output", 2}}}}},
             {"scheduling", {{"max_num_batched_tokens", prompt_chunk}}}};
    return run(experiment(1, 1, pp, set))
        .document()
        .at("/metrics/mean_ttft_ms"_json_pointer)
        .get<double>();
  };
  constexpr int whole = 16'384, quarter = whole / 4;
  CHECK(ttft(2, whole) >= ttft(1, whole));
  CHECK(ttft(2, whole) < 1.1 * ttft(1, whole));
  // Of four chunks the first fills both stages; the others follow at half its time.
  CHECK(ttft(2, quarter) < .8 * ttft(1, quarter));
  CHECK(ttft(2, quarter) > .6 * ttft(1, quarter));
}

TEST_CASE("micro-batches hold every token, row and sample once") {
  StepBatch batch;
  batch.ranks = {{{{1, 10}, {1, 20}, {9, 30}}, 11, 3, 2, false}, {{{1, 5}}, 1, 1, 0, false}};
  batch.rows = {{Phase::decode, 0, 2, 100}, {Phase::prefill, 0, 9, 200}, {Phase::decode, 1, 1, 7}};
  const std::vector<StepBatch> parts = micro_batches(batch, 3);
  REQUIRE(parts.size() == 3);
  // ceil(11/3) = 4, ceil(22/3) = 8, 11.
  CHECK(parts[0].ranks[0].tokens == 4);
  CHECK(parts[1].ranks[0].tokens == 4);
  CHECK(parts[2].ranks[0].tokens == 3);
  REQUIRE(parts[0].ranks[0].sequences.size() == 3);
  CHECK(parts[0].ranks[0].sequences[2].new_tokens == 2);
  REQUIRE(parts[1].ranks[0].sequences.size() == 1);
  CHECK(parts[1].ranks[0].sequences[0].context_tokens == 32);
  CHECK(parts[2].ranks[0].sequences[0].context_tokens == 36);
  CHECK(parts[0].ranks[1].tokens == 1);
  CHECK(parts[1].ranks[1].tokens == 0);
  std::int32_t sampled = 0, padding = 0;
  for (const StepBatch& part : parts) {
    sampled += part.ranks[0].sampled;
    padding += part.ranks[0].padding;
  }
  CHECK(sampled == 3);
  CHECK(padding == 2);
  REQUIRE(parts[1].rows.size() == 1);
  CHECK(parts[1].rows[0].first_row == 202);
  CHECK(parts[1].rows[0].count == 4);
}

TEST_CASE("a round's parts add up to it, and every token passes every layer once") {
  const StepCost cost = explain_step(experiment(2, 1, 2), decode_step(8, 256)).cost;
  CHECK_THAT(sum(cost.parts), WithinRel(cost.total.count(), 1e-12));
  CHECK(cost.idle.size() == 4);
  for (const double idle : cost.idle) {
    CHECK(idle >= -1e-12);
    CHECK(idle <= cost.total.count());
  }
  // 2 ranks of 8 sequences, top 2, 6 layers.
  CHECK(tokens_of(cost) == 2 * 8 * 2 * 6);
  CHECK(pipeline_of(cost) > 0);
}

TEST_CASE("a stage holds its share of weights and KV cache") {
  const Experiment whole = experiment(2, 1, 1), piped = experiment(2, 1, 2);
  CHECK(piped.decode().memory.experts * 2 == whole.decode().memory.experts);
  CHECK(piped.decode().memory.weights < whole.decode().memory.weights);
  CHECK(piped.decode().kv_layout.block * 2 == whole.decode().kv_layout.block);
  CHECK(piped.decode().memory.kv_blocks > 2 * whole.decode().memory.kv_blocks);
}

TEST_CASE("layers left over go to the stages before the last, as engines cut them") {
  // get_pp_indices() of vllm/distributed/utils.py.
  const auto stages = [](int layers, int pp) {
    ParallelPlan plan;
    plan.pp = pp;
    std::vector<int> of_stage(static_cast<std::size_t>(pp));
    for (int layer = 0; layer < layers; ++layer)
      ++of_stage[static_cast<std::size_t>(plan.stage_of(layer, layers))];
    return of_stage;
  };
  CHECK(stages(94, 4) == std::vector{23, 24, 24, 23});
  CHECK(stages(61, 8) == std::vector{7, 7, 8, 8, 8, 8, 8, 7});
  CHECK(stages(7, 4) == std::vector{2, 2, 2, 1});
  CHECK(stages(6, 3) == std::vector{2, 2, 2});
}

TEST_CASE("two stages serve one sequence no faster than one") {
  // One micro-batch: a stage waits while the other works, and the hop is on top.
  const StepCost whole = explain_step(experiment(1, 1, 1), decode_step(1, 256)).cost;
  const StepCost piped = explain_step(experiment(1, 1, 2), decode_step(1, 256)).cost;
  CHECK(piped.total > whole.total);
  CHECK_THAT(sum(piped.parts), WithinRel(piped.total.count(), 1e-12));
  CHECK(pipeline_of(piped) > .4 * piped.total.count());
}

TEST_CASE("a run through a pipeline loses no request") {
  const Report report = run(experiment(2, 1, 2));
  CHECK(report.document().at("/metrics/completed"_json_pointer).get<int>() == 120);
}

TEST_CASE("what a pipeline is not modelled with is refused by name") {
  CHECK_THAT(config_error([] {
               experiment(2, 1, 2, {{"overlap", "two_batch"}});
             }),
             Contains("\"two_batch\" is not modelled with pp 2"));
  CHECK_THAT(config_error([] { experiment(16, 1, 2); }), Contains("dp * tp * pp = 32 GPUs, but"));
  CHECK_THAT(config_error([] { experiment(3, 1, 2); }),
             Contains("stages of dp * tp = 3 GPUs do not line up with NVLink "
                      "domains of 8"));
}

TEST_CASE("ranks that cross into another NVLink domain are refused") {
  Json cluster = ConfigNode::from_file(source_dir() / "hardware/clusters/h100x16.json").json();
  cluster.update({{"gpu", "h100"}, {"gpus_per_node", 3}, {"nodes", 2}, {"scale_up_domain", 3}});
  const Json set{{"cluster", cluster}, {"parallel", {{"dp", 2}, {"tp", 2}, {"ep", 4}}}};
  CHECK_THAT(config_error([&] { load_tiny(set); }),
             Contains("ranks of tp = 2 GPUs do not line up with NVLink domains of 3"));
}

}  // namespace
}  // namespace moesim::test_pipeline
