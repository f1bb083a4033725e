// SPDX-License-Identifier: Apache-2.0
// Does a run whose MoE layers are sampled agree with one that routes every token?
#include <bit>
#include <cmath>
#include <numeric>
#include <set>

#include "sim/serving/simulator.hpp"
#include "sim/serving/step_sampler.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_fidelity {
namespace {

using Catch::Matchers::Contains;
using namespace test;

Json poisson(const char* fidelity) {
  return {{"fidelity", fidelity},
          {"token_routing", {{"decode", "metro"}}},
          {"dispatch", {{"decode", "all_gather"}}},
          {"workload",
           {{"arrivals", {{"type", "poisson"}, {"rate", "4000 /s"}, {"concurrency", nullptr}}},
            {"requests", 1500}}}};
}

double metric(const Report& report, const char* name) {
  return report.document().at("metrics").at(name).get<double>();
}

double activated(const Report& report) {
  return report.document()
      .at("/experts/by_step_kind/decode/max_activated_mean"_json_pointer)
      .get<double>();
}

TEST_CASE("sampled layers give the means of exact ones") {
  const Report exact = run(load_tiny(poisson("exact")));
  const Report sampled = run(load_tiny(poisson("sampled")));
  for (const char* name : {"mean_tpot_ms", "total_token_throughput", "mean_e2el_ms"}) {
    INFO(name);
    CHECK_THAT(metric(sampled, name), WithinRel(metric(exact, name), .02));
  }
  CHECK_THAT(activated(sampled), WithinRel(activated(exact), .03));
  CHECK(metric(sampled, "completed") == 1500);
}

TEST_CASE("micro-batches of a pipeline are sampled each, and give the means of exact ones") {
  const auto staged = [](const char* fidelity) {
    Json changes = poisson(fidelity);
    changes["parallel"] = {{"dp", 2}, {"tp", 1}, {"ep", 2}, {"pp", 2}};
    changes["workload"]["arrivals"]["rate"] = "1500 /s";
    return run(load_tiny(changes));
  };
  // Some ten tokens to a rank's micro-batch: fewer samples' worth than a whole step. Those that
  // fill the pipeline are of unequal ranks, and samples are of equal ones.
  const Report exact = staged("exact"), sampled = staged("sampled");
  for (const char* name : {"mean_tpot_ms", "total_token_throughput"}) {
    INFO(name);
    CHECK_THAT(metric(sampled, name), WithinRel(metric(exact, name), .03));
  }
  CHECK_THAT(metric(sampled, "mean_e2el_ms"), WithinRel(metric(exact, "mean_e2el_ms"), .05));
  CHECK_THAT(activated(sampled), WithinRel(activated(exact), .07));
  CHECK(staged("sampled").document().dump() == sampled.document().dump());
}

TEST_CASE("single tokens of prompts that a pipeline cuts are sampled where no request decodes") {
  const int prompt = GENERATE(2, 3, 5);
  const Report report = run(load_tiny(
      {{"fidelity", "sampled"},
       {"parallel", {{"dp", 1}, {"tp", 2}, {"ep", 2}, {"pp", 2}}},
       {"workload",
        {{"lengths", {{"type", "fixed"}, {"prompt", prompt}, {"output", 4}}}, {"requests", 1}}}}));
  CHECK(metric(report, "completed") == 1);
}

TEST_CASE("two steps of every octave are checked exactly, and samples are close to them") {
  const Report report = run(load_tiny(poisson("sampled")));
  const SampledStats& sampled = report.pool.sampled.value();
  std::int64_t steps = 0;
  for (const auto& [kind, stats] : report.pool.steps.by_kind) steps += stats.steps;
  const auto octaves = static_cast<double>(std::bit_width(static_cast<std::uint64_t>(steps)));
  CHECK(static_cast<double>(sampled.spot_checks) >= 2 * (octaves - 5));
  CHECK(sampled.samples > 0);
  CHECK_THAT(sampled.step_time_error, Catch::Matchers::WithinAbs(0, .05));
  CHECK(std::abs(sampled.worst_step_error) >= std::abs(sampled.step_time_error));
  CHECK(report.document()["sampled"]["spot_checks"] == sampled.spot_checks);
  CHECK_FALSE(run(load_tiny(poisson("exact"))).document().contains("sampled"));
}

TEST_CASE("with few samples sizes that come seldom have fewer, and the means stay") {
  Experiment choosing = load_tiny(poisson("sampled"));
  for (Deployment& pool : choosing.pools) pool.few_samples = true;
  const Report few = run(choosing), all = run(load_tiny(poisson("sampled")));
  CHECK(10 * few.pool.sampled->samples < 7 * all.pool.sampled->samples);
  for (const char* name : {"mean_tpot_ms", "total_token_throughput", "mean_e2el_ms"}) {
    INFO(name);
    CHECK_THAT(metric(few, name), WithinRel(metric(all, name), .02));
  }
}

TEST_CASE("a check tells what a sample's step is off by") {
  const Experiment e = load_tiny(Json::object());
  StepBatch batch;
  batch.ranks.resize(static_cast<std::size_t>(e.decode().parallel.dp));
  for (RankStep& rank : batch.ranks) {
    rank.sequences.assign(4, {1, 100});
    rank.tokens = rank.sampled = 4;
  }
  const std::vector<std::int32_t> single(16);
  const DecodePlaces places = [&] { return std::span(single); };
  const auto error = [&](Seconds time) {
    SpotChecks checks(e.decode());
    for (int i = 0; i < 64; ++i) checks.step(StepKind::decode, batch, places, time);
    CHECK(checks.answer().checks == 2 * 2 + 1);
    CHECK(checks.answer().standard_error < .01);
    return checks.answer().error;
  };
  const Seconds time(1e-3);
  CHECK_THAT(1 + error(2 * time), WithinRel(2 * (1 + error(time)), 1e-9));
}

TEST_CASE("a sampled run is the same on every call") {
  const Experiment e = load_tiny(poisson("sampled"));
  CHECK(run(e).document().dump() == run(e).document().dump());
}

TEST_CASE("sizes between two on the grid take either, so that the mean comes out") {
  Experiment e = load_tiny(Json::object());
  e.pools.back().spot_checks = false;
  StepSampler sampler(e.decode());
  const std::vector<std::int32_t> first_four{0, 1, 2, 3};
  const DecodePlaces places = [&] { return std::span(first_four); };
  StepCost cost;
  StepBatch batch;
  batch.ranks.resize(4);
  // 4 x 9 = 36 decode tokens: between 36 = 32 + 4 and 40 on the grid 32, 36, 40, .. it is exact;
  // 4 x 9 + 1 = 37 is 36 three times in four.
  for (RankStep& rank : batch.ranks) rank.sequences.assign(9, {1, 0});
  batch.ranks[0].sequences.push_back({1, 0});
  double tokens = 0;
  constexpr int draws = 4000;
  for (int i = 0; i < draws; ++i) {
    sampler.price(StepKind::decode, batch, places, cost);
    const StepSample& sample = *cost.samples.front();
    std::int64_t sum = 0;
    for (const std::int32_t t : sample.layer(0).load.tokens) sum += t;
    REQUIRE((sum == 36 * 2 || sum == 40 * 2));  // top 2
    tokens += static_cast<double>(sum) / 2;
  }
  CHECK_THAT(tokens / draws, WithinRel(37.0, .003));
  CHECK(sampler.stats().samples <= 2 * 32);
}

TEST_CASE("a step priced by a sample of itself costs what it does exactly") {
  const char* overlap = GENERATE("none", "combine_attention");
  Json json = poisson("exact");
  json["overlap"] = overlap;
  const Experiment experiment = load_tiny(json);
  const Deployment& e = experiment.decode();
  const PhaseRule& rule = e.rules.of(StepKind::decode);
  RowSource rows(e.trace, e.prefill_trace, false, 1, e.binding);
  StepBatch batch;
  for (int rank = 0; rank < e.parallel.dp; ++rank) {
    batch.ranks.emplace_back();
    for (int i = 0; i < 3 + rank; ++i) {
      add_sequence(batch, rows, rows.bind(), Phase::decode, {1, 100 * i}, i);
    }
  }
  StepModel model = step_model(e);
  StepCost exact, sampled;
  model.price({batch, rule, e.placement, rows}, exact);
  const StepSample sample = model.sample({batch, rule, e.placement, rows});
  const auto draw = [&](const StepBatch&) -> const StepSample& { return sample; };
  model.price(batch, draw, sampled);
  CHECK_THAT(sampled.total.count(), WithinRel(exact.total.count(), 1e-12));
  CHECK_THAT(sampled.flops, WithinRel(exact.flops, 1e-12));
  CHECK_THAT(sampled.hbm_bytes, WithinRel(exact.hbm_bytes, 1e-12));
  CHECK_THAT(sampled.dispatch.time.count(), WithinRel(exact.dispatch.time.count(), 1e-12));
  CHECK_THAT(sampled.combine.hidden.count(), WithinRel(exact.combine.hidden.count(), 1e-12));
  for (std::size_t gpu = 0; gpu < exact.idle.size(); ++gpu) {
    CHECK_THAT(sampled.idle[gpu], WithinRel(exact.idle[gpu], 1e-9));
  }
  for (std::size_t part = 0; part < exact.parts.size(); ++part) {
    for (std::size_t bound = 0; bound < exact.parts[part].size(); ++bound) {
      CHECK_THAT(sampled.parts[part][bound], WithinRel(exact.parts[part][bound], 1e-12));
    }
  }
  CHECK(sampled.token_balance().max_tokens == exact.token_balance().max_tokens);
}

TEST_CASE("of a large sample some layers are priced and stand for the others") {
  Experiment e = load_tiny(
      {{"model", {{"layers", Json::array({{{"repeat", 20}, {"pattern", {{{"ffn", "moe"}}}}}})}}}});
  e.pools.back().spot_checks = false;
  StepSampler sampler(e.decode());
  const std::vector<std::int32_t> first_four{0, 1, 2, 3};
  const DecodePlaces places = [&] { return std::span(first_four); };
  StepCost cost;
  StepBatch batch;
  batch.ranks.resize(4);
  // On the grid, and of 2,048 tokens 8 layers are priced.
  for (RankStep& rank : batch.ranks) rank.sequences.assign(512, {1, 0});
  for (int i = 0; i < 20; ++i) {
    sampler.price(StepKind::decode, batch, places, cost);
    const StepSample& sample = *cost.samples.front();
    const std::vector<LayerOutcome> layers = sample.layers();
    const std::vector<std::int32_t> tokens_of_expert = sample.tokens_of_expert();
    REQUIRE(layers.size() == 20);
    std::set<std::vector<std::int32_t>> different;
    for (std::size_t layer = 0; layer < 20; ++layer) {
      const auto tokens = std::span(tokens_of_expert).subspan(layer * 16, 16);
      different.insert({tokens.begin(), tokens.end()});
      REQUIRE(std::accumulate(tokens.begin(), tokens.end(), 0) == 2 * 2048);
      const std::vector<std::int32_t>& of_ranks = layers[layer].load.tokens;
      REQUIRE(std::accumulate(of_ranks.begin(), of_ranks.end(), 0) == 2 * 2048);
    }
    CHECK(different.size() == 8);
  }
}

TEST_CASE("what needs every token's routing is refused with sampled fidelity") {
  CHECK_THAT(config_error([] {
               load_tiny({{"fidelity", "sampled"},
                          {"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 100}}}});
             }),
             Contains("\"rebalancing\" is not modelled with \"fidelity\": \"sampled\""));
  CHECK_THAT(config_error([] { load_tiny({{"fidelity", "sample"}}); }), Contains("sampled"));
}

}  // namespace
}  // namespace moesim::test_fidelity
