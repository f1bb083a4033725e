// SPDX-License-Identifier: Apache-2.0
// Does the shared expert of a token run where its policy says, and is all of it priced?
#include <algorithm>
#include <numeric>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "sim/replay/replay.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "sim/step/shared_expert.hpp"
#include "tests/step_parts.hpp"
#include "tests/support.hpp"
#include "tests/trace_meta.hpp"

namespace moesim::test_shared_expert {

using namespace moesim::test;

namespace {

using Tokens = std::vector<std::int32_t>;

// An expert on each of four ranks, so that a slot is a rank.
const LayerPlacement four(4, {{0}, {1}, {2}, {3}});

// `visits` are the ranks of each token's selections, [tokens, k].
Tokens drawn(const Tokens& source, const Tokens& visits, const Tokens& load,
             std::int32_t min_tokens = 1, std::uint64_t step = 0) {
  Tokens ranks;
  waterfill({SharedExpert::Type::waterfill, min_tokens}, {four, {}, 0, step, {{}, source}}, four,
            visits, load, ranks);
  return ranks;
}

TEST_CASE("waterfill draws below the water line, among the ranks that a token visits") {
  // Eight tokens of two selections: H = (16 + 8) / 4 = 6, and S = 0, 2, 4, 6.
  const Tokens load{10, 4, 2, 0};
  const Tokens source{0, 0, 0, 1, 1, 1, 2, 3};
  const Tokens visits{0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3};
  const Tokens ranks = drawn(source, visits, load);
  // The first may go to rank 3 alone, the second to rank 1. All others visit no rank with room but
  // their own; the third has none, and no other rank to go to.
  CHECK(ranks == Tokens{3, 1, 0, 1, 1, 1, 2, 3});
  // Ranks with fewer tokens than this keep them: of four, that is every rank.
  CHECK(drawn(source, visits, load, 4) == source);
  CHECK(drawn(source, visits, load, 3) == Tokens{3, 1, 0, 1, 1, 1, 2, 3});
}

TEST_CASE("waterfill weighs by room, and a token's own rank for a tenth more") {
  // H = (60000 + 20000) / 4 = 20000, and S of ranks 2 and 3 is 4000 and 14000. Tokens of rank 2
  // that visit rank 3 draw 11 x 4000 against 10 x 14000.
  const Tokens load{36000, 2000, 16000, 6000};
  REQUIRE(std::accumulate(load.begin(), load.end(), 0) == 60000);
  const Tokens source(20000, 2);
  Tokens visits;
  for (std::size_t token = 0; token < source.size(); ++token) visits.push_back(3);
  const Tokens ranks = drawn(source, visits, load);
  const auto stayed = static_cast<double>(std::ranges::count(ranks, 2));
  CHECK_THAT(stayed / 20000, WithinAbs(44.0 / (44 + 140), 0.01));
  CHECK(stayed + static_cast<double>(std::ranges::count(ranks, 3)) == 20000);
}

TEST_CASE("above the water line a token goes where a tenth less is to do") {
  // One token: H = (40 + 1) / 4 rounded up, 11. Ranks 0 and 1 are above it.
  CHECK(drawn({0}, {1}, {15, 13, 6, 6}) == Tokens{1});
  CHECK(drawn({0}, {1}, {14, 13, 7, 6}) == Tokens{0});
}

TEST_CASE("where tokens visit every rank, all ranks come to the water line") {
  Rng rng(1, "test/shared_expert");
  for (int world = 0; world < 10; ++world) {
    Tokens load, source, visits;
    for (int rank = 0; rank < 4; ++rank) {
      load.push_back(static_cast<std::int32_t>(rng.below(20000)));
      source.insert(source.end(), 10000, rank);
    }
    for (std::size_t token = 0; token < source.size(); ++token)
      visits.insert(visits.end(), {0, 1, 2, 3});
    Tokens filled = load, local = load;
    for (const std::int32_t rank : drawn(source, visits, load)) ++filled[at(rank)];
    for (const std::int32_t rank : source) ++local[at(rank)];
    CAPTURE(load);
    const double mean = std::accumulate(filled.begin(), filled.end(), 0.0) / 4;
    // 2 % for the tenth more, and for chance. A rank above the line from the start stays there.
    const double most = std::max<double>(*std::ranges::max_element(load), mean * 1.02);
    CHECK(*std::ranges::max_element(filled) <= most);
    CHECK(*std::ranges::max_element(filled) <= *std::ranges::max_element(local));
  }
}

TEST_CASE("where own ranks hold no experts, tokens share a rank that they visit") {
  // 15 selections and nine tokens: H = 6, and S = 6, 1, 0, 2. Rank 0 has most room, and no token
  // visits it.
  const Tokens load{0, 5, 6, 4}, source(9, 0);
  const Tokens visits{1, 2, 3, 3, -1, 2, 1, 1, 2, 2, 3, 1, 1, 2, 2, 3, -1, -1};
  const RoutingProblem problem{four, {}, 0, 0, {{}, source}};
  Tokens ranks;
  // Few tokens draw too: none can stay where it is.
  waterfill({SharedExpert::Type::waterfill, 64}, problem, four, visits, load, ranks,
            OwnRank::has_none);
  for (std::size_t token = 0; token < 8; ++token) {
    CAPTURE(token);
    CHECK((ranks[token] == visits[2 * token] || ranks[token] == visits[2 * token + 1]));
  }
  first_choices(four, visits, source.size(), ranks);
  CHECK(ranks == Tokens{1, 3, 2, 1, 2, 3, 1, 2, 0});
}

Experiment experiment(const Json& patch) {
  const auto file = source_dir() / "configs/study_prefill.json";
  Json json = ConfigNode::from_file(file).json()["base"];
  json["workload"]["gating"]["requests"] = 96;
  json.merge_patch(patch);
  static TraceLibrary traces;
  return load_experiment(ConfigNode(json, file), traces);
}

StepCost prefill(const Json& shared, const Json& patch = Json::object()) {
  Json all{{"shared_expert", shared}};
  all.merge_patch(patch);
  return explain_step(experiment(all), prefill_step(2048)).cost;
}

std::int64_t max_rows(const LayerOutcome& layer) {
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < layer.load.tokens.size(); ++rank)
    most = std::max<std::int64_t>(most, layer.load.tokens[rank] + layer.shared_tokens[rank]);
  return most;
}

TEST_CASE("a shared expert that is a slot is computed once for each token, with the routed ones") {
  const StepCost local = prefill("local"), fused = prefill("fused"), filled = prefill("waterfill");
  CHECK(seconds_of(local, Part::shared_experts) > 0);
  for (const StepCost* slot : {&fused, &filled}) {
    CHECK(seconds_of(*slot, Part::shared_experts) == 0);
    for (std::size_t l = 0; l < slot->layers.size(); ++l) {
      const Tokens& shared = slot->layers[l].shared_tokens;
      const auto tokens = std::accumulate(shared.begin(), shared.end(), std::int64_t{0});
      REQUIRE(tokens == 16 * 2048);
      REQUIRE(slot->layers[l].useful_rows == local.layers[l].useful_rows + tokens);
    }
  }
  CHECK(local.layers[0].shared_tokens.empty());
}

TEST_CASE("waterfill lowers the rows of the busiest rank, and nothing else travels") {
  const StepCost fused = prefill("fused"), filled = prefill("waterfill");
  std::int64_t before = 0, after = 0;
  for (std::size_t l = 0; l < fused.layers.size(); ++l) {
    REQUIRE(fused.layers[l].shared_tokens == Tokens(16, 2048));
    before += max_rows(fused.layers[l]);
    after += max_rows(filled.layers[l]);
  }
  CHECK(after < before);
  CHECK(seconds_of(filled, Part::experts) < seconds_of(fused, Part::experts));
  CHECK(filled.dispatch.time == fused.dispatch.time);
  CHECK(filled.combine.network.value() == fused.combine.network.value());
  // The ranks' loads are known to all before anyone draws.
  CHECK(seconds_of(fused, Part::token_routing) == 0);
  CHECK(seconds_of(filled, Part::token_routing) > 0);
}

TEST_CASE("with a message for each expert a shared one that moves is one more") {
  // DeepEP's buffers would not hold such steps; no engine, no limit.
  const Json by_message{{"engine", {{"name", "none"}}},
                        {"scheduling", {{"max_num_batched_tokens", 2048}}},
                        {"dispatch", {{"prefill", "low_latency"}}}};
  const StepCost fused = prefill("fused", by_message), filled = prefill("waterfill", by_message);
  // bf16 activations of 7,168 values.
  const auto bytes = [](const Traffic& traffic) {
    return (traffic.nvlink + traffic.network).value() / (2 * 7168);
  };
  std::int64_t stayed = 0;
  for (const LayerOutcome& layer : filled.layers) {
    for (const std::int32_t tokens : layer.shared_tokens) stayed += std::min(tokens, 2048);
  }
  const double moved = bytes(filled.dispatch) - bytes(fused.dispatch);
  const double all = 58.0 * 16 * 2048;
  // Some tokens go and others come in their place.
  CHECK(moved >= all - static_cast<double>(stayed));
  CHECK(moved <= all);
  CHECK(moved > all / 2);
}

TEST_CASE("with AFD a shared expert that is a slot is computed and held by the experts' GPUs") {
  const auto apart = [](const Json& shared) {
    return experiment({{"shared_expert", shared},
                       {"parallel", {{"dp", 8}, {"ep", 8}, {"ffn_gpus", 8}}},
                       {"placement", "linear"}});
  };
  const Experiment local = apart("local");
  const StepCost on_attention = explain_step(local, decode_step(64, 512)).cost;
  const double bytes = 3.0 * 7168 * 2048;  // of one layer's, in fp8
  for (const char* type : {"fused", "waterfill"}) {
    CAPTURE(type);
    const Experiment e = apart(type);
    const StepCost cost = explain_step(e, decode_step(64, 512)).cost;
    CHECK(seconds_of(cost, Part::shared_experts) == 0);
    for (std::size_t l = 0; l < cost.layers.size(); ++l) {
      const Tokens& shared = cost.layers[l].shared_tokens;
      REQUIRE(shared.size() == 8);
      REQUIRE(std::accumulate(shared.begin(), shared.end(), 0) == 8 * 64);
      REQUIRE(cost.layers[l].useful_rows == on_attention.layers[l].useful_rows + 8 * 64);
    }
    // A token visits that GPU anyway.
    CHECK(cost.dispatch.network.value() == on_attention.dispatch.network.value());
    CHECK(cost.afd->busy_of(AfdStage::attention) < on_attention.afd->busy_of(AfdStage::attention));
    CHECK(cost.afd->busy_of(AfdStage::ffn) > on_attention.afd->busy_of(AfdStage::ffn));
    const auto free = [](const MemoryBudget& memory) { return memory.kv.value(); };
    const double scales = 1.001;  // of blocks of 128 x 128 numbers
    const double moved = free(e.decode().memory) - free(local.decode().memory);
    CHECK(moved >= 58 * bytes);
    CHECK(moved <= 58 * bytes * scales);
    CHECK_THAT(free(*local.decode().ffn_memory) - free(*e.decode().ffn_memory),
               WithinRel(moved, 1e-6));
  }
}

TEST_CASE("decode steps of few tokens keep their shared experts") {
  const auto decode = [](const Json& shared) {
    return explain_step(experiment({{"shared_expert", shared}}), decode_step(63, 512)).cost;
  };
  const StepCost filled = decode("waterfill");
  for (const LayerOutcome& layer : filled.layers) REQUIRE(layer.shared_tokens == Tokens(16, 63));
  const StepCost drawn_anyway = decode({{"type", "waterfill"}, {"min_tokens", 63}});
  CHECK(drawn_anyway.layers[0].shared_tokens != Tokens(16, 63));
}

TEST_CASE("a run reports the imbalance that waterfill works on; local is as without the key") {
  const auto report = [](const Json& patch) {
    Json short_run{{"workload", {{"requests", 64}}}, {"measurement", {{"warmup", 0}}}};
    short_run.merge_patch(patch);
    return run(experiment(short_run)).document();
  };
  const Json without = report(Json::object()), local = report({{"shared_expert", "local"}});
  CHECK(local.at("metrics") == without.at("metrics"));
  CHECK_FALSE(without["experts"].contains("imbalance_with_shared"));
  const Json fused = report({{"shared_expert", "fused"}});
  const Json filled = report({{"shared_expert", "waterfill"}});
  const auto imbalance = [](const Json& document) {
    return document.at("experts").at("imbalance_with_shared").get<double>();
  };
  CHECK(imbalance(filled) < imbalance(fused));
  CHECK(imbalance(filled) >= 1);
}

TEST_CASE("replay counts the shared expert's tokens on the busiest GPU") {
  // Experts 0 and 1 are on GPU 0. One token chooses both, the other one 0 and 2: L = 3, 1, H = 3,
  // S = 0, 2. The other token goes to GPU 1 from either GPU. The first one stays where it is: on
  // GPU 0 the busiest GPU has four, on GPU 1 three.
  const RoutingTrace trace(test::trace_meta("hand", 4, 2, {0}), {"any"},
                           {{0, 1, 0, 0, false}, {1, 1, 0, 0, false}}, {0, 1, 0, 2});
  ReplayConfig config;
  config.gpus = 2;
  config.placements = {ConfigNode("linear", "test")};
  config.replications = {1};
  config.routings = {ConfigNode("even", "test")};
  config.batches = {2};
  config.sampled_batches = 50;
  const auto most = [&](std::optional<SharedExpert> shared) {
    config.shared_expert = shared;
    return replay(trace, config)[0].max_tokens_with_shared_mean;
  };
  CHECK_FALSE(most(std::nullopt));
  CHECK(most(SharedExpert{SharedExpert::Type::fused, 0}) == 4);
  const std::optional<double> filled = most(SharedExpert{SharedExpert::Type::waterfill, 1});
  REQUIRE(filled);
  CHECK(*filled < 4);
  CHECK(*filled > 3);
  CHECK(to_json(replay(trace, config))["rows"][0].at("max_tokens_with_shared_mean") == *filled);
}

TEST_CASE("a shared expert that cannot be a slot is refused") {
  const auto refused = [](const Json& patch) {
    Json all{{"shared_expert", "waterfill"}};
    all.merge_patch(patch);
    return config_error([&] { experiment(all); });
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refused({{"shared_expert", "waterfil"}}),
             Contains("/shared_expert") && Contains("waterfill"));
  CHECK_THAT(refused({{"model", "../models/zoo/qwen3_235b_a22b.json"}}), Contains("without one"));
  CHECK_THAT(refused({{"model", "../models/zoo/deepseek_v2_lite.json"}}),
             Contains("if it is 2816 wide and they are 1408"));
  CHECK_THAT(refused({{"parallel", {{"dp", 8}, {"tp", 2}, {"ep", 16}}}}), Contains("tp is 1"));
  CHECK_THAT(refused({{"parallel", {{"dp", 8}, {"ep", 4}, {"ffn_gpus", 8}}}}),
             Contains("ffn_gpus"));
  CHECK_THAT(refused({{"overlap", "shared_expert"}}), Contains("overlap"));
  CHECK_THAT(refused({{"capacity", {{"type", "drop"}, {"factor", 2}}}}), Contains("capacity"));
}

}  // namespace
}  // namespace moesim::test_shared_expert
