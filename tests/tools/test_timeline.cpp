// SPDX-License-Identifier: Apache-2.0
// Do --timeline and --steps tell what happened: lanes that fill their steps, spans that nest?
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/run/run_csv.hpp"
#include "tools/run/timeline.hpp"

namespace moesim::test_timeline {
namespace {

using test::TemporaryFile;
using test::WithinAbs;
using test::WithinRel;

// Two attention ranks of two GPUs, experts over 4 ranks (tp in experts 1) or 2 (tp 2), in each
// stage.
Experiment experiment(int ep, const char* scheduling = "chunked_prefill", int pp = 1,
                      int dense = 0) {
  const auto clusters = test::source_dir() / "hardware/clusters";
  Json cluster = ConfigNode::from_file(clusters / "h100x8.json").json();
  cluster["gpu"] = test::bare_gpu(clusters / cluster["gpu"].get<std::string>());
  Json model = {
      {"name", "tiny"},
      {"source", "made for a test"},
      {"hidden", 512},
      {"vocabulary", 1024},
      {"tied_embeddings", false},
      {"attention", {{"query_heads", 8}, {"kv_heads", 4}, {"head_dim", 64}}},
      {"experts", {{"count", 16}, {"per_token", 2}, {"width", 256}}},
      {"layers", Json::array({{{"repeat", 3}, {"pattern", Json::array({{{"ffn", "moe"}}})}}})}};
  if (dense > 0) {
    model["dense_width"] = 512;
    Json layers =
        Json::array({{{"repeat", dense}, {"pattern", Json::array({{{"ffn", "dense"}}})}}});
    layers.push_back(model["layers"][0]);
    model["layers"] = layers;
  }
  const Json json = {
      {"cluster", cluster},
      {"model", model},
      {"precision", {{"experts", "bf16"}, {"attention", "bf16"}}},
      {"parallel", {{"dp", 2}, {"tp", 2}, {"ep", ep}, {"pp", pp}}},
      {"scheduling", {{"type", scheduling}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 4}}},
      {"workload",
       {{"arrivals", {{"type", "poisson"}, {"rate", "2000 /s"}}},
        {"lengths", {{"type", "fixed"}, {"prompt", 40}, {"output", 6}}},
        {"gating", {{"type", "uniform"}, {"requests", 8}, {"prompt_rows", 8}, {"decode_rows", 8}}},
        {"requests", 24}}},
      {"placement", {{"type", "eplb"}, {"replication", 1.5}}},
      {"token_routing", {{"prefill", "even"}, {"decode", "metro"}, {"mixed", "prefill"}}},
      {"dispatch", {{"prefill", "all_to_all"}, {"decode", "ids_all_gather"}}},
      {"measurement", {{"hot_rank_threshold", 1.2}}},
      {"seed", 5}};
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, test::source_dir() / "tests" / "timeline.json"), traces);
}

