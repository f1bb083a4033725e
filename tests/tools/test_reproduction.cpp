// SPDX-License-Identifier: Apache-2.0
// Do published figures still come out as their files record?
#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/lab/reproduce/reproduction.hpp"

namespace moesim::test_reproduction {

using Catch::Matchers::Contains;
namespace {

ConfigNode figure(const char* row) {
  return test::config(fmt::format(
      R"({{"title": "t", "source": "s", "assumed": [],
          "measured": {{"m": {{"model": {{"model": "../models/zoo/mixtral_8x7b.json"}}}}}},
          "rows": [{}]}})",
      row));
}

Json measured(const ConfigNode& quantity) {
  TraceLibrary traces;
  return measure(quantity, traces);
}

TEST_CASE("a value is judged by its band, then by its sign") {
  const auto verdict = [](const char* value) {
    const Reproduction done = reproduce(
        figure(fmt::format(R"({{"what": "w", "published": "9 to 11", "value": {}, "band": [9, 11],
                         "sign": [0, null], "verdict": "sign only", "reason": "r"}})",
                           value)
                   .c_str()));
    return done.rows.at(0).verdict;
  };
  CHECK(verdict("9") == Verdict::within_band);
  CHECK(verdict("12") == Verdict::sign_only);
  CHECK(verdict("-1") == Verdict::not_reproduced);
  // 8 experts of which a token takes 2, against a number: +300 %.
  CHECK(verdict(R"({"change": ["m:/experts", "m:/experts_per_token"]})") == Verdict::sign_only);
  CHECK(verdict(R"({"sum": ["m:/experts", {"ratio": ["m:/experts_per_token", 2]}]})") ==
        Verdict::within_band);
}

TEST_CASE("a row of several numbers goes by the largest difference") {
  // 8 experts of which a token takes 2: 1 and 3 away. "Below 0" is missed by as much as lies above.
  const auto row = [](const char* values, const char* each) {
    return reproduce(figure(fmt::format(R"({{"what": "w", "published": "p", "unit": " us",
                                             "values": {}, "each": {}, "band": [null, 2],
                                             "verdict": "not published"}})",
                                        values, each)
                                .c_str()))
        .rows[0];
  };
  const ReproducedRow near = row(R"(["m:/experts", "m:/experts_per_token"])", "[9, 5]");
  CHECK(near.simulated == 3);
  CHECK(near.verdict == Verdict::sign_only);
  CHECK(near.each == std::vector<double>{8, 2});
  CHECK(row("[1.5, -1, 4]", "[null, null, 5]").simulated == 1.5);
  CHECK(row("[1.5, -1, 4]", "[null, null, 5]").verdict == Verdict::within_band);
  CHECK(row("[3]", "[null]").verdict == Verdict::not_reproduced);
  CHECK(row("[-1, 4]", "[2, 4]").verdict == Verdict::not_reproduced);  // of the other sign
  CHECK_THROWS_AS(row("[1]", "[1, 2]"), ConfigError);
  const Reproduction done = reproduce(
      figure(R"({"what": "w", "published": "9 / 5 us", "unit": " us", "values": ["m:/experts", 2],
                 "each": [9, 5], "band": [null, 4], "verdict": "within band"})"));
  CHECK_THAT(results_csv({done}), Contains(",w,9 / 5 us,8.0 / 2.0; largest difference 3.000 "
                                           "us,within band,one-sided,,,,,direction\n"));
}

