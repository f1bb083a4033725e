// SPDX-License-Identifier: Apache-2.0
// Is a sweep written out, stored, resumed and evaluated as its file says?
#include <atomic>
#include <cmath>
#include <fstream>
#include <mutex>
#include <numbers>
#include <set>

#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/analysis/comparable.hpp"
#include "tools/analysis/compare.hpp"
#include "tools/analysis/pareto.hpp"
#include "tools/analysis/pareto_gain.hpp"
#include "tools/cli/gnuplot.hpp"
#include "tools/cli/output.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim::test_sweep {
namespace {

using test::config;
using test::config_error;
using test::TemporaryFile;

std::vector<std::string> configs_of(const Sweep& sweep) {
  std::vector<std::string> configs;
  for (const SweepPoint& point : sweep.points) configs.push_back(point.config.dump());
  return configs;
}

Sweep expanded(const std::string& text) { return expand_sweep(config(text)); }

// Six points: a in 1, 2, 3 and b in 1, 2.
const std::string six_points =
    R"({"base": {"a": 0, "b": 0}, "axes": {"/a": [1, 2, 3], "/b": [1, 2]}})";

// Stands for the simulator: reports a * 10 + b, and notes what it ran. "b": -1 is infeasible, "b":
// -2 breaks.
struct FakeSimulator {
  std::mutex mutex;
  std::multiset<std::string> ran;

  PointRunner runner() {
    return {[](const Json& point) {
              if (point.at("b") == -1) throw ConfigError("b: does not fit");
            },
            [this](const Json& point) {
              const std::lock_guard lock(mutex);
              ran.insert(point.dump());
              if (point.at("b") == -2) throw std::logic_error("broken");
              const int y = point.at("a").get<int>() * 10 + point.at("b").get<int>();
              return Json{{"metrics", {{"y", y}}}}.dump();
            }};
  }
};

SweepOptions with_threads(int threads) {
  SweepOptions options;
  options.threads = threads;
  return options;
}

// A store and what fills it.
struct Run {
  TemporaryFile file{"store.sqlite"};
  FakeSimulator simulator;

  SweepOutcome operator()(const std::string& sweep, const SweepOptions& options) {
    return run_sweep(expanded(sweep), file.path(), simulator.runner(), options);
  }
  SweepOutcome operator()(const std::string& sweep, int threads = 1) {
    return (*this)(sweep, with_threads(threads));
  }
  Store store() const { return Store::open(file.path()); }
};

}  // namespace

TEST_CASE("axes give every combination, the later axis fastest") {
  CHECK(configs_of(expanded(six_points)) ==
        std::vector<std::string>{R"({"a":1,"b":1})", R"({"a":1,"b":2})", R"({"a":2,"b":1})",
                                 R"({"a":2,"b":2})", R"({"a":3,"b":1})", R"({"a":3,"b":2})"});
}

TEST_CASE("a zip goes row by row, crossed with the axes and with the seeds") {
  const Sweep sweep = expanded(R"({"base": {"a": 0}, "axes": {"/a": [1, 2]},
      "zip": {"/x": [1, 2], "/y": [8, 4]}, "seeds": [5]})");
  CHECK(configs_of(sweep) == std::vector<std::string>{R"({"a":1,"seed":5,"x":1,"y":8})",
                                                      R"({"a":1,"seed":5,"x":2,"y":4})",
                                                      R"({"a":2,"seed":5,"x":1,"y":8})",
                                                      R"({"a":2,"seed":5,"x":2,"y":4})"});
}

TEST_CASE("blocks follow each other, and a point that two of them have is run once") {
  const Sweep sweep = expanded(R"({"base": {"a": 0, "b": 0}, "blocks": [
      {"set": {"/b": 1}, "axes": {"/a": [1, 2]}}, {"axes": {"/a": [2, 3], "/b": [1]}}]})");
  CHECK(configs_of(sweep) ==
        std::vector<std::string>{R"({"a":1,"b":1})", R"({"a":2,"b":1})", R"({"a":3,"b":1})"});
}

TEST_CASE("a skip rule leaves out the points that match all of it, a policy by either spelling") {
  const Sweep sweep = expanded(R"({"base": {"p": "even", "a": 0},
      "axes": {"/p": ["even", {"type": "metro"}], "/a": [1, 2]},
      "skip": [{"/p": "metro", "/a": 1}]})");
  CHECK(configs_of(sweep) == std::vector<std::string>{R"({"a":1,"p":"even"})",
                                                      R"({"a":2,"p":"even"})",
                                                      R"({"a":2,"p":{"type":"metro"}})"});
}

TEST_CASE("what is coupled to a value goes with it, whether an axis or the base writes it") {
  const Sweep sweep = expanded(R"({"base": {"p": "metro", "d": "gather", "a": 0},
      "axes": {"/p": ["even", {"type": "metro"}], "/a": [1]},
      "couple": {"/p": {"even": {"/d": "a2a"}}}})");
  CHECK(configs_of(sweep) ==
        std::vector<std::string>{R"({"a":1,"d":"a2a","p":"even"})",
                                 R"({"a":1,"d":"gather","p":{"type":"metro"}})"});
  CHECK(configs_of(expanded(R"({"base": {"p": "even", "d": "gather", "a": 0}, "axes": {"/a": [1]},
      "couple": {"/p": {"even": {"/d": "a2a"}}}})")) ==
        std::vector<std::string>{R"({"a":1,"d":"a2a","p":"even"})"});
  std::vector<std::string> axes;
  for (const Axis& axis : axes_of(sweep.document)) axes.push_back(axis.pointer);
  CHECK(axes == std::vector<std::string>{"/a", "/d", "/p"});
}

TEST_CASE("one axis may change a policy and another an option of it") {
  const Sweep sweep = expanded(R"({"base": {"p": "linear"},
      "axes": {"/p/n": [2], "/p": [{"type": "eplb"}, {"type": "linear", "n": 1}]}})");
  CHECK(configs_of(sweep) == std::vector<std::string>{R"({"p":{"n":2,"type":"eplb"}})",
                                                      R"({"p":{"n":2,"type":"linear"}})"});
}

