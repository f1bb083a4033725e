// SPDX-License-Identifier: Apache-2.0
// Does tune find what running every point finds, or say that it might not?
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include "hardware/rng.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/sweep/slo_bound.hpp"
#include "tools/sweep/slo_search.hpp"
#include "tools/sweep/store.hpp"

namespace moesim::test_tune {

namespace {

// Places with a capacity each: above it ever fewer requests meet the SLO.
struct World {
  std::vector<double> capacity;
  std::vector<double>
      heavy_from;  // loads from here on meet it again, as when a backlog fills steps
  std::vector<std::optional<TuneBound>> bounds;
  std::vector<double> rates;

  Trial trial(std::size_t place, double rate) const {
    const double over = rate / capacity[place];
    double met = over <= 1 ? 1 - .05 * over : .95 * std::exp(-4 * (over - 1));
    if (rate >= heavy_from[place]) met = .92;
    const double served = std::min(rate, 1.2 * capacity[place]);
    return {served * met, met, over, met >= .9};
  }
};

World random_world(std::uint64_t seed, bool monotone) {
  Rng rng(seed, "tune");
  World world;
  const std::size_t places = 1 + rng.below(24);
  for (std::size_t i = 0; i < places; ++i) {
    const double capacity = 10 * std::exp(3 * rng.uniform());
    world.capacity.push_back(capacity);
    const bool heavy = !monotone && rng.uniform() < .3;
    world.heavy_from.push_back(heavy ? capacity * (1.3 + 3 * rng.uniform()) : 1e18);
    // Served are at most 1.2 times the capacity.
    world.bounds.push_back(TuneBound{capacity * (1.2 + rng.uniform()), 0});
    if (rng.uniform() < .1) world.bounds.back().reset();
  }
  if (std::ranges::none_of(world.bounds, [](const auto& bound) { return bound.has_value(); }))
    world.bounds.front() = TuneBound{2.4 * world.capacity.front(), 0};
  double rate = 5 + 10 * rng.uniform();
  for (std::size_t i = 2 + rng.below(10); i > 0; --i)
    world.rates.push_back(rate *= 1.2 + rng.uniform());
  return world;
}

// The best of all points of the ladder; 0 where none meets the SLO.
double exhaustive(const World& world) {
  double best = 0;
  for (std::size_t place = 0; place < world.capacity.size(); ++place) {
    for (const double rate : world.rates) {
      const Trial trial = world.trial(place, rate);
      if (world.bounds[place] && trial.meets) best = std::max(best, trial.goodput);
    }
  }
  return best;
}

struct Answer : TuneResult {
  std::size_t batches = 0;  // of points that were run side by side
  double goodput() const { return found.empty() ? 0 : found.front().trial.goodput; }
};

Answer answer(const World& world, bool sure, std::size_t most_batches = 1'000'000,
              std::size_t runners_up = 4, double start = 0) {
  const RateLadder ladder(world.rates);
  std::size_t runs = 0, batches = 0;
  std::vector<TunePoint> seen;
  TuneProblem problem{.bounds = world.bounds,
                      .ladder = ladder,
                      .run = {},
                      .sure = sure,
                      .start = start,
                      .runners_up = runners_up};
  problem.run = [&](std::span<const TunePoint> points, bool) -> std::optional<std::vector<Trial>> {
    if (batches == most_batches) return std::nullopt;
    ++batches;
    std::vector<Trial> trials;
    for (const TunePoint point : points) {
      CHECK(world.bounds.at(point.place).has_value());
      CHECK(std::ranges::find(seen, point) == seen.end());  // once each
      seen.push_back(point);
      trials.push_back(world.trial(point.place, ladder.rate(point.rung)));
      ++runs;
    }
    return trials;
  };
  Answer result{tune(problem)};
  result.batches = batches;
  CHECK(result.runs == runs);
  return result;
}

World two_places() {
  return {.capacity = {100, 80},
          .heavy_from = {1e18, 1e18},
          .bounds = {TuneBound{150, .1}, TuneBound{140, .1}},
          .rates = {20, 40, 60, 90, 110, 130}};
}

}  // namespace

TEST_CASE("where heavier loads meet an SLO less, tune finds the best point of the grid") {
  std::size_t runs = 0, points = 0, alone = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const World world = random_world(seed, true);
    const Answer found = answer(world, false);
    CHECK(found.goodput() >= exhaustive(world));
    runs += found.runs;
    points += world.capacity.size() * world.rates.size();
    // A search that wants no runners-up finds as good a best with fewer runs.
    const Answer best = answer(world, false, 1'000'000, 0);
    CHECK(best.goodput() == found.goodput());
    alone += best.runs;
    // So does one that begins with too heavy a load.
    CHECK(answer(world, false, 1'000'000, 0, world.rates.back()).goodput() >= exhaustive(world));
  }
  CHECK(runs < points / 2);
  CHECK(double(alone) < .9 * double(runs));
}

