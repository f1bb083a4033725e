// SPDX-License-Identifier: Apache-2.0
// Does a study of regimes compare like with like, and name the right policy?
#include <algorithm>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/lab/study/regime_tables.hpp"

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

// Rows below have three samples.
RegimeStudy study_of_three(Json json = study_file()) {
  json["samples"] = 3;
  return study_of(json);
}

SweepOutcome run_study(const RegimeStudy& study, const std::filesystem::path& store) {
  TraceLibrary traces;
  const PointRunner runner{
      [](const Json&) {},
      [&](const Json& point) { return price_regime(point, study.base_file, traces); }};
  return run_sweep(points_of(study), store, runner, {});
}

// By the place among the policies of the study.
RegimeRow row(std::size_t policy, double replication, std::vector<double> ms, double kv_tokens,
              std::size_t constants = 0, std::size_t exchange = 0) {
  RegimeRow row;
  row.place = {0, constants, exchange, policy};
  row.replication = replication;
  row.batch = 8;
  row.x = 1;
  row.ms = std::move(ms);
  row.activated = {2, 2, 2};
  row.read_mb = {4, 4, 4};
  row.kv_tokens = kv_tokens;
  row.layers = 4;
  return row;
}
constexpr std::size_t none = 0, even = 1, metro = 2;

}  // namespace

TEST_CASE("the map names the fastest, and what is as fast with the most KV cache") {
  const RegimeStudy study = study_of_three();
  const std::vector<RegimeRow> rows{
      row(none, 1, {10, 11, 12}, 100), row(metro, 1.5, {8, 9.1, 10.3}, 50),
      row(even, 1.5, {8.1, 9, 10}, 80), row(metro, 1.25, {9, 10, 11}, 60)};
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  REQUIRE(cells.size() == 1);
  CHECK(cells[0].reference->place.policy == none);
  CHECK(cells[0].fastest->place.policy == even);
  CHECK(cells[0].metro->replication == 1.5);
  CHECK(cells[0].cheapest->place.policy == even);  // none has more KV and is slower
  std::vector<RegimeRow> crowded = rows;
  for (RegimeRow& other : crowded) other.fits = other.place.policy == none;
  CHECK(regime_map(study, crowded)[0].fastest->place.policy == none);
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
  const auto find = [&](std::size_t of_case, std::size_t policy, int batch) {
    return *std::find_if(rows.begin(), rows.end(), [&](const RegimeRow& other) {
      return other.place.of_case == of_case && other.place.policy == policy && other.batch == batch;
    });
  };
  const int small = rows.front().batch;
  for (const RegimeRow& one : rows) CHECK(one.ms.size() == 4);
  // The charge is METRO's alone; activations know nothing of it.
  CHECK(find(0, even, small).ms == find(1, even, small).ms);
  const RegimeRow charged = find(0, metro, small), free = find(1, metro, small);
  CHECK(charged.activated == free.activated);
  for (std::size_t i = 0; i < 4; ++i) CHECK(charged.ms[i] > free.ms[i]);
  // On the same batches METRO never activates more than the even split, and copies take KV cache.
  for (std::size_t i = 0; i < 4; ++i) CHECK(free.activated[i] <= find(1, even, small).activated[i]);
  CHECK(free.kv_tokens < find(1, none, small).kv_tokens);
  // Uncut experts: bytes are slots times one size, the same for every policy.
  const auto bytes_of_slot = [](const RegimeRow& one) { return one.read_mb[0] / one.activated[0]; };
  CHECK_THAT(bytes_of_slot(free), WithinRel(bytes_of_slot(find(1, even, small)), 1e-12));
  // Whatever a case charges, the step is known for every time to decide.
  CHECK(free.free_ms == free.ms);
  CHECK(charged.published_ms == charged.ms);
  CHECK(charged.free_ms == free.ms);

  const std::string csv = regime_csv(study, rows);
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 13);
  const std::string text = regime_text(study, rows);
  CHECK_THAT(text, Contains("tiny, free"));
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    CHECK(text.find('\n', begin) - begin <= 100);
}

