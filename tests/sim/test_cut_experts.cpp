// SPDX-License-Identifier: Apache-2.0
// Cold experts cut over all GPUs, hot ones whole: is each GPU's work what it is by hand, and are
// the ends of the scale what there was before, whole experts and EP 1?
#include <algorithm>
#include <numeric>

#include "hardware/kernels/experts.hpp"
#include "hardware/rng.hpp"
#include "sim/placement/files/placement_file.hpp"
#include "sim/placement/placement_score.hpp"
#include "sim/replay/replay.hpp"
#include "sim/step/routed_layer.hpp"
#include "tests/tiny_experiment.hpp"
#include "tests/trace_meta.hpp"

namespace moesim::test_cut_experts {
namespace {

using namespace moesim::test;
using Ints = std::vector<std::int32_t>;

std::unique_ptr<Placer> cut_coldest(double share) {
  return placers().make(ConfigNode(Json{{"type", "cut_coldest"}, {"share", share}}, "test"));
}

LayerLoad route(const LayerPlacement& placement, const Ints& tokens, Ints& of_slot) {
  const ExpertPlacement layers{placement};
  const auto even = token_routers().make(ConfigNode("even", "test"))({layers});
  RoutedLayer routed;
  LayerLoad load;
  routed.route(*even, {layers[0], tokens, 0, 0, {}}, load);
  of_slot = routed.tokens_of_slot();
  return load;
}

TEST_CASE("the two coldest of four experts are cut over two GPUs, counted by hand") {
  const ExpertLoad seen{10, 1, 8, 2};
  const LayerPlacement layer = cut_coldest(.5)->place({4, 2, 2}, seen, 0);
  CHECK(layer == LayerPlacement(4, {{0}, {2}}, std::vector<int>{1, 3}));
  CHECK(layer.slots() == 6);
  CHECK(layer.cut() == 2);
  CHECK(layer.first_slice(0) == 1);
  CHECK(layer.first_slice(1) == 4);
  // As much memory as two whole experts a GPU.
  CHECK(layer.whole_slots() == 4);
  CHECK(layer.whole_slots(0) == 2);

  Ints of_slot;
  LayerLoad load = route(layer, {5, 2, 0, 1}, of_slot);
  CHECK(of_slot == Ints{5, 2, 1, 0, 2, 1});
  CHECK(load.activated == Ints{1, 0});
  CHECK(load.tokens == Ints{5, 0});
  CHECK(load.most_activated() == 1 + 2 / 2.);
  CHECK(load.most_tokens() == 5 + 3 / 2.);
  // The weights of three experts, or of 6.5 tokens at two each.
  CHECK(RooflineTime{1, .1}.busiest(layer, of_slot) == 2);
  CHECK(RooflineTime{1, 2}.busiest(layer, of_slot) == 13);
  load = route(layer, {0, 3, 0, 0}, of_slot);
  CHECK(load.most_activated() == .5);
  CHECK(load.most_tokens() == 1.5);

  // The fuller GPU has 10 and half of 3, of 21.
  const PlacementScore score = score_placement({layer}, std::vector<ExpertLoad>{seen});
  CHECK(score.imbalance_mean == 11.5 / 10.5);
  CHECK(score.experts_with_copies == std::vector<std::int64_t>{0, 4});
}

TEST_CASE("the share is rounded to equally many whole experts on each GPU, equal loads by number") {
  const ExpertLoad equal(8, 1.0);
  CHECK(cut_coldest(.3)->place({8, 2, 4}, equal, 0).cut() == 2);
  CHECK(cut_coldest(.4)->place({8, 2, 4}, equal, 0).cut() == 4);
  CHECK(cut_coldest(.5)->place({8, 8, 1}, equal, 0).cut() == 0);
  const LayerPlacement all = cut_coldest(1)->place({8, 2, 4}, equal, 0);
  CHECK(all.cut() == 8);
  CHECK(all.first_slice(0) == 0);
  const LayerPlacement some = cut_coldest(.5)->place({8, 2, 4}, equal, 0);
  for (int expert = 0; expert < 8; ++expert)
    CHECK(some.slots_of(expert).size() == (expert < 4 ? 2 : 1));
  CHECK(cut_coldest(.3)->remark({8, 2, 4}) ==
        "\"cut_coldest\": 2 of 8 experts of each layer are cut over 2 GPUs");
}

TEST_CASE("cutting nothing is EPLB, with copies, groups and nodes") {
  Rng rng(1, "test/cut_experts");
  const auto eplb = placers().make(ConfigNode("eplb", "test"));
  for (int round = 0; round < 20; ++round) {
    const int nodes = 1 << rng.below(3), groups = 1 << rng.below(4);
    const int gpus = nodes * static_cast<int>(1 + rng.below(4));
    const int experts = groups * gpus * static_cast<int>(1 + rng.below(4));
    const PlacementProblem problem{experts, gpus, experts / gpus + static_cast<int>(rng.below(3)),
                                   nodes, groups};
    ExpertLoad load;
    for (int e = 0; e < experts; ++e) load.push_back(static_cast<double>(rng.below(10000)));
    CHECK(cut_coldest(0)->place(problem, load, 0) == eplb->place(problem, load, 0));
  }
}

TEST_CASE("copies of cut experts are refused, and files that hold whole ones alone") {
  const ExpertLoad load(8, 1.0);
  CHECK(config_error([&] {
          cut_coldest(.5)->place({8, 2, 5}, load, 0);
        }) ==
        "\"cut_coldest\" makes no copies, and 5 slots on each of 2 GPUs leave room for some of 8 "
        "experts; use a replication of 1 and GPUs that divide the experts");
  CHECK(
      config_error([&] {
        placement_bytes({cut_coldest(.5)->place({8, 2, 4}, load, 0)}, PlacementFormat::sglang, {});
      }).starts_with("files of placements hold whole experts alone"));
  CHECK_THROWS_WITH(LayerPlacement(2, {{0, 1}, {}}, std::vector<int>{1}),
                    "expert 1 is whole and cut");
}

// ---- steps ----

Json with_share(double share, const Json& set = Json::object()) {
  const Json gather{{"type", "all_gather"}, {"combine", "reduce_scatter"}};
  Json json = tiny_experiment(
      {{"placement", {{"type", "cut_coldest"}, {"share", share}, {"replication", 1}}},
       {"dispatch", {{"prefill", gather}, {"decode", gather}}}});
  json.merge_patch(set);
  return json;
}
const Json eplb{{"placement", {{"type", "eplb"}, {"share", nullptr}}}};
const Json ep_1{{"placement", {{"type", "linear"}, {"share", nullptr}}}, {"parallel", {{"ep", 1}}}};

TEST_CASE("steps of no cut experts are EPLB's, steps of all are those of EP 1") {
  for (const Json& parallel : {Json{{"dp", 4}, {"tp", 1}}, Json{{"dp", 1}, {"tp", 4}}}) {
    const Json set{{"parallel", parallel}};
    const auto step = [&](double share, const Json& patch, const StepContent& content) {
      Json json = with_share(share, set);
      json.merge_patch(patch);
      return explain_step(load(json), content).cost;
    };
    for (const StepContent& content : {decode_step(2, 40), decode_step(6, 40), prefill_step(20)}) {
      const Json same = Json::object();
      CHECK(step(0, same, content).total == step(0, eplb, content).total);
      const StepCost all = step(1, same, content), slices = step(1, ep_1, content);
      CHECK_THAT(all.total.count(), WithinRel(slices.total.count(), 1e-12));
      CHECK_THAT(all.hbm_bytes, WithinRel(slices.hbm_bytes, 1e-12));
      CHECK_THAT(all.flops, WithinRel(slices.flops, 1e-12));
      CHECK_THAT(all.token_balance().max_tokens,
                 WithinRel(slices.token_balance().max_tokens / 4, 1e-12));
    }
  }
}

TEST_CASE("slices are a call of their own, as wide as their share, behind the whole experts") {
  const Experiment e = load(with_share(.5));
  const ExplainedStep step = explain_step(e, decode_step(6, 40));
  const GroupedGemm slices({.hidden = 512, .width = 64, .experts = 16, .top_k = 2, .held = 8},
                           e.decode().cluster.gpu);
  double whole_ms = 0, slices_ms = 0;
  for (std::size_t l = 0; l < 3; ++l) {
    const LayerPlacement& placement = e.decode().placement[l];
    Ints rows;
    for (int slot = placement.first_slice(0); slot < placement.first_slot(1); ++slot)
      rows.push_back(
          step.cost.tokens_of_expert[l * 16 + std::size_t(placement.expert_of_slot(slot))]);
    REQUIRE(rows.size() == 8);
    const LayerOutcome& layer = step.cost.layers[l];
    CHECK(layer.slices.time == slices.cost(slices.rows(rows), 24).time);
    // 24 tokens with two selections each, over four GPUs.
    const double tokens = std::accumulate(layer.load.tokens.begin(), layer.load.tokens.end(), 0.0);
    CHECK(tokens / 4 + layer.load.sliced_tokens == 12);
    CHECK(layer.useful_rows == 48);
    slices_ms += layer.slices.time.count();
    whole_ms += std::ranges::max(layer.experts, {}, &Cost::time).time.count();
  }
  double explained = 0;
  for (const ExplainedOperation& row : step.operations)
    explained += row.name == "expert_ffn" || row.name == "sliced_experts" ? row.seconds : 0;
  CHECK_THAT(explained, WithinRel(whole_ms + slices_ms, 1e-12));
  // The experts take as much HBM as whole ones.
  CHECK(e.decode().memory.experts == load(with_share(0, eplb)).decode().memory.experts);
  CHECK(e.decode().memory.replicas == Bytes(0));
}

TEST_CASE(
    "a run reports the same tokens of the mean GPU whatever is cut, and no more of the fullest") {
  const auto decode = [](double share) {
    const Served served = serve(load(with_share(share, {{"fidelity", "exact"}})));
    return served.pool.experts.summary;
  };
  const auto whole = decode(0), half = decode(.5), all = decode(1);
  CHECK_THAT(half.tokens_mean, WithinRel(whole.tokens_mean, .02));
  CHECK(half.imbalance < whole.imbalance);
  CHECK_THAT(all.imbalance, WithinRel(1, 1e-12));
  CHECK(half.max_activated_mean < whole.max_activated_mean);
  CHECK_THAT(all.max_activated_mean, WithinRel(all.activated_mean, 1e-12));
}

TEST_CASE("what does not go with cut experts is refused in one line") {
  const auto refused = [](const Json& set) {
    return config_error([&] { load(with_share(.5, set)); });
  };
  CHECK(refused(Json::object()).empty());
  CHECK(refused({{"dispatch", {{"prefill", "all_reduce"}}}}).empty());
  CHECK(refused({{"dispatch", {{"decode", "all_to_all"}}}}).find("all_gather") !=
        std::string::npos);
  CHECK(refused({{"dispatch", {{"prefill", "all_gather"}}}}).find("all_reduce") !=
        std::string::npos);
  CHECK(refused({{"token_routing", {{"decode", "metro"}}}}).find("\"even\"") != std::string::npos);
  CHECK(refused({{"parallel", {{"ep", 2}}}}).find("leave out \"ep\"") != std::string::npos);
  CHECK(refused({{"placement", {{"replication", 1.5}}}}).find("replication of 1") !=
        std::string::npos);
  CHECK(refused({{"placement", {{"load", {{"from", "none"}}}}}}).find("\"trace\"") !=
        std::string::npos);
  CHECK(refused({{"model", {{"experts", {{"width", 250}}}}}}).find("equal slices") !=
        std::string::npos);
  CHECK(refused({{"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 10}}}})
            .find("do not move") != std::string::npos);
  CHECK(refused({{"measurement", {{"locality", true}}}}).find("locality") != std::string::npos);
}

// ---- replay ----

TEST_CASE("replay counts slices in parts: none cut is EPLB's row, all cut is that of one rank") {
  Rng rng(2, "test/cut_experts");
  std::vector<TraceRequest> requests;
  std::vector<std::uint16_t> ids;
  for (int row = 0; row < 40; ++row) {
    requests.push_back({row, 1, 0, 0, false});
    for (int layer = 0; layer < 2; ++layer) {
      const auto first = rng.below(8);
      ids.push_back(static_cast<std::uint16_t>(first * first / 8));
      ids.push_back(static_cast<std::uint16_t>((first * first / 8 + 1 + rng.below(7)) % 8));
    }
  }
  const RoutingTrace trace(trace_meta("made up", 8, 2, {0, 1}), {"any"}, requests, ids);
  ReplayConfig config;
  config.gpus = 4;
  config.replications = {1};
  config.batches = {3, 8};
  config.sampled_batches = 20;
  config.cuts = {4};
  config.routings = {ConfigNode("even", "test")};
  config.placements = {ConfigNode("eplb", "test")};
  for (const double share : {0., .5, 1.})
    config.placements.emplace_back(Json{{"type", "cut_coldest"}, {"share", share}}, "test");
  const std::vector<ReplayRow> rows = replay(trace, config);
  REQUIRE(rows.size() == 10);  // four placements and the cut, of two sizes
  for (std::size_t batch = 0; batch < 2; ++batch) {
    const ReplayRow &whole = rows[batch], &none = rows[2 + batch], &half = rows[4 + batch],
                    &all = rows[6 + batch], &one_rank = rows[8 + batch];
    CHECK(none.activated_of_batch == whole.activated_of_batch);
    CHECK(none.time_mean == whole.time_mean);
    CHECK(half.max_activated_mean < whole.max_activated_mean);
    CHECK_THAT(all.max_activated_mean, WithinRel(one_rank.max_activated_mean, 1e-12));
    CHECK_THAT(all.max_tokens_mean, WithinRel(one_rank.max_tokens_mean, 1e-12));
    CHECK_THAT(all.time_mean, WithinRel(one_rank.time_mean, 1e-12));
    CHECK(all.max_activated_mean < half.max_activated_mean);
  }
  config.locality = true;
  CHECK(config_error([&] { replay(trace, config); }).starts_with("replay: cut experts do not go"));
}

}  // namespace
}  // namespace moesim::test_cut_experts