TEST_CASE("what is wrong with a sweep file is said in a line") {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"base": {"a": {}}, "axes": {"/b/c": [1]}})", "the base has no \"/b\""},
      {R"({"base": {"p": "eplb"}, "axes": {"/p/n": [1]}})",
       "write it as an object, {\"type\": \"eplb\"}"},
      {R"({"base": {"a": [1]}, "axes": {"/a/1": [1]}})", "no such place"},
      {R"({"base": {}, "axes": {"/a": []}})", "at least one value"},
      {R"({"base": {}, "axes": {"a": [1]}})", "not a JSON pointer"},
      {R"({"base": {}, "axes": {"/a": [1]}, "set": {"/a": 2}})", "set twice"},
      {R"({"base": {}, "zip": {"/a": [1], "/b": [1, 2]}})", "equally many"},
      {R"({"base": {}, "axes": {"/a": [1]}, "blocks": []})", "move it into each block"},
      {R"({"base": {}, "axes": {"/a": [1]}, "skip": [{"/a": 1}]})", "leaves no point"},
      {R"({"base": {}, "axes": {"/a": [1]}, "skip": [{"/b": 1}]})", "no point has a \"/b\""},
      {R"({"base": {"a": 0, "d": 0}, "axes": {"/a": [1], "/d": [1]},
           "couple": {"/a": {"1": {"/d": 2}}}})",
       "\"/d\" is set twice, by \"couple\" too"},
      {R"({"base": {"a": 0}, "axes": {"/a": [1]}, "couple": {"/a": {"2": {"/d": 2}}}})",
       "no point has 2 at \"/a\""},
      {R"({"base": {}, "axis": {"/a": [1]}})", "unknown key \"axis\""},
      {R"({"model": "m.json", "workload": {}})", "not a sweep"}};
  for (const auto& [text, said] : wrong)
    CHECK_THAT(config_error([&, of = text] { expanded(of); }), Catch::Matchers::Contains(said));
}

TEST_CASE("a config hash is FNV-1a of the config with sorted keys") {
  // FNV-1a 64 of the bytes {"a":1,"b":2}, computed apart from this program.
  CHECK(sweep_point(Json::parse(R"({"b": 2, "a": 1})")).config_hash == "a0ebc03bdc71de7b");
  CHECK(sweep_point(Json::parse(R"({"a": 1, "b": 2})")).config_hash ==
        sweep_point(Json::parse(R"({"b": 2, "a": 1})")).config_hash);
}

TEST_CASE("points are others once a file has changed that their config names, however far down") {
  const test::TemporaryFolder folder;
  for (const char* inner : {"gpus", "model", "tables/vllm-1", "trace", "results"})
    std::filesystem::create_directories(folder / inner);
  folder.write("sweep.json", R"({"base": {"cluster": "cluster.json", "model": "model",
      "gpu": {"profiles": "tables"}, "trace": "trace", "out": "results", "a": 0},
      "axes": {"/a": [1]}})");
  folder.write("cluster.json", R"({"gpu": "gpus/gpu.json"})");
  // Precisions of a checkpoint, tables of a GPU and parts of a routing trace among them.
  const std::vector<std::string> names{
      "gpus/gpu.json",        "model/config.json",    "model/hf_quant_config.json",
      "model/quant_cfg.json", "tables/errors.csv",    "tables/vllm-1/gemm.csv.gz",
      "trace/meta.json",      "trace/requests.jsonl", "trace/topk_ids.npy"};
  for (const std::string& name : names) folder.write(name, "{}");
  const auto hash = [&] {
    return expand_sweep(ConfigNode::from_file(folder / "sweep.json")).points.front().config_hash;
  };
  const std::string before = hash();
  CHECK(hash() == before);
  for (const std::string& name : names) {
    CAPTURE(name);
    folder.write(name, "[]");
    CHECK(hash() != before);
    folder.write(name, "{}");
    CHECK(hash() == before);
  }
  // A folder that is no trace may hold the sweep's own store.
  folder.write("results/sweep.sqlite", "rows");
  CHECK(hash() == before);
  // The end of a large file counts as its beginning does.
  const auto ids = folder / "trace/topk_ids.npy";
  std::filesystem::resize_file(ids, 200 << 20);
  const std::string large = hash();
  std::fstream(ids, std::ios::in | std::ios::out).seekp((200 << 20) - 1) << 'x';
  CHECK(hash() != large);
  folder.write("trace/topk_ids.npy", "{}");
  std::filesystem::rename(folder / "tables/vllm-1", folder / "tables/vllm-2");
  CHECK(hash() != before);
}

TEST_CASE("a sweep refuses what both pools replace by their own") {
  const test::TemporaryFolder folder;
  const auto refuses = [&](const char* sweep, const char* line) {
    folder.write("sweep.json", sweep);
    CHECK_THROWS_WITH(expand_sweep(ConfigNode::from_file(folder / "sweep.json")),
                      Catch::Matchers::Contains(line));
  };
  folder.write("pools.json", R"({"pools": {"prefill": {"a": 1}, "decode": {"a": 2}}})");
  refuses(R"({"base": "pools.json", "axes": {"/a": [1, 2]}})",
          "\"/a\" has no effect, because both pools have their own");
  folder.write("both.json", R"({"a": 0, "pools": {"prefill": {"a": 1}, "decode": {"a": 2}}})");
  refuses(R"({"base": "both.json", "axes": {"/pools/decode/a": [1, 2]}})",
          "both.json:/a: has no effect");
  // A key that one pool inherits has one.
  folder.write("one.json", R"({"a": 0, "pools": {"prefill": {}, "decode": {"a": 2}}})");
  folder.write("sweep.json", R"({"base": "one.json", "axes": {"/a": [1, 2]}})");
  CHECK(expand_sweep(ConfigNode::from_file(folder / "sweep.json")).points.size() == 2);
}

TEST_CASE("equal values of an axis are one point, however they are written") {
  CHECK(configs_of(expanded(R"({"base": {"a": 0}, "axes": {"/a": [1, 1.0, 2, 1]}})")) ==
        std::vector<std::string>{R"({"a":1})", R"({"a":2})"});
}

TEST_CASE("axes are named by their last key, or by as much of the pointer as tells them apart") {
  const auto axes = named_axes({"/dispatch/decode", "/p/type", "/routing/decode", "/seed"});
  CHECK(axes[0].name == "dispatch/decode");
  CHECK(axes[1].name == "p/type");
  CHECK(axes[2].name == "routing/decode");
  CHECK(axes[3].name == "seed");
}

