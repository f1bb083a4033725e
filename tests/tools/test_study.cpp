// SPDX-License-Identifier: Apache-2.0
// Does a study of regimes compare like with like, and name the right policy?
#include <algorithm>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/analysis/regimes.hpp"

namespace moesim::test_study {

using namespace moesim::test;
using Catch::Matchers::Contains;

namespace {

Json study_file() {
  return Json::parse(R"({
    "base": "tiny.json",
    "cases": [{"tiny": {}}, {"charged": {"/charges": {"token_routing": "measured"}}, "free": {"/charges": {"token_routing": "none"}}}],
    "policies": {
      "even": {"/token_routing/decode": "even", "/dispatch/decode": "all_to_all"},
      "metro": {"/token_routing/decode": "metro", "/dispatch/decode": "ids_all_gather"},
      "none": {"/placement/replication": 1, "/token_routing/decode": "even",
               "/dispatch/decode": "all_to_all"}
    },
    "replications": [1.5], "sequences": [1, 3], "context": 16, "samples": 4})");
}

RegimeStudy study_of(const Json& json) {
  return read_regime_study(ConfigNode(json, source_dir() / "tests" / "study.json"));
}

SweepOutcome run_study(const RegimeStudy& study, const std::filesystem::path& store) {
  TraceLibrary traces;
  const PointRunner runner{
      [](const Json&) {},
      [&](const Json& point) { return price_regime(point, study.base_file, traces); }};
  return run_sweep(points_of(study), store, runner, {});
}

RegimeRow row(const std::string& policy, double replication, std::vector<double> ms,
              double kv_tokens) {
  return {0, policy, replication, 8, 1.0, std::move(ms), {2, 2, 2}, kv_tokens, true};
}

}  // namespace

TEST_CASE("a paired gain is of samples, not of means") {
  // Differences 1, 1, 1: no spread, though both vary.
  const PairedGain exact = paired_gain({11, 21, 31}, {10, 20, 30});
  CHECK_THAT(exact.percent, WithinRel(5.0, 1e-12));
  CHECK_THAT(exact.margin, WithinAbs(0, 1e-9));
  // Differences -1, 1: mean 0, standard error 1.
  const PairedGain none = paired_gain({9, 11}, {10, 10});
  CHECK_THAT(none.percent, WithinAbs(0, 1e-12));
  CHECK_THAT(none.margin, WithinRel(19.6, 1e-9));
}

TEST_CASE("the map names the fastest, and what is as fast with the most KV cache") {
  const RegimeStudy study = study_of(study_file());
  const std::vector<RegimeRow> rows{
      row("none", 1, {10, 11, 12}, 100), row("metro", 1.5, {8, 9.1, 10.3}, 50),
      row("even", 1.5, {8.1, 9, 10}, 80), row("metro fewest", 1.5, {9, 10, 11}, 60)};
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  REQUIRE(cells.size() == 1);
  CHECK(cells[0].reference->policy == "none");
  CHECK(cells[0].fastest->policy == "even");
  CHECK(cells[0].metro->policy == "metro");
  CHECK(cells[0].cheapest->policy == "even");  // none has more KV and is slower
  std::vector<RegimeRow> crowded = rows;
  for (RegimeRow& other : crowded) other.fits = other.policy == "none";
  CHECK(regime_map(study, crowded)[0].fastest->policy == "none");
}

TEST_CASE("a study prices every case, policy and ratio on the same batches, and resumes") {
  const TemporaryFolder folder;
  const RegimeStudy study = study_of(study_file());
  REQUIRE(study.cases.size() == 2);
  CHECK(study.cases[0].first == "tiny, charged");
  CHECK(study.policies.front().first == "none");
  const std::filesystem::path file = folder / "study.sqlite";
  CHECK(run_study(study, file).ran == 6);
  CHECK(run_study(study, file).resumed == 6);

  const StoredSweep stored = Store::open(file).read();
  const std::vector<RegimeRow> rows = regime_rows(study, stored);
  REQUIRE(rows.size() == 12);
  const auto find = [&](std::size_t group, const std::string& policy, int batch) {
    return *std::find_if(rows.begin(), rows.end(), [&](const RegimeRow& other) {
      return other.group == group && other.policy == policy && other.batch == batch;
    });
  };
  const int small = rows.front().batch;
  for (const RegimeRow& one : rows) CHECK(one.ms.size() == 4);
  // The charge is METRO's alone; activations know nothing of it.
  CHECK(find(0, "even", small).ms == find(1, "even", small).ms);
  const RegimeRow charged = find(0, "metro", small), free = find(1, "metro", small);
  CHECK(charged.activated == free.activated);
  for (std::size_t i = 0; i < 4; ++i) CHECK(charged.ms[i] > free.ms[i]);
  // On the same batches METRO never activates more than the even split, and copies take KV cache.
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(free.activated[i] <= find(1, "even", small).activated[i]);
  CHECK(free.kv_tokens < find(1, "none", small).kv_tokens);

  const std::string csv = regime_csv(study, rows);
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 13);
  const std::string text = regime_text(study, rows);
  CHECK_THAT(text, Contains("tiny, free"));
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    CHECK(text.find('\n', begin) - begin <= 100);
}