TEST_CASE("a policy may take what the rival's step is longer, layer by layer") {
  const RegimeStudy study = study_of_three();
  // If METRO decides in no time its steps are 1 ms shorter than the rival's; four layers.
  RegimeRow decides = row(metro, 1.5, {10, 12, 14}, 50);
  decides.free_ms = {8, 10, 12};
  decides.fast_ms = {8.4, 10.4, 12.4};
  decides.published_ms = {10, 12, 14};
  std::vector<RegimeRow> rows{row(none, 1, {10, 12, 14}, 100), decides,
                              row(even, 1.5, {9, 11, 13}, 80)};
  const std::vector<BreakEven> all = break_even(study, rows);
  REQUIRE(all.size() == 2);
  CHECK(all[0].policy->place.policy == metro);
  CHECK(all[0].rival->place.policy == none);
  CHECK_THAT(all[0].us, WithinRel(500.0, 1e-12));
  CHECK(all[1].rival->place.policy == even);
  CHECK_THAT(all[1].us, WithinRel(250.0, 1e-12));
  // Our kernel leaves it ahead in all three samples; as published it is behind in all.
  CHECK(all[1].p_fast == 1);
  CHECK(all[1].p_published == 0);
  CHECK_THAT(regime_text(study, rows), Contains("+250.0 (1.00, 0.00)"));
  rows[1].published_ms = rows[2].ms;
  CHECK(break_even(study, rows)[1].p_published == .5);
  // Prices that are off are so for both kernels, and for the rival.
  rows[1].off_ms = {11, 13, 15};
  rows[2].off_ms = {9, 11, 13};
  CHECK(break_even(study, rows)[1].p_fast < .1);
}

TEST_CASE("P of the fastest is the least under all constants and behind every exchange") {
  Json json = study_file();
  json["constants"] = {{"measured", Json::object()}, {"families", Json::object()}};
  json["exchanges"] = {{"gather", Json::object()}, {"kernels", Json::object()}};
  const RegimeStudy study = study_of_three(json);
  REQUIRE(study.constants.front().first == "families");
  // Behind the kernels METRO has no row: they are no exchange that all can use.
  const auto rows_if = [&](std::vector<double> none_by_families) {
    return std::vector<RegimeRow>{
        row(none, 1, none_by_families, 100, 0, 0), row(none, 1, {9.5, 10.5, 11.5}, 100, 0, 1),
        row(metro, 1.5, {9, 10, 11}, 50, 0, 0), row(none, 1, {10, 11, 12}, 100, 1, 0),
        row(metro, 1.5, {8, 9, 10}, 50, 1, 0)};
  };
  const std::vector<RegimeRow> agreed = rows_if({10, 11, 12});
  const auto views = regime_views(study, agreed);
  REQUIRE(views.size() == 1);
  REQUIRE(views[0].size() == 4);
  CHECK(!views[0][0].exchange.has_value());
  CHECK(views[0][0].reference->place.exchange == 1);  // its best
  CHECK(views[0][1].exchange == 0U);
  CHECK(fastest_family(views[0]).family == "metro");
  CHECK(fastest_family(views[0]).p == 1);
  CHECK_THAT(regime_text(study, agreed),
             Contains("metro -9.1 to -4.8, 1.00") && Contains("metro -18.2 to -18.2, 1.00"));
  // By one set of constants none is as surely the fastest: nobody is in all.
  CHECK(fastest_family(regime_views(study, rows_if({8, 9, 10}))[0]).p == 0);
  // The same in every sample is a draw.
  CHECK(fastest_family(regime_views(study, rows_if({9, 10, 11}))[0]).p == .5);
}

TEST_CASE("a study asks prefill and cut experts, each behind its own exchanges") {
  const TemporaryFolder folder;
  Json json = study_file();
  json["cases"] = Json::parse(R"([{"free": {"/charges": {"token_routing": "none"}}}])");
  json["policies"] = Json::parse(R"({
      "none": {"/placement/replication": 1, "/token_routing/decode": "even"},
      "slices": {"/placement/replication": 1, "/token_routing/decode": "even", "/parallel/ep": 2},
      "own": {"/placement/replication": 1, "/dispatch/decode": "all_gather"}})");
  json["exchanges"] = Json::parse(R"({"gather": {"/dispatch/decode": "all_gather"},
                                      "split": {"/dispatch/decode": "all_to_all"}})");
  json["prompts"] = {12};
  const RegimeStudy study = study_of(json);
  // A policy with an exchange of its own is asked once, and here it is "none" behind the gather.
  CHECK(run_study(study, folder / "study.sqlite").ran == 4);
  const std::vector<RegimeRow> rows =
      regime_rows(study, Store::open(folder / "study.sqlite").read());
  CHECK(rows.size() == 15);
  CHECK(std::ranges::count(rows, StepKind::prefill, &RegimeRow::kind) == 5);
  const auto find = [&](const char* policy, StepKind kind) {
    return *std::ranges::find_if(rows, [&](const RegimeRow& one) {
      return study.policies[one.place.policy].first == policy && one.kind == kind;
    });
  };
  // Each half is on twice as many GPUs: never fewer slots, never more bytes than whole experts.
  const RegimeRow whole = find("none", StepKind::decode), cut = find("slices", StepKind::decode);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(cut.activated[i] >= whole.activated[i]);
    CHECK(cut.read_mb[i] <= whole.read_mb[i]);
  }
  CHECK_THAT(regime_text(study, rows), Contains("free; prefill") && Contains("free; decode"));
}