TEST_CASE("a table stays within 100 columns however long the settings are") {
  const std::string longest(200, 'x');
  const std::string table = narrow_table(
      {"a", "b", "c", "number"}, {{longest, longest, longest, "1"}, {"1", "2", "3", "2"}}, 3);
  for (std::size_t begin = 0; begin < table.size();) {
    const std::size_t end = table.find('\n', begin);
    CHECK(end - begin <= 100);
    begin = end + 1;
  }
}

TEST_CASE("a table too wide says words that all cells begin with once, and keeps what differs") {
  const std::string note(80, 'x');
  const std::string table =
      narrow_table({"arrivals", "note", "number"},
                   {{"closed_loop of 8", note, "1"}, {"closed_loop of 32", note, "2"}}, 2);
  CHECK_THAT(table, Catch::StartsWith("arrivals  note"));
  CHECK_THAT(table, Catch::Contains("\n       8  xxx") || Catch::Contains("\n8         xxx"));
  CHECK_THAT(table, Catch::Contains("\narrivals: closed_loop of ..\n"));
}

TEST_CASE("a table too wide breaks long headings, and cuts none") {
  const std::string wide(70, 'x');
  CHECK_THAT(narrow_table({"replication", "concurrency_per_rank", wide}, {{"1.5", "4", "1"}}, 2),
             Catch::StartsWith("             concurrency\n"
                               "replication    _per_rank  " +
                               wide + "\n        1.5            4  "));
  const std::string all = wide + wide;
  CHECK_THAT(narrow_table({"a_long_name", "number"}, {{all, "1"}}, 1),
             Catch::StartsWith("a_long_name"));
}

TEST_CASE(
    "a table too wide says below what is the same in all rows, and what follows from another") {
  const std::string wide(85, 'x');
  const std::string table = narrow_table(
      {"instances", "concurrency", "requests", wide},
      {{"1", "16", "512", "1"}, {"1", "64", "512", "2"}, {"1", "512", "2048", "3"}}, 3);
  CHECK_THAT(table, Catch::StartsWith("concurrency  " + wide + "\n"));
  CHECK_THAT(table,
             Catch::EndsWith("\ninstances: 1\n"
                             "requests by concurrency: 512 at 16, 512 at 64, 2048 at 512\n"));
  CHECK_THAT(table, !Catch::Contains("~"));
}

TEST_CASE("of two settings that tell each other the wordy one is left out; so is an empty column") {
  const std::string wide(80, 'x');
  const std::string table = narrow_table(
      {"dispatch", "routing", wide, "J/token"},
      {{"all_to_all none of it", "even", "1", "-"}, {"all_gather none of it", "metro", "2", "-"}},
      2);
  CHECK_THAT(table, Catch::StartsWith("routing  " + wide + "\n"));
  CHECK_THAT(table, Catch::Contains("dispatch by routing: all_to_all none of it at even"));
  CHECK_THAT(table, !Catch::Contains("J/token"));
}

TEST_CASE("a table too wide numbers long settings") {
  const Json disjoint{{"type", "eplb"}, {"load", {{"from", "trace"}, {"disjoint", true}}}};
  Json shared = disjoint, own = disjoint;
  shared["load"]["disjoint"] = false;
  own["type"] = "linear";
  CHECK(setting_text(disjoint) == "eplb disjoint trace");
  CHECK(setting_text(shared) == "eplb disjoint=false trace");
  std::vector<std::vector<std::string>> rows;
  for (const Json& placement : {disjoint, shared, own, disjoint})
    rows.push_back({setting_text(placement), "1"});
  const std::string table = narrow_table({"placement", std::string(80, 'x')}, rows, 1);
  CHECK_THAT(table, Catch::Contains("placement #1: eplb disjoint trace\n"
                                    "placement #2: eplb disjoint=false trace\n"
                                    "placement #3: linear disjoint trace\n"));
  CHECK_THAT(table, !Catch::Contains("#4"));
}

TEST_CASE("no two curves of a plot are drawn alike") {
  std::set<std::string> drawn;
  constexpr std::size_t colours = 15, styles = 9;
  for (std::size_t colour = 0; colour < colours; ++colour) {
    for (std::size_t style = 0; style < styles; ++style)
      drawn.insert(line_style(colour, style, styles));
  }
  CHECK(drawn.size() == colours * styles);
}

TEST_CASE("texts of pools name them, and leave out what all have alike") {
  const Json scheduling{{"type", "decode_only"}, {"max_num_seqs", 256}};
  const auto pools = [&](const Json& parallel) {
    Json decode{{"scheduling", scheduling}};
    if (!parallel.is_null()) decode["parallel"] = parallel;
    return Json{{"prefill", Json::object()}, {"decode", decode}};
  };
  const Json as_prefill = pools({}), by_4 = pools({{"dp", 8}, {"tp", 1}, {"ep", 4}}),
             by_1 = pools({{"dp", 8}, {"tp", 1}, {"ep", 1}});
  const auto texts = texts_apart({Json(), as_prefill, by_4, by_1}, "pools");
  CHECK(texts.at(Json()) == "no pools");
  CHECK(texts.at(as_prefill) == "pools");
  CHECK(texts.at(by_4) == "pools: decode ep4");
  CHECK(texts.at(by_1) == "pools: decode ep1");
  CHECK(setting_text(by_4) == "decode dp8 ep4 tp1 decode_only 256");
  // Which half is which.
  const Json both{{"prefill", {{"parallel", {{"dp", 2}}}}},
                  {"decode", {{"parallel", {{"dp", 4}}}}}};
  CHECK(setting_text(both) == "prefill dp2, decode dp4");
}

TEST_CASE("texts of one setting's values are never equal") {
  const auto plan = [](int dp, int ep) { return Json{{"dp", dp}, {"tp", 1}, {"ep", ep}}; };
  const auto texts = texts_apart({plan(8, 8), plan(8, 4), plan(16, 4)}, "parallel");
  CHECK(texts.at(plan(8, 4)) == "dp8 ep4");
  CHECK(texts.at(plan(16, 4)) == "dp16 ep4");
  const Json full{{"dp", 8}, {"tp", 1}}, brief{{"dp", 8}};
  const auto alike = texts_apart({full, brief, plan(8, 2)}, "parallel");
  CHECK(alike.at(full) != alike.at(brief));
  CHECK(texts_apart({Json(), Json(2)}, "replication").at(Json()) == "unset");
}