TEST_CASE("a policy may take what the rival's step is longer, layer by layer") {
  const RegimeStudy study = study_of(study_file());
  // Without their 2 ms of deciding METRO's steps are 1 ms shorter than the rival's; four layers.
  RegimeRow metro = row("metro", 1.5, {10, 12, 14}, 50);
  metro.by_global_counts = true;
  metro.deciding_ms = {2, 2, 2};
  metro.layers = 4;
  const std::vector<RegimeRow> rows{row("none", 1, {10, 12, 14}, 100), metro,
                                    row("even", 1.5, {9, 11, 13}, 80)};
  const std::vector<BreakEven> all = break_even(study, rows);
  REQUIRE(all.size() == 1);
  CHECK(all[0].policy->policy == "metro");
  CHECK(all[0].rival->policy == "even");
  CHECK_THAT(all[0].us, WithinRel(250.0, 1e-12));
  CHECK_THAT(all[0].margin, WithinAbs(0, 1e-9));
}

TEST_CASE("charged with its break-even a policy is as fast as its rival") {
  // The rivals' host takes a while in every step, so that METRO has time to decide.
  Json json = study_file();
  json["cases"] = Json::parse(R"([{"free": {"/charges": {"token_routing": "none"}}}])");
  json["sequences"] = {8};
  for (const char* rival : {"none", "even"})
    json["policies"][rival]["/charges/host_overhead"] = "1 ms";
  const auto decided = [&] {
    const TemporaryFolder folder;
    const RegimeStudy study = study_of(json);
    run_study(study, folder / "study.sqlite");
    const std::vector<RegimeRow> rows =
        regime_rows(study, Store::open(folder / "study.sqlite").read());
    const std::vector<BreakEven> all = break_even(study, rows);
    REQUIRE(all.size() == 1);
    const auto mean = [](const std::vector<double>& ms) {
      return std::accumulate(ms.begin(), ms.end(), 0.0) / static_cast<double>(ms.size());
    };
    return std::tuple(all[0].us, mean(all[0].policy->ms), mean(all[0].rival->ms));
  };
  const auto [us, free_ms, rival_ms] = decided();
  CAPTURE(us, free_ms, rival_ms);
  REQUIRE(us > 0);
  json["cases"][0]["free"]["/charges"] = {{"token_routing",
                                           {{"source", "a test"},
                                            {"top_k_of_all_tokens", "0 us"},
                                            {"metro", {{"fixed", fmt::format("{:.9f} us", us)}}}}}};
  const auto [still, charged_ms, same_rival_ms] = decided();
  CHECK(same_rival_ms == rival_ms);
  CHECK_THAT(charged_ms, WithinRel(rival_ms, 1e-6));
  // What is charged is taken off again.
  CHECK_THAT(still, WithinRel(us, 1e-6));
}

TEST_CASE("what a study file lacks is said") {
  const auto refused = [](auto&& change) {
    Json json = study_file();
    change(json);
    return config_error([&] { study_of(json); });
  };
  CHECK_THAT(refused([](Json& json) { json["policies"].erase("none"); }), Contains("\"none\""));
  CHECK_THAT(refused([](Json& json) { json["case"] = 1; }), Contains("unknown key \"case\""));
  CHECK_THAT(refused([](Json& json) {
               json["cases"][0]["tiny"] = {{"gpus", 1}};
             }),
             Contains("not a JSON pointer"));
  CHECK_THAT(refused([](Json& json) { json["cases"] = Json::array({Json::object()}); }),
             Contains("is empty; name at least one"));
}

}  // namespace moesim::test_study