TEST_CASE("where they may meet it again, tune finds it or says what it took for granted") {
  std::size_t beaten = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const World world = random_world(seed, false);
    const double best = exhaustive(world);
    const Answer found = answer(world, false);
    if (found.goodput() < best) {
      CHECK(found.taken_to_miss > 0);
      ++beaten;
    }
    const Answer sure = answer(world, true);
    CHECK(sure.goodput() >= best);
    CHECK(sure.taken_to_miss == 0);
  }
  CHECK(beaten < 30);
}

TEST_CASE("the heaviest load is found beyond the grid, above and below") {
  World world = two_places();
  world.rates = {20, 40};
  const Answer above = answer(world, false);
  CHECK(above.found.front().point == TunePoint{0, 2});  // 80 /s; 160 are too many
  world.rates = {500, 1000};
  const Answer below = answer(world, false);
  CHECK(below.found.front().point == TunePoint{0, -3});  // 62.5 /s
  CHECK(below.nearest == std::nullopt);
}

TEST_CASE("runners-up are ranked by the heaviest load that each bears") {
  const Answer found = answer(two_places(), false);
  REQUIRE(found.found.size() == 2);
  CHECK(found.found[0].point == TunePoint{0, 3});  // 90 of a capacity of 100
  CHECK(found.found[1].point == TunePoint{1, 2});  // 60 of 80
}

TEST_CASE("where nothing meets the SLO the run that missed by least is told") {
  World world = two_places();
  world.capacity = {1e-9, 2e-9};
  world.bounds = {TuneBound{0, 3}, TuneBound{0, 2}};
  const Answer hopeless = answer(world, false);
  CHECK(hopeless.found.empty());
  CHECK(hopeless.runs == 2);
  REQUIRE(hopeless.nearest);
  CHECK(hopeless.nearest->point == TunePoint{1, 0});
  CHECK(hopeless.taken_to_miss == 0);
}

TEST_CASE("a stopped search says what it has, and the same search later says the same as one") {
  const World world = random_world(3, true);
  const Answer whole = answer(world, false);
  for (std::size_t most = 0; most < whole.batches; ++most) {
    const Answer cut = answer(world, false, most);
    CHECK(cut.stopped);
    CHECK(cut.goodput() <= whole.goodput());
  }
  CHECK_FALSE(whole.stopped);
}

TEST_CASE("a place that meets the SLO at the top of its bound is tried under more load") {
  World world = two_places();
  // Bounds that are none: the second place bears more than they say.
  world.capacity = {100, 800};
  world.bounds = {TuneBound{120, .1}, TuneBound{110, .1}};
  world.rates = {20, 40, 60, 80, 100, 120};
  const Answer found = answer(world, false);
  REQUIRE_FALSE(found.found.empty());
  CHECK(found.found.front().point.place == 1);
  CHECK(found.goodput() > 600);
}

namespace {

// A tiny deployment under some load, whose SLO is a time to the first token.
Json deployment_under_slo(const char* ttft, int requests) {
  return test::tiny_experiment(
      {{"slo", {{"ttft", ttft}}},
       {"workload",
        {{"arrivals", {{"type", "poisson"}, {"rate", "1 /s"}, {"concurrency", nullptr}}},
         {"requests", requests}}}});
}

const std::filesystem::path tiny_file = test::source_dir() / "tests" / "tiny.json";

Experiment tiny(const Json& config) {
  TraceLibrary traces;
  return load_experiment(ConfigNode(config, tiny_file), traces);
}

SloSearch search_of(std::vector<Json> places, Proof proof) {
  return {.document = {{"base", places.front()}, {"axes", Json::object()}},
          .base_file = tiny_file,
          .places = std::move(places),
          .ladder = RateLadder({500, 1000}, 1.1),
          .proof = proof};
}

SloResult confirm(const SloSearch& search, std::span<const double> loads) {
  TraceLibrary traces;
  Remarks remarks;
  return confirm_slo(search, loads, traces, remarks, {});
}

std::vector<SloRun> confirmed(const SloSearch& search, double load) {
  return confirm(search, std::array{load}).found;
}

}  // namespace

