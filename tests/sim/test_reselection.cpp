// SPDX-License-Identifier: Apache-2.0
// Does re-selection keep what it must, activate no more, and say what it changed?
#include <algorithm>

#include "hardware/rng.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/step/reselection.hpp"
#include "tests/support.hpp"

namespace moesim::test_reselection {

using namespace moesim::test;

namespace {

using Tokens = std::vector<std::int32_t>;

struct Kept {
  LayerChoices choices;
  Tokens tokens;
  CapacityTally tally;
};

Kept kept(int keep, std::vector<std::uint16_t> ids, std::size_t k, std::size_t experts) {
  Kept result;
  result.choices.source_rank.assign(ids.size() / k, 0);
  result.choices.ids = std::move(ids);
  result.tokens.resize(experts);
  keep_active(keep, result.choices, result.tokens, result.tally);
  return result;
}

std::ptrdiff_t active(const Tokens& tokens) {
  return std::ranges::count_if(tokens, [](std::int32_t t) { return t > 0; });
}

TEST_CASE("tokens keep their best experts, and of the others those that are active anyway") {
  // Three tokens of three experts each; with one kept, 0, 1 and 2 are active.
  const Kept one = kept(1, {0, 1, 5, /**/ 1, 4, 0, /**/ 2, 5, 3}, 3, 6);
  CHECK(one.choices.dropped == std::vector<std::uint8_t>{0, 0, 1, /**/ 0, 1, 0, /**/ 0, 1, 1});
  CHECK(one.tokens == Tokens{2, 2, 1, 0, 0, 0});
  CHECK(one.tally.selections == 9);
  CHECK(one.tally.dropped == 4);
  // With two kept, 4 and 5 are active too, and 5 is back for the first token.
  const Kept two = kept(2, {0, 1, 5, /**/ 1, 4, 0, /**/ 2, 5, 3}, 3, 6);
  CHECK(two.tokens == Tokens{2, 2, 1, 0, 1, 2});
  CHECK(two.tally.dropped == 1);
}

TEST_CASE("the active experts are those that are kept, and no more than before") {
  Rng rng(1, "test/reselection");
  for (int world = 0; world < 20; ++world) {
    const std::size_t k = 6, experts = 48, tokens = 1 + rng.below(40);
    std::vector<std::uint16_t> ids;
    for (std::size_t token = 0; token < tokens; ++token) {
      const auto first = rng.below(experts);
      for (std::size_t i = 0; i < k; ++i)
        ids.push_back(static_cast<std::uint16_t>((first + i * i) % experts));
    }
    std::ptrdiff_t fewer = 0;
    for (int keep = 1; keep <= 6; ++keep) {
      const Kept result = kept(keep, ids, k, experts);
      CAPTURE(world, keep);
      REQUIRE(active(result.tokens) >= fewer);
      fewer = active(result.tokens);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i % k < static_cast<std::size_t>(keep)) REQUIRE(result.choices.dropped[i] == 0);
      }
      if (keep == 6) REQUIRE(result.tally.dropped == 0);
    }
  }
}

Json quick() {
  Json json = ConfigNode::from_file(source_dir() / "configs/quick.json").json();
  json["workload"]["requests"] = 64;
  json["measurement"]["warmup"] = 0;
  return json;
}

Json report(const Json& patch) {
  Json json = quick();
  json.merge_patch(patch);
  TraceLibrary traces;
  return run(load_experiment(ConfigNode(json, source_dir() / "configs/quick.json"), traces))
      .document();
}

TEST_CASE("with all experts kept a run is the same to the byte") {
  Json all = report({{"expert_reselection", {{"keep", 8}}}}), without = report(Json::object());
  for (Json* document : {&all, &without}) document->erase("context");
  CHECK(all.dump() == without.dump());
}

TEST_CASE("decode steps get faster, prefill steps do not, and the report says what was dropped") {
  const Json without = report(Json::object());
  const Json few = report({{"expert_reselection", {{"keep", 2}}}});
  const auto of = [](const Json& document, const char* kind, const char* key) {
    return document.at("experts").at("by_step_kind").at(kind).at(key).get<double>();
  };
  CHECK(of(few, "decode", "active_experts_mean") < of(without, "decode", "active_experts_mean"));
  CHECK(of(few, "prefill", "tokens_mean") / of(few, "prefill", "active_experts_mean") > 0);
  CHECK(without.at("experts").at("dropped") == 0.0);
  CHECK(few.at("experts").at("dropped").get<double>() > 0);
  CHECK(few.at("experts").at("dropped").get<double>() < 0.75);
  CHECK(few.at("metrics").at("mean_tpot_ms").get<double>() <
        without.at("metrics").at("mean_tpot_ms").get<double>());
}

TEST_CASE("re-selection says that answers change, and refuses what it cannot do") {
  const auto load = [](const Json& patch) {
    Json json = quick();
    json["expert_reselection"] = {{"keep", 2}};
    json.merge_patch(patch);
    TraceLibrary traces;
    return load_experiment(ConfigNode(json, source_dir() / "configs/quick.json"), traces);
  };
  const std::vector<std::string> said = remarks_of(load(Json::object()));
  CHECK(std::ranges::any_of(said, [](const std::string& remark) {
    return remark.find("output quality is not modelled") != std::string::npos;
  }));
  using Catch::Matchers::Contains;
  CHECK_THAT(config_error([&] {
               load({{"expert_reselection", {{"keep", 9}}}});
             }),
             Contains("/expert_reselection/keep: a token has 8 experts"));
  CHECK_THAT(
      config_error([&] {
        load({{"dispatch", {{"decode", "all_to_all"}}}, {"token_routing", {{"decode", "even"}}}});
      }),
      Contains("must know the choices of the whole group"));
  CHECK_THAT(config_error([&] {
               load({{"capacity", {{"type", "drop"}, {"factor", 2}}}});
             }),
             Contains("drops selections too"));
}

}  // namespace

}  // namespace moesim::test_reselection