TEST_CASE("cells of a study answer by case, constants, tokens, policy and exchange") {
  const Json cells = measured(test::config(R"({"regimes": {
      "base": "tiny.json", "cases": [{"tiny": {"/placement": {"type": "eplb", "replication": 1},
                                               "/charges": {"token_routing": "measured"}}}],
      "exchanges": {"all": {"/dispatch/decode": "all_to_all"},
                    "gather": {"/dispatch/decode": "all_gather"}},
      "policies": {"none": {"/placement/replication": 1, "/token_routing/decode": "even"},
                   "metro": {"/token_routing/decode": "metro"}},
      "replications": [2], "sequences": [4], "context": 64, "samples": 2}})"));
  const Json& cell = cells.at("tiny").at("").items().begin().value();
  const auto us = [&](const char* policy, const char* exchange) {
    return cell.at(policy).at(exchange).at("us").get<double>();
  };
  CHECK(us("none", "best") == std::min(us("none", "all"), us("none", "gather")));
  CHECK(!cell.at("metro").contains("all"));  // METRO needs the choices of the whole group
  CHECK(us("metro", "best") == us("metro", "gather"));
  CHECK(cell["none"]["gather"]["saved_us"] == 0);
  const double ratio = us("metro", "gather") / us("none", "gather");
  CHECK_THAT(cell["metro"]["gather"]["change"].get<double>(),
             Catch::Matchers::WithinAbs(100 * (ratio - 1), 1e-9));
  const double saved = us("none", "best") - us("metro", "best");  // of 16 layers
  CHECK_THAT(cell["metro"]["best"]["saved_us"].get<double>(),
             Catch::Matchers::WithinAbs(saved / 16, 1e-9));
}

TEST_CASE("a row may tell what each of its inputs changes, or stand there with nothing published") {
  // Of 8 experts, 9 and 7.5 are 1 more and .5 less.
  const Reproduction done = reproduce(figure(
      R"({"what": "w", "published": "10", "value": "m:/experts", "band": [9, 11],
          "verdict": "not reproduced", "reason": "r",
          "causes": {"charge": 9, "gating": {"sum": ["m:/experts", -0.5]}}},
         {"what": "w", "published": "nothing", "value": "m:/experts", "verdict": "not published"})"));
  CHECK(done.rows.at(0).causes.at(1).simulated == 7.5);
  CHECK(to_text(done).find("r; by cause: charge +1.000, gating -0.500") != std::string::npos);
  CHECK(done.rows.at(1).verdict == Verdict::not_published);
}

TEST_CASE("a data sheet takes the place of the cluster it is given for, and of nothing else") {
  const auto figure_on = [](const char* replaced) {
    return reproduce(test::config(fmt::format(
        R"({{"title": "t", "source": "s", "assumed": [],
             "data_sheet": {{"../hardware/clusters/{}": "../hardware/clusters/b200x8_data_sheet.json"}},
             "measured": {{
               "m": {{"model": {{"model": "../models/zoo/mixtral_8x7b.json"}}}},
               "step": {{"explain": {{"step": "decode", "sequences": 2, "context": 64, "samples": 3,
                                      "sweep": {{"base": "tiny.json"}}}}}}}},
             "rows": [
               {{"what": "w", "published": "p", "value": "step:/total_us", "verdict": "not published"}},
               {{"what": "w", "published": "p", "value": "m:/experts", "band": [8, 8],
                 "verdict": "within band"}}]}})",
        replaced)));
  };
  const Reproduction other = figure_on("h100x8.json");
  CHECK(*other.rows[0].data_sheet < other.rows[0].simulated);  // no launches at all
  CHECK(*other.rows[1].data_sheet == 8);
  CHECK(other.rows[1].data_sheet_verdict == Verdict::within_band);
  CHECK_THAT(results_csv({other}), Contains(",\"8.000, within band\",,,hit\n"));
  const Reproduction same = figure_on("h200x8.json");
  CHECK(*same.rows[0].data_sheet == same.rows[0].simulated);
}

