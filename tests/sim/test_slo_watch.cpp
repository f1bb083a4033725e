// SPDX-License-Identifier: Apache-2.0
// Is a run given up only if it would have missed its SLO, and is that soon?
#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/report/slo_watch.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_slo_watch {
namespace {

constexpr double attainment = .9;

// Counts events, to tell how soon a run ended.
struct Events : RunObserver {
  int seen = 0;
  void event(const EventSeen&) override { ++seen; }
};

struct Watched {
  bool given_up = false;
  int events = 0;
};

Watched watch(const Experiment& experiment, bool from_start = false) {
  SloWatch watch(experiment, attainment, from_start);
  Events events;
  const std::array<RunObserver*, 2> observers{&events, &watch};
  try {
    run(experiment, {}, observers);
  } catch (const SloMissed& missed) {
    CHECK(missed.attained >= 0);
    CHECK(missed.attained < 1);
    return {true, events.seen};
  }
  return {false, events.seen};
}

int events_of(const Experiment& experiment) {
  Events events;
  const std::array<RunObserver*, 1> observers{&events};
  run(experiment, {}, observers);
  return events.seen;
}

Json random_slo(Rng& rng) {
  const auto ms = [&](double least) {
    return fmt::format("{:.4f} ms", least * std::exp2(4 * rng.uniform()));
  };
  Json slo;
  const std::uint64_t which = 1 + rng.below(7);
  if (which & 1) slo["ttft"] = ms(.2);
  if (which & 2) slo["tpot"] = ms(.05);
  if (which & 4) slo["e2el"] = ms(1);
  return slo;
}

TEST_CASE("a run that is given up would have missed its SLO") {
  int given_up = 0, missed = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Rng rng(seed, "test/slo_watch");
    const double rate = 500 * std::exp2(6 * rng.uniform());
    const bool leaves = rng.below(4) == 0;
    Json workload{
        {"arrivals",
         {{"type", "poisson"}, {"rate", fmt::format("{:.0f} /s", rate)}, {"concurrency", nullptr}}},
        {"requests", 150}};
    if (leaves) workload["cancellation"] = {{"share", .3}, {"mean_after", "3 ms"}};
    const Experiment e = test::load_tiny({{"seed", seed},
                                          {"slo", random_slo(rng)},
                                          {"measurement", {{"warmup", .3 * rng.uniform()}}},
                                          {"workload", workload}});
    const Watched watched = watch(e);
    const double met = run(e).metrics.slo_attainment;
    missed += met < attainment;
    given_up += watched.given_up;
    if (watched.given_up) CHECK(met < attainment);
  }
  // Most of those that miss are given up.
  CHECK(missed > 10);
  CHECK(given_up > missed / 2);
}

TEST_CASE("an overloaded run is given up long before its backlog is served") {
  const Experiment e = test::load_tiny(
      {{"slo", {{"ttft", "1 ms"}}},
       {"workload",
        {{"arrivals", {{"type", "poisson"}, {"rate", "1000000 /s"}, {"concurrency", nullptr}}},
         {"requests", 2000}}}});
  const Watched watched = watch(e);
  CHECK(watched.given_up);
  CHECK(watched.events < events_of(e) * 3 / 4);
}

TEST_CASE("counted from the start, a run is given up if too many of all its requests miss") {
  int sooner = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    Rng rng(seed, "test/slo_watch from the start");
    const double rate = 500 * std::exp2(6 * rng.uniform());
    Json json{{"seed", seed},
              {"slo", random_slo(rng)},
              {"measurement", {{"warmup", .5}}},
              {"workload",
               {{"arrivals",
                 {{"type", "poisson"},
                  {"rate", fmt::format("{:.0f} /s", rate)},
                  {"concurrency", nullptr}}},
                {"requests", 150}}}};
    const Experiment e = test::load_tiny(json);
    const Watched watched = watch(e, true), by_default = watch(e);
    CHECK(watched.events <= by_default.events);
    CHECK(watched.given_up >= by_default.given_up);
    sooner += watched.events < by_default.events;
    json["measurement"]["warmup"] = 0;
    CHECK(watched.given_up == watch(test::load_tiny(json)).given_up);
  }
  CHECK(sooner > 5);
}

}  // namespace
}  // namespace moesim::test_slo_watch