TEST_CASE("deals have seeds of their own, and prices that are off are off for all policies") {
  const TemporaryFolder folder;
  Json json = study_file();
  json["cases"] = Json::parse(R"([{"free": {"/charges": {"token_routing": "none"}}}])");
  json["sequences"] = {3};
  const auto rows_of = [&](const char* file) {
    const RegimeStudy study = study_of(json);
    run_study(study, folder / file);
    return regime_rows(study, Store::open(folder / file).read());
  };
  json["samples"] = 2;
  const std::vector<RegimeRow> one = rows_of("one.sqlite");
  json["samples"] = 4;
  json["deals"] = 2;
  json["price_errors"] = true;
  const std::vector<RegimeRow> two = rows_of("two.sqlite");
  REQUIRE(one.size() == two.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    CHECK(one[i].off_ms.empty());
    REQUIRE(two[i].ms.size() == 4);
    REQUIRE(two[i].off_ms.size() == 4);
    // The first deal is what a study of one deal has; the second one has other batches.
    CHECK(std::equal(one[i].ms.begin(), one[i].ms.end(), two[i].ms.begin()));
    CHECK(two[i].ms[2] != two[i].ms[0]);
    CHECK(two[i].off_ms != two[i].ms);
  }
  json["deals"] = 3;
  CHECK_THAT(config_error([&] { study_of(json); }), Contains("give a multiple"));
}

TEST_CASE("a study leaves out slices that some kernels do not take") {
  const TemporaryFolder folder;
  Json json = study_file();
  json["cases"] = Json::parse(R"([{"blocks": {"/precision/experts": "fp8_block"}}])");
  // 1,024 wide: 512 is whole blocks of 128, and so is 256.
  json["policies"] = Json::parse(R"({
      "none": {"/placement/replication": 1},
      "ep 1": {"/placement/replication": 1, "/parallel/ep": 1},
      "narrow": {"/placement/replication": 1, "/parallel/ep": 1,
                 "/model": "../models/zoo/qwen3_30b_a3b.json"}})");
  const RegimeStudy study = study_of(json);
  const SweepOutcome outcome = run_study(study, folder / "study.sqlite");
  CHECK(outcome.ran == 3);
  const StoredSweep stored = Store::open(folder / "study.sqlite").read();
  CHECK(regime_rows(study, stored).size() == 4);
  const auto left_out =
      std::ranges::find(stored.points, PointStatus::infeasible, &StoredPoint::status);
  REQUIRE(left_out != stored.points.end());
  CHECK_THAT(left_out->error, Contains("slices of 192"));
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
    REQUIRE(!all.empty());
    const BreakEven& last = all.back();  // against the fastest
    const auto mean = [](const std::vector<double>& ms) {
      return std::accumulate(ms.begin(), ms.end(), 0.0) / static_cast<double>(ms.size());
    };
    return std::tuple(last.us, mean(last.policy->ms), mean(last.rival->ms));
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

TEST_CASE("a store of an older program is refused in a sentence") {
  const RegimeStudy study = study_of(study_file());
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "old.sqlite";
  run_sweep(points_of(study), file,
            {[](const Json&) {}, [](const Json&) { return std::string(R"({"batches": []})"); }},
            {});
  const StoredSweep stored = Store::open(file).read();
  CHECK_THAT(config_error([&] { regime_rows(study, stored); }),
             Contains("an older moesim wrote the store"));
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