TEST_CASE("a verdict says where in its band a value lies") {
  const auto place = [](const char* unit, double value, double low, double high) {
    ReproducedRow row;
    row.unit = unit;
    row.simulated = value;
    row.ends = {low, high};
    return place_in_band(row);
  };
  CHECK(place(" %", -7.5, -17, -7) == "+4.5 of +-5 points");
  CHECK(place(" %", 0, -5, 5) == "+0.0 of +-5 points");
  // 1.1 is 12 % below 1.25, of which .25 is a fifth.
  CHECK(place("x", 1.1, 1, 1.5) == "-12 of +-20 %");
  CHECK(place(" tok/s", 100.00001, 99.9, 100.1) == "+0.00 of +-0.1 %");
  CHECK(place(" us", 8, 8, 8).empty());
  CHECK(place_in_band(ReproducedRow{}).empty());
  const Reproduction done = reproduce(figure(
      R"({"what": "w", "published": "9 %", "unit": " %", "value": "m:/experts", "band": [4, 14],
          "verdict": "within band"})"));
  CHECK_THAT(results_csv({done}),
             Contains(",w,9 %,8.000 %,within band,two-sided,-1.0 of +-5 points,,,,hit\n"));
}

TEST_CASE("claims of moesim's own are counted apart from published figures") {
  Reproduction figure;
  figure.paper = "METRO";
  const auto add = [&](Verdict verdict, BandKind band) {
    ReproducedRow row;
    row.verdict = verdict;
    row.band = band;
    figure.rows.push_back(row);
  };
  add(Verdict::within_band, BandKind::exact);
  add(Verdict::within_band, BandKind::ours);
  add(Verdict::within_band, BandKind::ours);
  add(Verdict::sign_only, BandKind::two_sided);
  add(Verdict::not_reproduced, BandKind::one_sided);
  add(Verdict::not_reproduced, BandKind::ours);
  add(Verdict::not_published, BandKind::none);
  const std::string counts = counts_markdown({figure});
  CHECK_THAT(counts, Contains("Of 3 published numbers 1 are hit, 1 agree in direction and 1 are"));
  CHECK_THAT(counts, Contains("|METRO|1|1|1|0|2|1|\n"));
}

TEST_CASE("a published number counts once, by its worst row, and odd settings count apart") {
  Reproduction figure;
  figure.paper = "METRO";
  const auto add = [&](Verdict verdict, const char* number, const char* apart) {
    ReproducedRow row;
    row.verdict = verdict;
    row.band = BandKind::two_sided;
    row.number = number;
    row.apart = apart;
    figure.rows.push_back(row);
  };
  add(Verdict::within_band, "Fig. 9", "");
  add(Verdict::sign_only, "Fig. 9", "");
  add(Verdict::within_band, "Fig. 10", "");
  add(Verdict::not_reproduced, "Fig. 10", "charged as on A100");
  add(Verdict::within_band, "", "");
  add(Verdict::within_band, "", "");
  CHECK_THAT(counts_markdown({figure}), Contains("|METRO|3|1|0|1|0|0|\n"));
}

TEST_CASE("a band that doing nothing meets tells the direction at most") {
  const auto outcome = [](double value, double low, double high, const char* unit = " %") {
    ReproducedRow row;
    row.unit = unit;
    row.simulated = value;
    row.ends = {low, high};
    row.band = BandKind::no_change;
    return *standing_of(row);
  };
  CHECK(outcome(-3, -7, 3) == Standing::direction);
  CHECK(outcome(.1, -7, 3) == Standing::contradicted);
  CHECK(outcome(0, -7, 3) == Standing::contradicted);
  CHECK(outcome(0, 0, 2) == Standing::direction);  // "about 0"
  CHECK(outcome(1, -5, 5) == Standing::hit);       // no change was published
  CHECK(outcome(1.1, .95, 1.27, "x") == Standing::direction);
  CHECK(outcome(.97, .95, 1.27, "x") == Standing::contradicted);
}

TEST_CASE("bands that say much are told from bands that say little") {
  const auto kind = [](const char* band, const char* unit, const char* more = "") {
    return reproduce(
               figure(fmt::format(R"({{"what": "w", "published": "p", "unit": "{}", "value": 1,
                                            "band": {}, {} "verdict": "not published"}})",
                                  unit, band, more)
                          .c_str()))
        .rows[0]
        .band;
  };
  CHECK(kind("[-22, -11]", " %") == BandKind::two_sided);
  CHECK(kind("[-5, 5]", " %") == BandKind::no_change);
  CHECK(kind("[1.98, 4.11]", "x") == BandKind::two_sided);
  CHECK(kind("[0.9, 2]", "x") == BandKind::no_change);
  CHECK(kind("[8, 8]", "") == BandKind::exact);
  CHECK(kind("[null, 0]", " %") == BandKind::one_sided);
  CHECK(kind("[null, 0]", " %", R"("ours": true,)") == BandKind::ours);
}