TEST_CASE(
    "a bound by mixed steps is exact from what it is worth on, and below only known as such") {
  Json config = deployment_under_slo("100 s", 300);
  config["slo"]["tpot"] = "1 ms";
  const Experiment e = tiny(config);
  const double exact = bound_of(e, .9, {.bound = true}).goodput;
  REQUIRE(exact > 0);
  REQUIRE(exact < bound_of(e, .9, {}).goodput);
  for (const double worth : {.1, .5, .9}) {
    CAPTURE(worth);
    CHECK(bound_of(e, .9, {.bound = true, .worth = worth * exact}).goodput == exact);
  }
  for (const double worth : {1.2, 2.0}) {
    CAPTURE(worth);
    CHECK(bound_of(e, .9, {.bound = true, .worth = worth * exact}).goodput <= worth * exact);
  }
}

TEST_CASE("a search by load takes the heaviest load that meets the SLO") {
  SloSearch search = search_of({deployment_under_slo("2 ms", 300)}, Proof::attained);
  search.by_load = true;
  TraceLibrary traces;
  Remarks remarks;
  const SloResult result = search_slo(search, traces, remarks, {});
  REQUIRE_FALSE(result.found.empty());
  const SloRun& best = result.found.front();
  CHECK(best.trial.goodput == best.per_second());
  CHECK(best.trial.attainment >= .9);
}

TEST_CASE("long runs go up from their loads to the heaviest that meets the SLO, and down to it") {
  const SloSearch search = search_of({deployment_under_slo("2 ms", 300)}, Proof::attained);
  const auto from_below = confirmed(search, 500);
  REQUIRE(from_below.size() == 1);
  CHECK(from_below.front().trial.meets);
  CHECK(from_below.front().trial.goodput > 600);
  const auto again = confirmed(search, from_below.front().per_second());
  CHECK(again.front().rate == from_below.front().rate);
  const auto from_above = confirmed(search, 4 * from_below.front().per_second());
  CHECK(from_above.front().rate == from_below.front().rate);
}

TEST_CASE("an overloaded run meets no SLO, however patient the limits are") {
  // So many requests that the backlog shows, and a limit that none of them reaches.
  const SloSearch patient = search_of({deployment_under_slo("100 s", 2000)}, Proof::lasting);
  const auto found = confirmed(patient, 1000);
  REQUIRE(found.size() == 1);
  CHECK(state_of(found.front()) == "stable");
  REQUIRE(found.front().heavier);
  // The answer is a rung below the heaviest load that lasts.
  CHECK(found.front().heavier->binds == "capacity");
  const auto state_at = [&](int rungs_more) {
    Json config = found.front().config;
    config["workload"]["arrivals"]["rate"] =
        fmt::format("{} /s", found.front().per_second() * std::pow(2, rungs_more));
    return moesim::run(tiny(config)).measurement.state;
  };
  CHECK(state_at(1) == "stable");
  CHECK(state_at(2) != "stable");
  // Whatever more is tried misses for want of capacity, not by a latency.
  Json heavier = found.front().config;
  heavier["workload"]["arrivals"]["rate"] = "1000000 /s";
  const Report report = moesim::run(tiny(heavier));
  CHECK(report.metrics.slo_attainment == 1);
  CHECK(report.measurement.state != "stable");
}

TEST_CASE("more load that meets the SLO is asked of a longer run, which says what it lacks") {
  for (const char* ttft : {"2 ms", "20 ms", "100 s"}) {
    CAPTURE(ttft);
    SloSearch search = search_of({deployment_under_slo(ttft, 2000)}, Proof::lasting);
    const auto plain = confirmed(search, 1000);
    std::atomic<bool> asked = false;
    search.lengthen = [&](Json& place, double) {
      asked = true;
      place["workload"]["requests"] = 6000;
    };
    const auto longer = confirmed(search, 1000);
    REQUIRE(longer.size() == plain.size());
    if (plain.empty()) continue;
    CHECK(longer.front().rate == plain.front().rate);
    const Heavier &before = *plain.front().heavier, &after = *longer.front().heavier;
    CHECK(asked == (before.attainment >= .9));
    CHECK(after.attainment <= before.attainment);
    CHECK((after.attainment < .95 || after.binds == "capacity"));
  }
}

TEST_CASE("a load is borne only if every draw bears it") {
  const Json first = deployment_under_slo("2 ms", 300);
  std::vector<Json> draws;
  double least = 1e18;
  for (int seed = 1; seed <= 2; ++seed) {
    Json& draw = draws.emplace_back(first);
    draw["seed"] = seed;
    least =
        std::min(least, confirmed(search_of({draw}, Proof::attained), 200).front().per_second());
  }
  SloSearch all = search_of(draws, Proof::attained);
  all.draws = draws.size();
  const auto found = confirmed(all, 200);
  REQUIRE(found.size() == 1);
  CHECK(found.front().per_second() <= least);
  CHECK(found.front().config.at("seed") == 1);
}