TEST_CASE("a sweep's table counts points whose rates are of no steady state") {
  StoredSweep sweep;
  const auto add = [&](const char* hash, const char* state) {
    const Json report = {{"measurement", {{"state", state}}}, {"metrics", {{"mean_tpot_ms", 1.0}}}};
    sweep.points.push_back({hash, Json::object(), PointStatus::done, "", report});
  };
  add("a", "stable");
  CHECK_THAT(sweep_text(sweep), !Catch::Contains("steady"));
  add("b", "too_short"), add("c", "overloaded"), add("d", "too_short");
  CHECK_THAT(sweep_text(sweep),
             Catch::Contains("not in a steady state: 1 overloaded, 2 too_short"));
}

TEST_CASE("points whose rates are of a queue that drains are no part of a comparison") {
  const TemporaryFile file("store.sqlite");
  const PointRunner runner{[](const Json&) {},
                           [](const Json& point) {
                             Json rates{{"served_request_rate", point.at("served")}};
                             const bool closed = point.at("served") == 100;
                             rates["offered_request_rate"] = closed ? Json() : Json(10);
                             rates["state"] = point.at("served") == 30 ? "stable" : "unsteady";
                             return Json{{"metrics", {{"y", 1}}}, {"measurement", rates}}.dump();
                           }};
  run_sweep(expanded(R"({"base": {"served": 0}, "axes": {"/served": [9, 10.5, 20, 30, 100]}})"),
            file.path(), runner, with_threads(1));
  const StoredSweep kept = read_comparable(Store::open(file.path()), {"/metrics/y"});
  REQUIRE(kept.points.size() == 4);
  for (const StoredPoint& point : kept.points) CHECK(point.config.at("served") != 20);
}

TEST_CASE("what a store varies is told by its axes and their values") {
  Run six, many;
  six(six_points);
  CHECK(axes_text(six.store()) == "/a (1, 2, 3), /b (1, 2)");
  many(R"({"base": {"a": 0, "b": 1}, "axes": {"/a": [1, 2, 3, 4, 5], "/b": [1]}})");
  CHECK(axes_text(many.store()) == "/a (1, 2, 3, ...)");
}

TEST_CASE("a sweep stores the report of every point", "[threads]") {
  Run run;
  const SweepOutcome outcome = run(six_points, 2);
  CHECK(outcome.ran == 6);
  CHECK(outcome.left == 0);
  const StoredSweep stored = run.store().read();
  REQUIRE(stored.points.size() == 6);
  REQUIRE(stored.axes.size() == 2);
  CHECK(stored.axes[0].name == "a");
  CHECK(stored.points[3].config == Json{{"a", 2}, {"b", 2}});
  CHECK(stored.points[3].status == PointStatus::done);
  CHECK(report_number(stored.points[3], "/metrics/y") == 22);
}

TEST_CASE("a stopped sweep goes on with the points that are not done", "[threads]") {
  Run run;
  std::atomic<std::size_t> finished = 0;
  SweepOptions options = with_threads(1);
  options.progress = [&](std::size_t n, std::size_t) { finished = n; };
  options.stop = [&] { return finished >= 2; };
  const SweepOutcome first = run(six_points, options);
  CHECK(first.ran == 2);
  CHECK(first.left == 4);

  const SweepOutcome second = run(six_points, 2);
  CHECK(second.resumed == 2);
  CHECK(second.ran == 4);
  // Each once over both.
  const auto& ran = run.simulator.ran;
  CHECK(ran.size() == 6);
  CHECK(std::set(ran.begin(), ran.end()).size() == 6);

  const SweepOutcome third = run(six_points, 2);
  CHECK(third.resumed == 6);
  CHECK(third.ran == 0);
}

TEST_CASE("a sweep that has grown runs only what is new") {
  Run run;
  run(R"({"base": {"a": 0, "b": 1}, "axes": {"/a": [1, 2]}})");
  const SweepOutcome grown = run(six_points);
  CHECK(grown.resumed == 2);
  CHECK(grown.ran == 4);
  CHECK(run.store().read().axes.size() == 2);
}

TEST_CASE("a store of another sweep is refused and left as it was") {
  Run run;
  run(six_points);
  const std::string error =
      config_error([&] { run(R"({"base": {"a": 0, "b": 1}, "axes": {"/a": [1, 7]}})"); });
  CHECK_THAT(error, Catch::Matchers::Contains("holds 5 points that this sweep does not have"));
  CHECK(run.simulator.ran.size() == 6);
  CHECK(run.store().read().points.size() == 6);
}

TEST_CASE("points that cannot be run, or break, are recorded and tried again the next time",
          "[threads]") {
  Run run;
  const std::string sweep = R"({"base": {"a": 1, "b": 0}, "axes": {"/b": [-2, -1, 1]}})";
  run(sweep, 2);
  const StoredSweep stored = run.store().read();
  CHECK(stored.points[0].status == PointStatus::failed);
  CHECK(stored.points[0].error == "broken");
  CHECK(stored.points[1].status == PointStatus::infeasible);
  CHECK(stored.points[1].error == "b: does not fit");
  CHECK(stored.points[2].status == PointStatus::done);
  const std::string text = sweep_text(stored);
  CHECK_THAT(text, Catch::Matchers::Contains("b=-1: infeasible: b: does not fit"));
  CHECK_THAT(text, Catch::Matchers::Contains("1 done, 1 failed, 1 infeasible"));

  run.simulator.ran.clear();
  run(sweep, 2);
  CHECK(run.simulator.ran == std::multiset<std::string>{R"({"a":1,"b":-2})"});
}

TEST_CASE("a sweep of which no point can be run ends with the error and writes no store",
          "[threads]") {
  Run run;
  CHECK(config_error([&] { run(R"({"base": {"b": -1}, "axes": {"/a": [1, 2]}})", 2); }) ==
        "b: does not fit (none of the 2 points can be run; this is the first)");
  CHECK(!std::filesystem::exists(run.file.path()));
}

TEST_CASE("an error of the store ends the sweep", "[threads]") {
  const TemporaryFile file("store.sqlite");
  FakeSimulator simulator;
  PointRunner runner = simulator.runner();
  const auto run = runner.run;
  runner.run = [&](const Json& point) {
    std::ofstream(file.path()) << "not a database any more, whatever it was before this moment";
    return run(point);
  };
  CHECK_THAT(
      config_error([&] { run_sweep(expanded(six_points), file.path(), runner, with_threads(2)); }),
      Catch::Matchers::Contains(file.path().string()));
}