TEST_CASE("a frontier passes over what does not fit, and over nothing else") {
  const test::TemporaryFile sweep("frontier.json");
  const std::filesystem::path& file = sweep.path();
  const auto error = [&](const char* key, Json value) {
    Json base = ConfigNode::from_file(test::source_dir() / "tests/tiny.json").json();
    for (const char* path : {"cluster", "model"})
      base[path] = (test::source_dir() / "tests" / base[path].get<std::string>()).string();
    std::ofstream(file) << Json{{"base", base}, {"axes", {{key, {std::move(value)}}}}};
    const Json frontier{{"sweep", file.string()},
                        {"context", 64},
                        {"frontiers", {{"all", {Json::object()}}}},
                        {"gains", Json::object()}};
    return test::config_error([&] {
      measured(ConfigNode(Json{{"frontier", frontier}}, file.parent_path() / "figure.json"));
    });
  };
  CHECK(error("/kv_cache", Json{{"gpu_memory_utilization", 0.01}}).find("no point of the sweep") !=
        std::string::npos);
  CHECK(error("/parallel/dp", 0).find("/parallel/dp") != std::string::npos);
}

TEST_CASE("rows that cannot be computed, or do not say why they fail, are refused") {
  const auto error = [](const char* row) {
    return test::config_error([&] { reproduce(figure(row)); });
  };
  CHECK(error(R"({"what": "w", "published": "1", "value": "m:/none", "band": [1, 1],
                  "verdict": "within band"})")
            .find("there is no number at") != std::string::npos);
  CHECK(error(R"({"what": "w", "published": "1", "value": 2, "band": [1, 1],
                  "verdict": "not reproduced"})")
            .find("needs a \"reason\"") != std::string::npos);
}

TEST_CASE("a placement that misses an expert, or one of other shape, is the figure's error") {
  const auto error = [](const char* json) {
    return test::config_error([&] { measured(test::config(json)); });
  };
  CHECK(
      error(
          R"({"route": {"tokens": [1, 1, 1], "experts_on_gpu": [[0], [1]], "routings": ["even"]}})")
          .find("/route/experts_on_gpu: expert 2 has no slot") != std::string::npos);
  CHECK(
      error(R"({"route": {"tokens": [1, 1], "experts_on_gpu": [[0], [7]], "routings": ["even"]}})")
          .find("holds expert 7; expected 0 to 1") != std::string::npos);
  CHECK(
      error(
          R"({"place": {"load": [[1, 1]], "gpus": 2, "slots": 2, "policy": "linear", "expected": [[0]]}})")
          .find("\"expected\" is not 1 layers of 2 slots") != std::string::npos);
}

TEST_CASE("a workload without a source for each of its numbers is refused") {
  const test::TemporaryFile workload("workload.json");
  const std::filesystem::path& file = workload.path();
  const auto error = [&](const char* sources) {
    std::ofstream(file)
        << R"({"dataset": "d", "lengths": {"prompt": 8}, "gating": {"type": "uniform"}, "sources": )"
        << sources << "}";
    return test::config_error([&] {
      measured(ConfigNode(Json{{"workload", file.string()}, {"run", {{"base", "none.json"}}}},
                          file.parent_path() / "figure.json"));
    });
  };
  CHECK(error(R"({"/gating/type": "assumed"})").find("/lengths/prompt") != std::string::npos);
  CHECK(error(R"({"/lengths/prompt": "assumed", "/gating/type": "assumed"})").find("none.json") !=
        std::string::npos);
}

}  // namespace
}  // namespace moesim::test_reproduction