TEST_CASE("cores that run ahead change no answer, nor which runs are kept", "[threads]") {
  std::vector<Json> places;
  for (const char* ttft : {"2 ms", "3 ms", "100 s"}) {
    for (int seed = 1; seed <= 2; ++seed)
      places.emplace_back(deployment_under_slo(ttft, 300))["seed"] = seed;
  }
  SloSearch search = search_of(places, Proof::attained);
  search.draws = 2;
  search.give_up = true;
  const std::array loads{500.0, 5000.0, 1000.0};
  const auto told = [&](std::size_t threads) {
    const test::TemporaryFolder folder;
    search.store = folder.path() / "store.sqlite";
    const tbb::global_control control(tbb::global_control::max_allowed_parallelism, threads);
    tbb::task_arena arena(static_cast<int>(threads));
    SloResult result;
    arena.execute([&] { result = confirm(search, loads); });
    std::string text = fmt::format("{} runs", result.search.runs);
    for (const SloRun& run : result.found) {
      text += fmt::format("; {} bears {}: {}", run.place, run.rate, run.report.dump());
      if (run.heavier) text += fmt::format(", {} beyond", run.heavier->attainment);
    }
    std::set<std::string> kept;
    for (const StoreRow& row : Store::open(search.store).rows())
      if (!row.report.empty()) kept.insert(row.config_hash + row.report);
    return text + fmt::format("; kept {}", fmt::join(kept, " "));
  };
  const std::string alone = told(1);
  CHECK(alone.find("2 bears") != std::string::npos);
  for (const std::size_t threads : {2U, 8U}) {
    CAPTURE(threads);
    CHECK(told(threads) == alone);
  }
}

TEST_CASE("a search knows again which runs its store gave up, where as much is asked") {
  const test::TemporaryFolder folder;
  SloSearch search = search_of({deployment_under_slo("2 ms", 300)}, Proof::attained);
  search.give_up = true;
  search.tells_heavier = false;
  search.store = folder.path() / "store.sqlite";
  const auto by_share = [&](double attainment) {
    search.attainment = attainment;
    return confirm(search, std::array{5000.0});
  };
  const SloResult first = by_share(.9);
  const auto rows = Store::open(search.store).rows();
  const auto given_up = std::ranges::count_if(
      rows, [](const StoreRow& row) { return row.status == PointStatus::pending; });
  REQUIRE(given_up > 0);
  CHECK(first.resumed == 0);
  CHECK(std::ranges::none_of(Store::open(search.store).read().points, [](const StoredPoint& point) {
    return point.status == PointStatus::pending && !point.report.is_null();
  }));

  const SloResult again = by_share(.9);
  CHECK(again.resumed == again.search.runs);
  REQUIRE(again.found.size() == first.found.size());
  CHECK(again.found.front().rate == first.found.front().rate);
  CHECK(again.found.front().report == first.found.front().report);

  // What stays below nine tenths may reach a half.
  const SloResult half = by_share(.5);
  CHECK(half.resumed < half.search.runs);
  std::filesystem::remove(search.store);
  CHECK(by_share(.5).found.front().rate == half.found.front().rate);
}

TEST_CASE(
    "5 % more load is run until it is sure that few are served in time, beyond the answer whole") {
  const test::TemporaryFolder folder;
  SloSearch search = search_of({deployment_under_slo("2 ms", 300)}, Proof::attained);
  const auto whole = confirmed(search, 5000);
  search.give_up = true;
  search.store = folder.path() / "store.sqlite";
  const auto found = confirmed(search, 5000);
  REQUIRE(found.size() == 1);
  REQUIRE(found.front().heavier);
  CHECK(found.front().heavier->more > .04);
  CHECK(found.front().rate == whole.front().rate);
  CHECK(found.front().heavier->attainment == whole.front().heavier->attainment);
  // A run that was given up attains less than was asked of it.
  for (const StoreRow& row : Store::open(search.store).rows()) {
    if (row.status != PointStatus::pending || row.report.empty()) continue;
    const Json given_up = Json::parse(row.report).at("given_up");
    CHECK(given_up.at("attained").get<double>() < given_up.at("asked").get<double>());
  }
}

TEST_CASE("a ladder goes on beyond its ends by their ratios") {
  const RateLadder ladder({10, 20, 50});
  CHECK(ladder.size() == 3);
  CHECK(ladder.rate(1) == 20);
  CHECK(ladder.rate(-2) == 2.5);
  CHECK(ladder.rate(4) == 312.5);
  CHECK(ladder.above(19) == 1);
  CHECK(ladder.above(20) == 2);
  CHECK(ladder.above(50) == 3);
  CHECK(ladder.above(4) == -1);
  CHECK(RateLadder({8}, 2).rate(2) == 32);
}

}  // namespace moesim::test_tune