TEST_CASE("a store notes each version that wrote it, and a resumed sweep learns them") {
  Run run;
  const auto run_as = [&](const std::string& sweep, const std::string& version) {
    SweepOptions options = with_threads(1);
    options.version = version;
    return run(sweep, options).written_by;
  };
  const std::string grown =
      R"({"base": {"a": 0, "b": 0}, "axes": {"/a": [1, 2, 3, 4], "/b": [1, 2]}})";
  CHECK(run_as(six_points, "1").empty());
  CHECK(run_as(six_points, "2") == "1");  // which had nothing to write
  CHECK(run_as(grown, "2") == "1");
  CHECK(run.store().written_by() == "1, 2");
}

TEST_CASE("a store read in part has what was asked for, and what it varies") {
  const TemporaryFile file("store.sqlite");
  const PointRunner runner{[](const Json&) {},
                           [](const Json& point) {
                             const Json a = point.at("a");
                             return Json{{"metrics", {{"x", a}, {"y", 1}, {"list", {1, 2}}}},
                                         {"context", {{"config", {{"a", a}, {"d", 5}, {"e", 6}}}}}}
                                 .dump();
                           }};
  run_sweep(expanded(R"({"base": {"a": 0, "b": {"c": 7}}, "axes": {"/a": [1, 2]}})"), file.path(),
            runner, with_threads(1));
  const std::vector<std::string> pointers{"/metrics/x", "/metrics/list/1", "/d", "/no/such", "no"};
  const StoredSweep part = Store::open(file.path()).read(pointers);
  const StoredSweep whole = Store::open(file.path()).read();
  REQUIRE(part.points.size() == 2);
  CHECK(part.axes.size() == whole.axes.size());
  CHECK(part.points[0].report == whole.points[0].report);
  CHECK(part.points[1].config == Json{{"a", 2}});
  CHECK(part.points[1].report == Json{{"metrics", {{"x", 2}, {"list", {1, 2}}}},
                                      {"context", {{"config", {{"a", 2}, {"d", 5}}}}}});
  CHECK(Store::open(file.path()).report_of(part.points[1].config_hash) == whole.points[1].report);
}

TEST_CASE("a sweep without axes that can be meant is refused") {
  for (const char* sweep : {R"({"axes": "x"})", R"({"axes": {"a": [1]}})", R"({"set": [1, 2]})",
                            R"({"blocks": [{"zip": 3}]})"}) {
    CHECK_THAT(config_error([&] { axes_of(Json::parse(sweep)); }),
               Catch::Matchers::Contains("has a sweep whose"));
  }
  CHECK(config_error([] {
          run_sweep(expanded(six_points), "", FakeSimulator().runner(), {});
        }).find("the store has no name") != std::string::npos);
}

TEST_CASE("files that are no stores are refused in a line and left as they were") {
  const TemporaryFile file("store.sqlite");
  const auto error = [&] { return config_error([&] { Store::open(file.path()); }); };
  CHECK_THAT(error(), Catch::Matchers::Contains("there is no such store"));
  std::ofstream(file.path()) << std::string(5000, 'x');
  CHECK_THAT(error(), Catch::Matchers::Contains("is not a store"));
  CHECK(std::filesystem::file_size(file.path()) == 5000);

  std::filesystem::remove(file.path());
  FakeSimulator simulator;
  run_sweep(expanded(six_points), file.path(), simulator.runner(), with_threads(1));
  std::filesystem::resize_file(file.path(), 6000);
  CHECK_THAT(error(), Catch::Matchers::Contains("damaged or cut short"));
  CHECK(std::filesystem::file_size(file.path()) == 6000);

  std::filesystem::remove(file.path());
  std::filesystem::create_directory(file.path());
  CHECK_THAT(error(), Catch::Matchers::Contains("cannot be opened"));
}

TEST_CASE("a frontier holds the points that no other dominates") {
  // By hand: (1, 1) is the fastest for a user, (2, 3) and (4, 5) give more; (3, 3) is no better
  // than (2, 3), (4, 4) no better than (4, 5), (5, 5) no better than (4, 5).
  const std::vector<std::pair<double, double>> points{{4, 4}, {2, 3}, {1, 1}, {3, 3},
                                                      {4, 5}, {5, 5}, {2, 3}};
  CHECK(frontier(points) == std::vector<bool>{false, true, true, false, true, false, true});
  CHECK(frontier({}).empty());
}

namespace {

StoredPoint stored_point(Json point, Json report) {
  SweepPoint named = sweep_point(std::move(point));
  return {named.config_hash, named.config, PointStatus::done, "", std::move(report)};
}

Json metrics(double tpot, double throughput) {
  return {{"metrics",
           {{"median_tpot_ms", tpot},
            {"tokens_per_s_per_gpu", throughput},
            {"total_token_throughput", throughput}}}};
}

// even and metro under two loads; metro is 25 % faster under load 1, 20 % slower under load 2.
StoredSweep four_points() {
  StoredSweep sweep;
  sweep.axes = named_axes({"/load", "/routing"});
  sweep.points = {stored_point({{"load", 1}, {"routing", "even"}}, metrics(10, 100)),
                  stored_point({{"load", 1}, {"routing", {{"type", "metro"}}}}, metrics(8, 125)),
                  stored_point({{"load", 2}, {"routing", "even"}}, metrics(16, 200)),
                  stored_point({{"load", 2}, {"routing", {{"type", "metro"}}}}, metrics(20, 160))};
  return sweep;
}

// A pair of runs under one load and seed.
void add_pair(StoredSweep& sweep, int load, int seed, const Json& even, const Json& metro) {
  Json config{{"load", load}, {"routing", "even"}, {"seed", seed}};
  sweep.points.push_back(stored_point(config, even));
  config["routing"] = "metro";
  sweep.points.push_back(stored_point(config, metro));
}

Comparison even_against_metro(const StoredSweep& sweep) {
  const std::vector<Setting> baseline{parse_setting("/context/config/routing/type=even")};
  const std::vector<Setting> candidate{parse_setting("/routing=metro")};
  return compare(sweep, baseline, candidate);
}

}  // namespace