std::string content(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// Microseconds as text in picoseconds: the format's decimals are exact.
std::int64_t picoseconds(const Json& us) { return std::llround(us.get<double>() * 1e6); }

struct Trace {
  Report report;
  std::vector<Json> events;
};

Trace traced(const Experiment& e, std::int64_t unfolded = 0) {
  const TemporaryFile timeline_json("timeline.json");
  const std::filesystem::path& file = timeline_json.path();
  Timeline timeline(file, e, unfolded);
  RunObserver* const observers[] = {&timeline};
  Trace trace{run(e, {}, observers), {}};
  REQUIRE_FALSE(std::filesystem::exists(file));
  timeline.finish();
  trace.events = Json::parse(content(file)).at("traceEvents").get<std::vector<Json>>();
  return trace;
}

TEST_CASE("every GPU's lane fills every step exactly, without overlap") {
  const int ep = GENERATE(2, 4);
  const Experiment e = experiment(ep, GENERATE("chunked_prefill", "prefill_first"));
  const Trace trace = traced(e);
  std::map<std::int64_t, std::int64_t> end_of_step;  // by start
  for (const Json& event : trace.events) {
    if (event["ph"] == "X" && event["pid"] == 1)
      end_of_step[picoseconds(event["ts"])] = picoseconds(event["ts"]) + picoseconds(event["dur"]);
  }
  REQUIRE(std::ssize(end_of_step) == trace.report.work.steps);
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> lanes;
  std::set<std::string> names;
  for (const Json& event : trace.events) {
    if (event["ph"] != "X" || event["pid"] != 2) continue;
    names.insert(event["name"]);
    if (event["name"] == "experts") {
      // Every activated expert has a token.
      REQUIRE(event["args"]["activated_experts"] > 0);
      REQUIRE(event["args"]["activated_experts"] <= event["args"]["tokens"]);
    }
    const std::int64_t begin = picoseconds(event["ts"]);
    lanes[event["tid"]].emplace_back(begin, begin + picoseconds(event["dur"]));
  }
  REQUIRE(names == std::set<std::string>{"all_reduce", "attention", "combine", "dispatch",
                                         "experts", "idle", "token_routing"});
  REQUIRE(lanes.size() == 4);
  for (const auto& [gpu, slices] : lanes) {
    CAPTURE(gpu);
    std::map<std::int64_t, std::int64_t> filled;  // like end_of_step, from adjacent slices
    std::int64_t step = slices.front().first;
    for (const auto& [begin, end] : slices) {
      if (end_of_step.contains(begin)) step = begin;
      if (begin != step) REQUIRE(begin == filled[step]);
      filled[step] = end;
    }
    REQUIRE(filled == end_of_step);
  }
}

// The lanes' blocks, [step][GPU].
std::map<std::int64_t, std::map<int, std::vector<Json>>> blocks_of(const Trace& trace) {
  std::map<std::int64_t, std::map<int, std::vector<Json>>> blocks;
  std::int64_t steps = 0;
  for (const Json& event : trace.events) {
    if (event["ph"] != "X") continue;
    if (event["pid"] == 1) ++steps;
    if (event["pid"] == 2) blocks[steps][event["tid"].get<int>() - 10].push_back(event);
  }
  return blocks;
}

TEST_CASE("the layers of one step are told apart, and fill it as the folded ones do") {
  const auto folded = blocks_of(traced(experiment(4))), told = blocks_of(traced(experiment(4), 7));
  REQUIRE(folded.size() == told.size());
  const auto seconds = [](const std::vector<Json>& blocks, const char* name) {
    double sum = 0;
    for (const Json& block : blocks)
      if (block["name"] == name) sum += block["dur"].get<double>() * 1e-6;
    return sum;
  };
  for (const auto& [step, lanes] : folded) {
    CAPTURE(step);
    if (step != 7) CHECK(told.at(step) == lanes);
    for (const auto& [gpu, blocks] : lanes) {
      for (const char* name : {"attention", "dispatch", "experts", "idle", "combine"})
        CHECK_THAT(seconds(told.at(step).at(gpu), name), WithinAbs(seconds(blocks, name), 1e-10));
    }
  }
  std::set<int> layers;
  double activated = 0;
  for (const Json& block : told.at(7).at(0)) {
    layers.insert(block["args"]["layer"].get<int>());
    if (block["name"] == "experts") activated += block["args"]["activated_experts"].get<double>();
  }
  CHECK(layers == std::set<int>{0, 1, 2});
  for (const Json& block : folded.at(7).at(0))
    if (block["name"] == "experts")
      CHECK_THAT(block["args"]["activated_experts"].get<double>(), WithinAbs(activated / 3, .011));
}

TEST_CASE("a pipeline's lanes hold what their stages do, and the wait for others") {
  const Experiment e = experiment(4, "chunked_prefill", 2);
  const auto steps = blocks_of(traced(e, 5));
  REQUIRE(steps.size() > 5);
  for (const auto& [step, lanes] : steps) REQUIRE(lanes.size() == 8);
  for (int gpu = 0; gpu < 8; ++gpu) {
    std::set<int> layers;
    std::set<std::string> names;
    for (const Json& block : steps.at(5).at(gpu)) {
      layers.insert(block["args"]["layer"].get<int>());
      names.insert(block["name"]);
    }
    CHECK(layers == (gpu < 4 ? std::set<int>{0, 1} : std::set<int>{2}));
    CHECK(names.contains("pipeline"));
  }
}

TEST_CASE("GPUs of a stage without experts have lanes, too") {
  for (const auto& [step, lanes] : blocks_of(traced(experiment(4, "chunked_prefill", 2, 4), 5))) {
    REQUIRE(lanes.size() == 8);
    std::set<int> route;
    for (const auto& [gpu, blocks] : lanes) {
      for (const Json& block : blocks)
        if (block["name"] == "experts") route.insert(gpu);
    }
    // A rank without tokens has none either.
    REQUIRE(!route.empty());
    CHECK(*route.begin() >= 4);
  }
}

TEST_CASE("the lanes' idle time is the report's, and experts end at a barrier") {
  Experiment e = experiment(4);
  e.decode().warmup = 0;
  const Trace trace = traced(e);
  std::map<int, double> idle;
  std::map<std::int64_t, std::set<std::int64_t>> combine_begins;
  std::int64_t step = 0;
  for (const Json& event : trace.events) {
    if (event["ph"] == "X" && event["pid"] == 1) step = picoseconds(event["ts"]);
    if (event["ph"] != "X" || event["pid"] != 2) continue;
    if (event["name"] == "idle")
      idle[event["tid"].get<int>() - 10] += event["dur"].get<double>() * 1e-6;
    if (event["name"] == "combine") combine_begins[step].insert(picoseconds(event["ts"]));
  }
  // The report's window may end with the last arrival: compare shares, between GPUs.
  const auto reported = trace.report.document()["breakdown"]["barrier_idle_seconds_per_gpu"];
  for (int gpu = 0; gpu < 4; ++gpu)
    REQUIRE(idle[gpu] >= reported[static_cast<std::size_t>(gpu)].get<double>() * (1 - 1e-6));
  // To the picosecond that sums of doubles may be off.
  for (const auto& [at, begins] : combine_begins) REQUIRE(*begins.rbegin() - *begins.begin() <= 2);
}

TEST_CASE("turns lie one after the other on the lane of their session, in parts without a gap") {
  Experiment e = test::load_tiny({{"kv_cache", {{"prefix_caching", true}}},
                                  {"workload",
                                   {{"arrivals", {{"concurrency", 3}}},
                                    {"lengths", nullptr},
                                    {"requests", 12},
                                    {"sessions",
                                     {{"type", "generated"},
                                      {"turns", 4},
                                      {"first", 40},
                                      {"new", 10},
                                      {"output", 5},
                                      {"gap", "1 ms"}}}}}});
  const Trace trace = traced(e);
  struct LaneSeen {
    std::set<int> turns{};
    std::int64_t end = 0;
    int turn = -1;
  };
  std::map<int, LaneSeen> lanes;
  for (const Json& event : trace.events) {
    if (event["pid"] != 4 || event["ph"] != "X") continue;
    LaneSeen& lane = lanes[event["tid"]];
    const int turn = event["args"]["turn"];
    const std::int64_t begin = picoseconds(event["ts"]);
    // Of one turn each part begins where the one before ends; the next turn pauses first.
    if (turn == lane.turn) {
      REQUIRE(begin == lane.end);
    } else {
      REQUIRE(begin >= lane.end + (lane.turn < 0 ? 0 : 1'000'000'000));
    }
    lane.turn = turn;
    lane.turns.insert(turn);
    lane.end = begin + picoseconds(event["dur"]);
  }
  REQUIRE(lanes.size() == 3);
  for (const auto& [tid, lane] : lanes) REQUIRE(lane.turns == std::set<int>{0, 1, 2, 3});
}

TEST_CASE("every request is one span that holds its two phases") {
  const Trace trace = traced(experiment(4));
  std::map<std::uint32_t, std::vector<std::string>> open;
  std::map<std::uint32_t, double> last;
  std::size_t spans = 0;
  for (const Json& event : trace.events) {
    if (event["ph"] != "b" && event["ph"] != "e") continue;
    const std::uint32_t id = event["id"];
    REQUIRE(event["ts"].get<double>() >= last[id]);
    last[id] = event["ts"];
    if (event["ph"] == "b") {
      REQUIRE(open[id].empty() == (event["name"] == "request"));
      open[id].push_back(event["name"]);
    } else {
      REQUIRE(open[id].back() == event["name"]);
      open[id].pop_back();
      if (open[id].empty()) ++spans;
    }
  }
  REQUIRE(spans == 24);
  for (const auto& [id, names] : open) REQUIRE(names.empty());
}

TEST_CASE("hot ranks are marked where the steps' busiest rank is above the threshold") {
  Experiment e = experiment(4);
  const auto marks = [&] {
    std::size_t count = 0;
    for (const Json& event : traced(e).events) {
      if (event["ph"] != "i") continue;
      REQUIRE(event["name"] == "hot rank");
      REQUIRE(event["args"]["max_over_mean"].get<double>() > e.decode().hot_rank_threshold);
      ++count;
    }
    return count;
  };
  REQUIRE(marks() > 0);
  e.decode().hot_rank_threshold =
      4;  // all tokens on one of 4 ranks is 4 times the mean, not above it
  REQUIRE(marks() == 0);
}

TEST_CASE("the table of steps has a line per step, whose parts add up") {
  const Experiment e = experiment(4);
  const TemporaryFile file("steps.csv");
  StepsCsv steps(file.path());
  RunObserver* const observers[] = {&steps};
  const Report report = run(e, {}, observers);
  steps.finish();
  std::istringstream lines(content(file.path()));
  std::string line, cell;
  std::getline(lines, line);
  REQUIRE(
      line ==
      "step,start_s,step_ms,holds,rule,prefill_tokens,decode_tokens,dummy_ranks,"
      "kv_blocks_used,preemptions,attention_ms,all_reduce_ms,gate_ms,token_routing_ms,"
      "permute_ms,dispatch_ms,experts_ms,shared_experts_ms,combine_ms,dense_ffn_ms,"
      "rebalancing_ms,pipeline_ms,other_ms,mean_idle_ms,max_activated,mean_activated,max_tokens,"
      "mean_tokens,instance");
  std::int64_t count = 0;
  while (std::getline(lines, line)) {
    std::vector<std::string> cells;
    for (std::istringstream row(line); std::getline(row, cell, ',');) cells.push_back(cell);
    REQUIRE(cells.size() == 29);
    REQUIRE(std::stoll(cells[0]) == count++);
    double parts = 0;
    for (std::size_t c = 10; c < 23; ++c) parts += std::stod(cells[c]);
    REQUIRE_THAT(parts, WithinAbs(std::stod(cells[2]), 1e-5));  // 13 numbers of six decimals
    REQUIRE(std::stod(cells[24]) >= std::stod(cells[25]));
    REQUIRE(std::stod(cells[26]) >= std::stod(cells[27]));
  }
  REQUIRE(count == report.work.steps);
}

TEST_CASE("watching a run changes nothing, and what is not finished leaves no file") {
  const Experiment e = experiment(4);
  const TemporaryFile file("unfinished.json");
  {
    Timeline timeline(file.path(), e);
    RunObserver* const observers[] = {&timeline};
    REQUIRE(run(e, {}, observers).document() == run(e).document());
  }
  REQUIRE_FALSE(std::filesystem::exists(file.path()));
  REQUIRE(test::config_error([&] { Timeline("/dev/null/t.json", e); }).find("cannot be written") !=
          std::string::npos);
}

TEST_CASE("loads by rank and parts by step kind add up to what the report says of all") {
  const OrderedJson report = run(experiment(4)).document();
  for (const auto& [kind, experts] : report["experts"]["by_step_kind"].items()) {
    const OrderedJson& steps = report["steps"][kind];
    double parts = 0;
    for (const auto& part : steps["parts_mean_ms"]) parts += part.get<double>();
    REQUIRE_THAT(parts, WithinRel(steps["mean_ms"].get<double>(), 1e-9));
    double tokens = 0, activated = 0;
    for (const auto& layer : experts["layers"]) {
      for (const auto& rank : layer["rank_tokens"]["total_by_rank"]) tokens += rank.get<double>();
      for (const auto& rank : layer["rank_activated"]["total_by_rank"])
        activated += rank.get<double>();
    }
    const double rank_layer_steps = 4 * 3 * steps["steps"].get<double>();
    REQUIRE_THAT(tokens / rank_layer_steps, WithinRel(experts["tokens_mean"].get<double>(), 1e-9));
    REQUIRE_THAT(activated / rank_layer_steps,
                 WithinRel(experts["activated_mean"].get<double>(), 1e-9));
  }
}

}  // namespace
}  // namespace moesim::test_timeline