TEST_CASE("the frontier of a store holds its best points, and its CSV all") {
  const Pareto all = pareto(four_points(), {});
  // (8, 125) dominates (10, 100), (16, 200) dominates (20, 160).
  CHECK(csv_of(pareto_rows(all)) ==
        "config_hash,load,routing,median_tpot_ms,tokens_per_s_per_gpu,on_frontier\n" +
            all.points[0].config_hash + ",1,\"{\"\"type\"\":\"\"metro\"\"}\",8.0,125.0,1\n" +
            all.points[1].config_hash + ",1,even,10.0,100.0,0\n" + all.points[2].config_hash +
            ",2,even,16.0,200.0,1\n" + all.points[3].config_hash +
            ",2,\"{\"\"type\"\":\"\"metro\"\"}\",20.0,160.0,0\n");
  CHECK(pareto_text(all) ==
        "load  routing  median_tpot_ms  tokens_per_s_per_gpu\n"
        "   1  metro             8.000                 125.0\n"
        "   2  even              16.00                 200.0\n\n"
        "2 of 4 points are on a frontier (least median_tpot_ms, most tokens_per_s_per_gpu)\n");
}

TEST_CASE("what differs by a rounding error alone is no gain on a frontier") {
  StoredSweep sweep = four_points();
  // (8, 125) in another order of additions, and (10, 125) with one unit in the last place more.
  sweep.points[0].report = metrics(8 * (1 + 2e-15), 125 * (1 - 1e-15));
  sweep.points[2].report = metrics(10, 125 * (1 + 3e-16));
  std::vector<bool> best;
  for (const ParetoPoint& point : pareto(sweep, {}).points) best.push_back(point.on_frontier);
  CHECK(best == std::vector<bool>{true, true, false, true});
}

TEST_CASE("a frontier's gain over another is that of the best points, and that of straight lines") {
  // By hand, between 2 and 6: the baseline's steps are 10, from 4 on 20, at 6 40; the candidate's
  // 20, from 5 on 30. The lines: the baseline rises by 5 from 2 to 4, by 10 from 4 to 6, the
  // candidate by 5 from 1 to 3 and from 3 to 5, then by 10.
  const Frontier baseline{{2, 10}, {4, 20}, {6, 40}};
  const Frontier candidate{{1, 10}, {3, 20}, {5, 30}, {7, 50}};
  CHECK(!step_value(baseline, 1.9));
  CHECK(step_value(baseline, 2) == 10.0);
  CHECK(step_value(baseline, 5.9) == 20.0);
  CHECK(interpolated_value(baseline, 5) == 30.0);
  CHECK(interpolated_value(baseline, 100) == 40.0);
  const std::vector<double> places{1, 2, 3, 5, 7};
  const GroupGain gain = frontier_gain(baseline, candidate, places);
  CHECK(gain.first == 2);
  CHECK(gain.last == 6);
  REQUIRE(gain.at.size() == 3);  // 1 and 7 are not covered by both
  CHECK(gain.at[0].step == 1.0);
  CHECK(gain.at[0].interpolated == 1.5);
  CHECK(gain.at[1].step == 2.0);
  CHECK_THAT(gain.at[1].interpolated, test::WithinRel(20. / 15, 1e-12));
  CHECK(gain.at[2].step == 1.5);
  CHECK(gain.best_step.x == 3);
  CHECK(gain.best_step.step == 2.0);
  CHECK(gain.best_interpolated.x == 2);
  // Steps: 1 on [2, 3), 2 on [3, 4), 1 on [4, 5), 1.5 on [5, 6), .75 at 6.
  CHECK(gain.median.step == 1.0);
  // No x is covered by both.
  CHECK(frontier_gain({{1, 1}, {2, 2}}, {{3, 1}}, {}).at.empty());
}

TEST_CASE("a gain is given for each group that has both sides") {
  const std::vector<Setting> even{parse_setting("/routing=even")};
  const std::vector<Setting> metro{parse_setting("/routing=metro")};
  // metro's (8, 125), (20, 160) over even's (10, 100), (16, 200): both from 10 to 16.
  const std::vector<double> places{10};
  const ParetoGain all = pareto_gain(four_points(), {}, even, metro, places);
  REQUIRE(all.groups.size() == 1);
  CHECK(all.groups[0].first == 10);
  CHECK(all.groups[0].last == 16);
  CHECK(all.groups[0].at[0].step == 1.25);
  // One point each: they have no TPOT in common, or only just.
  const ParetoGain by_load =
      pareto_gain(four_points(), {.by = {"/load", "/routing"}}, even, metro, {});
  REQUIRE(by_load.group_names == std::vector<std::string>{"load"});
  CHECK(by_load.groups[0].first > by_load.groups[0].last);
}

TEST_CASE("a cost is minimised beside the latency") {
  // (8, 125) and (10, 100): neither is both faster and cheaper; (20, 160) and (16, 200) are slower
  // and dearer than (10, 100).
  const Pareto cost = pareto(four_points(), {.least_y = true});
  std::vector<bool> best;
  for (const ParetoPoint& point : cost.points) best.push_back(point.on_frontier);
  CHECK(best == std::vector<bool>{true, true, false, false});
}

TEST_CASE("a frontier is drawn for each group") {
  const Pareto grouped = pareto(four_points(), {.by = {"/routing"}});
  REQUIRE(grouped.group_names == std::vector<std::string>{"routing"});
  REQUIRE(grouped.setting_names == std::vector<std::string>{"load"});
  // Both of even's and both of metro's trade latency for throughput.
  for (const ParetoPoint& point : grouped.points) CHECK(point.on_frontier);
}

TEST_CASE("a pointer that no report has is refused with the nearest name") {
  CHECK(config_error([] { pareto(four_points(), {.x = "/metrics/median_tpt_ms"}); }) ==
        "/metrics/median_tpt_ms: no report has it; did you mean \"/metrics/median_tpot_ms\"?");
  StoredSweep pending = four_points();
  for (StoredPoint& point : pending.points) point.status = PointStatus::pending;
  CHECK_THAT(config_error([&] { pareto(pending, {}); }),
             Catch::Matchers::Contains("no finished point (4 pending)"));
}

TEST_CASE("a comparison pairs points that are equal in everything else") {
  const Comparison result = even_against_metro(four_points());
  REQUIRE(result.pairs.size() == 2);
  REQUIRE(result.axes.size() == 1);
  CHECK(result.axes[0].name == "load");
  CHECK(result.pairs[0].settings == std::vector<Json>{1});
  // 125 / 100 and 160 / 200: their geometric mean is 1, one win, one loss.
  CHECK_THAT(*result.pairs[0].ratios[0], test::WithinRel(1.25, 1e-12));
  CHECK_THAT(*result.pairs[1].ratios[0], test::WithinRel(0.8, 1e-12));
  const RatioSummary& throughput = result.summary[0];
  CHECK_THAT(*throughput.ratio, test::WithinRel(1.0, 1e-12));
  CHECK(throughput.pairs == 2);
  CHECK(throughput.wins == 1);
  CHECK(throughput.losses == 1);
  // TPOT 8 / 10 wins, 20 / 16 loses; the fake reports have no TTFT.
  CHECK(result.summary[2].wins == 1);
  CHECK(result.summary[3].pairs == 0);
  CHECK(!result.summary[3].ratio);
  const OrderedJson json = comparison_json(result);
  CHECK(json["pairs"][1]["settings"]["/load"] == 2);
  CHECK(json["summary"]["median_ttft_ms"]["ratio"].is_null());
}

TEST_CASE("an interval over seeds tells a difference from noise") {
  // Three seeds of two loads: metro's throughput is 0.9 to 1.1 times even's, its TPOT 0.8 to 0.82.
  const auto compared = [](std::vector<int> seeds) {
    StoredSweep sweep;
    sweep.axes = named_axes({"/load", "/routing", "/seed"});
    for (const int load : {1, 2}) {
      for (const int seed : seeds)
        add_pair(sweep, load, seed, metrics(10, 100), metrics(8 + .1 * seed, 90 + 10 * seed));
    }
    return even_against_metro(sweep);
  };
  const Comparison three = compared({0, 1, 2});
  REQUIRE(three.pairs.size() == 6);
  CHECK(three.pairs[0].point == three.pairs[2].point);
  CHECK(three.pairs[0].point != three.pairs[3].point);
  const RatioSummary& throughput = three.summary[0];
  REQUIRE(throughput.interval);
  CHECK(throughput.interval->first < .9);  // three samples, whatever the number of points
  CHECK(throughput.interval->second > 1.1);
  CHECK_THAT(throughput.p_better, test::WithinAbs(.5, .1));
  const RatioSummary& tpot = three.summary[2];
  CHECK(tpot.p_better > .95);
  CHECK(tpot.interval->first > .78);
  CHECK(tpot.interval->second < .84);
  CHECK(tpot.interval->first < *tpot.ratio);
  CHECK(tpot.wins == 6);
  // A point is one line: throughput .9, 1 and 1.1, whose geometric mean is the third root of .99;
  // TPOT .8, .81 and .82.
  REQUIRE(three.points.size() == 2);
  REQUIRE(three.point_axes.size() == 1);
  CHECK(three.points[1].settings == std::vector<Json>{2});
  CHECK_THAT(*three.points[1].ratios[0].ratio, test::WithinRel(std::cbrt(.99), 1e-12));
  CHECK(three.points[1].ratios[2].interval->second < .84);
  CHECK_THAT(comparison_text(three), Catch::Matchers::Contains("0.810 (1.00)"));
  const OrderedJson point = comparison_json(three)["points"][1];
  CHECK(point["settings"] == OrderedJson{{"/load", 2}});
  CHECK(point["ratios"]["median_tpot_ms"]["p_better"] == tpot.p_better);
  CHECK(comparison_json(compared({1}))["points"].empty());
  // One seed says nothing about others.
  CHECK(!compared({1}).summary[2].interval);
  CHECK_THAT(comparison_text(compared({1})), Catch::Matchers::Contains("several seeds"));
}

TEST_CASE("90 % intervals hold the truth in 85 to 95 % of sweeps whose points share their seeds") {
  Rng rng(5, "coverage of intervals");
  const auto normal = [&] {
    return std::sqrt(-2 * std::log(1 - rng.uniform())) *
           std::cos(2 * std::numbers::pi * rng.uniform());
  };
  constexpr int sweeps = 400, points = 6;
  constexpr double truth = 1.02;
  for (const int seeds : {2, 3, 5}) {
    int held = 0;
    for (int i = 0; i < sweeps; ++i) {
      StoredSweep sweep;
      for (int seed = 0; seed < seeds; ++seed) {
        const double of_all = .03 * normal();  // what a seed does to all points
        for (int load = 0; load < points; ++load) {
          const double ratio = truth * std::exp(of_all + .01 * normal());
          add_pair(sweep, load, seed, metrics(10, 100), metrics(10, 100 * ratio));
        }
      }
      const auto interval = even_against_metro(sweep).summary[0].interval;
      REQUIRE(interval);
      held += interval->first <= truth && truth <= interval->second ? 1 : 0;
    }
    CAPTURE(seeds, held);
    CHECK(held >= .85 * sweeps);
    CHECK(held <= .95 * sweeps);
  }
}

TEST_CASE("recordings are samples of a point, and deals where each has several seeds") {
  // Seeds hardly matter, recordings do: three seeds of each are no twelve samples.
  StoredSweep sweep;
  sweep.axes = named_axes({"/workload/gating/trace", "/routing", "/seed"});
  for (const auto& [trace, gain] : {std::pair{"a", .90}, {"b", 1.0}, {"c", 1.05}, {"d", .97}}) {
    for (const int seed : {1, 2, 3}) {
      add_pair(sweep, 1, seed, metrics(10, 100), metrics(10, 100 * gain + .01 * seed));
      for (std::size_t side = 1; side <= 2; ++side)
        sweep.points[sweep.points.size() - side].config["workload"]["gating"]["trace"] = trace;
    }
  }
  const Comparison compared = even_against_metro(sweep);
  REQUIRE(compared.points.size() == 1);
  CHECK(compared.point_axes.empty());
  const RatioSummary& throughput = compared.summary[0];
  REQUIRE(throughput.interval);
  CHECK(throughput.interval->first < .92);
  CHECK(throughput.interval->second > 1.04);
  CHECK(throughput.p_better < .5);
}

TEST_CASE("an interval is over the seeds that every point has") {
  StoredSweep sweep;
  for (const int load : {1, 2}) {
    for (int seed = 0; seed < 3; ++seed) {
      if (load == 2 && seed == 2) continue;
      add_pair(sweep, load, seed, metrics(10, 100), metrics(10, seed == 2 ? 900 : 120));
    }
  }
  const RatioSummary throughput = even_against_metro(sweep).summary[0];
  CHECK(throughput.pairs == 5);
  CHECK_THAT(throughput.interval->second, test::WithinRel(1.2, 1e-9));
}

TEST_CASE("a frontier is of means over seeds, not of the luckiest one") {
  StoredSweep sweep;
  sweep.axes = named_axes({"/routing", "/seed"});
  const auto add = [&](const char* routing, int seed, double tpot, double throughput) {
    sweep.points.push_back(
        stored_point({{"routing", routing}, {"seed", seed}}, metrics(tpot, throughput)));
  };
  // In the mean metro is slower and gives less; its second seed alone would beat all.
  add("even", 1, 10, 100), add("even", 2, 10, 100);
  add("metro", 1, 14, 60), add("metro", 2, 8, 130);
  const Pareto mean = pareto(sweep, {});
  REQUIRE(mean.points.size() == 2);
  CHECK(mean.setting_names == std::vector<std::string>{"routing"});
  CHECK(mean.points[0].settings == std::vector<Json>{"even"});
  CHECK(mean.points[0].on_frontier);
  CHECK(mean.points[1].x == 11);
  CHECK(mean.points[1].y == 95);
  CHECK(!mean.points[1].on_frontier);
  CHECK_THAT(pareto_text(mean), Catch::Matchers::Contains("the mean over its seeds"));
  // Who asks for each seed gets each.
  ParetoAxes each;
  each.by = {"/seed"};
  CHECK(pareto(sweep, each).points.size() == 4);
}

TEST_CASE("a point without a partner is counted, not compared") {
  StoredSweep sweep = four_points();
  sweep.points.pop_back();
  CHECK(even_against_metro(sweep).pairs.size() == 1);
  CHECK(even_against_metro(sweep).unpaired == 1);
  sweep.points.back().status = PointStatus::infeasible;
  CHECK(even_against_metro(sweep).not_done == 1);
}

TEST_CASE("a policy's other options must be equal, unless whole policies are compared") {
  StoredSweep sweep;
  sweep.axes = named_axes({"/p"});
  sweep.points = {stored_point({{"p", {{"type", "linear"}, {"n", 1}}}}, metrics(1, 1)),
                  stored_point({{"p", {{"type", "linear"}, {"n", 2}}}}, metrics(1, 2)),
                  stored_point({{"p", {{"type", "eplb"}, {"n", 2}}}}, metrics(1, 3))};
  const std::vector<Setting> eplb{parse_setting("/p=eplb")};
  const Comparison by_type = compare(sweep, std::vector{parse_setting("/p=linear")}, eplb);
  REQUIRE(by_type.pairs.size() == 1);
  CHECK(by_type.pairs[0].ratios[0] == 1.5);
  const Comparison whole =
      compare(sweep, std::vector{parse_setting(R"(/p={"type": "linear", "n": 1})")},
              std::vector{parse_setting(R"(/p={"type": "eplb", "n": 2})")});
  REQUIRE(whole.pairs.size() == 1);
  CHECK(whole.pairs[0].ratios[0] == 3.0);
}

TEST_CASE("what must differ together is named on both sides") {
  StoredSweep sweep;
  sweep.axes = named_axes({"/dispatch", "/routing"});
  sweep.points = {stored_point({{"dispatch", "a2a"}, {"routing", "even"}}, metrics(1, 1)),
                  stored_point({{"dispatch", "ag"}, {"routing", "metro"}}, metrics(1, 2))};
  CHECK_THAT(config_error([&] { even_against_metro(sweep); }),
             Catch::Matchers::Contains("those most alike differ in /dispatch"));
  const Comparison result =
      compare(sweep, std::vector{parse_setting("/routing=even"), parse_setting("/dispatch=a2a")},
              std::vector{parse_setting("/routing=metro"), parse_setting("/dispatch=ag")});
  REQUIRE(result.pairs.size() == 1);
  CHECK(result.pairs[0].ratios[0] == 2.0);
}

TEST_CASE("what the sweep couples to a routing may differ with it, and is told") {
  StoredSweep sweep;
  sweep.document = Json::parse(R"({"couple": {"/routing": {"even": {"/dispatch": "a2a"}}}})");
  sweep.axes = named_axes({"/dispatch", "/routing"});
  sweep.points = {stored_point({{"dispatch", "a2a"}, {"routing", "even"}}, metrics(1, 1)),
                  stored_point({{"dispatch", "ag"}, {"routing", "metro"}}, metrics(1, 2))};
  const Comparison result = even_against_metro(sweep);
  REQUIRE(result.pairs.size() == 1);
  CHECK(result.pairs[0].ratios[0] == 2.0);
  REQUIRE(result.coupled.size() == 1);
  CHECK(result.coupled[0].pointer == "/dispatch");
  CHECK_THAT(comparison_text(result),
             Catch::Matchers::Contains("pairs differ in dispatch too: ag against a2a"));
}

TEST_CASE("a setting that no point has is refused with those there are") {
  const auto error = [](const char* candidate) {
    return config_error([&] {
      compare(four_points(), std::vector{parse_setting("/routing=even")},
              std::vector{parse_setting(candidate)});
    });
  };
  CHECK(error("/routing=metr") ==
        "no finished point has /routing=metr; of /routing there is even, metro");
  CHECK(error("/ruting=metro") ==
        "/ruting: no finished point has it; the sweep varies /load, /routing");
  CHECK_THAT(config_error([] { parse_setting("routing=even"); }),
             Catch::Matchers::Contains("expected /pointer=value"));
}

TEST_CASE("a limit is a metric, a sign and a number, and holds for the mean ratio") {
  const Comparison result = even_against_metro(four_points());
  CHECK(!violation(result, parse_limit("total_token_throughput < 0.98")));
  const auto why = violation(result, parse_limit("total_token_throughput<1.5"));
  REQUIRE(why);
  CHECK(
      *why ==
      "total_token_throughput: candidate / baseline is 1.0000, < 1.5 (geometric mean of 2 pairs)");
  CHECK(violation(result, parse_limit(" median_tpot_ms > 0.9 ")));
  CHECK_THAT(config_error([&] { violation(result, parse_limit("p99_ttft_ms > 1")); }),
             Catch::Matchers::Contains("cannot be judged"));
  CHECK_THAT(config_error([] { parse_limit("output_thoughput < 1"); }),
             Catch::Matchers::Contains("did you mean \"output_throughput\"?"));
  for (const char* wrong : {"", "output_throughput", "output_throughput < ", "< 1",
                            "output_throughput < 1x", "output_throughput <= 1"}) {
    CHECK(!config_error([&] { parse_limit(wrong); }).empty());
  }
}

}  // namespace moesim::test_sweep
