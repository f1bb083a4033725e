// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/experiment/experiment.hpp"
#include "sim/report/metric_catalogue.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/sweep/tune.hpp"

namespace moesim {

/// Place of the load in an experiment that a search varies: requests/s, or sessions alive.
inline const std::string rate_pointer = "/workload/arrivals/rate";
inline const std::string lanes_pointer = "/workload/arrivals/concurrency";

/// Limits that the p90s of sessions must not exceed, in addition to an SLO.
struct SessionLimits {
  std::optional<Seconds> first_ttft{}, later_ttft{};  ///< of the first turns, of all others
  std::optional<Seconds> completion{};                ///< of a session
};

/// Proof that a run must show in addition to the attainment, to count as one that meets the SLO.
enum class Proof {
  attained,  ///< it is not overloaded: for short runs that only choose what is looked at next;
             ///< sampled ones draw rare sizes of steps from few samples
  steady,    ///< it is in a steady state
  lasting    ///< and attainment of the second half misses what is asked by no more than two
             ///< standard errors; and TTFT does not grow beyond its limit in twice the time
};

/// A search for the most requests/s under an SLO.
struct SloSearch {
  Json document;                    ///< what is searched, as its store keeps it: a sweep file
  std::filesystem::path base_file;  ///< paths in the configs are relative to it
  std::vector<Json> places;         ///< configs; the search sets their load
  /// Bounds of each place, where they are known: result.bounds of another search.
  std::vector<std::optional<TuneBound>> bounds{};
  /// Loads to try; nothing: a few per cent apart, up to what the best of the bounds allows.
  std::optional<RateLadder> ladder{};
  double attainment = .9;  ///< share of the requests that must meet the SLO
  /// True: the load is how many sessions are alive, a whole number, the clients of a closed loop.
  /// All requests/s of this file, ladder and bounds included, are then sessions alive.
  bool sessions = false;
  SessionLimits session_limits{};  ///< of sessions
  /// True if a run that meets the SLO is worth its load: goodput would say the same of a lighter
  /// load that more requests meet.
  bool by_load = false;
  bool sure = false;
  /// True if points of a place above its first miss are run, to see that they miss too.
  bool recheck = true;
  Proof proof = Proof::steady;
  /// True if the steps of a steady state bound a place too: tighter, and true to some ten per cent.
  bool mixed_steps = false;
  double worth = 0;  ///< requests/s; bounds below it by mixed steps are only known to be below
  double bound_margin = 1;  ///< by how much more than its bound a place is taken to bear
  bool spot_checks = true;  ///< of sampled runs
  /// True if a run ends as soon as it cannot meet the SLO any more, where that is all that is
  /// asked. The store keeps of such runs that they missed.
  bool give_up = false;
  std::size_t draws = 1;      ///< of confirm_slo(): so many neighbours are one deployment
  bool tells_heavier = true;  ///< of confirm_slo(): what found runs say of a heavier load is wanted
  double to_beat = 0;         ///< requests/s that are had elsewhere
  bool near_misses = true;    ///< see TuneProblem
  std::size_t runners_up = 4;     ///< to rank below the best
  std::filesystem::path store{};  ///< of every run; with one, a search goes on where it stopped
  double start = 0;               ///< a load to begin with; below 0: by the best bound
  /// Sets the load of a place; nothing: at rate_pointer, or of sessions at lanes_pointer.
  std::function<void(Json& place, const std::string& rate, double per_second)> set_load = {};
  /// Makes a run of a load so long that a small backlog shows, of confirm_slo(): asked of a heavier
  /// load that meets the SLO.
  std::function<void(Json& place, double per_second)> lengthen = {};
};

/// Fate of a deployment under a load that is heavier than what it sustains.
struct Heavier {
  double more = 0;        ///< .05: by 5 %
  double attainment = 0;  ///< share of the requests that meet the SLO then
  std::string binds;      ///< what is missed first: "capacity", or a latency, e.g. "TPOT"
};

/// A run of a search.
struct SloRun {
  std::size_t place = 0;
  std::string rate;  ///< as the config has it; of sessions "64 sessions"
  Trial trial;
  /// Parts of the report: "metrics", "measurement", "breakdown", active experts, and of sessions
  /// "sessions" and "turns".
  Json config, report;
  std::optional<Heavier> heavier{};  ///< of confirm_slo()
  std::size_t draws = 1;             ///< that bear the load

  double per_second() const { return std::stod(rate); }
};

struct SloResult {
  std::vector<SloRun> found;    ///< the best of each place, best first
  std::vector<SloRun> nearest;  ///< one, where none met the SLO
  TuneResult search;
  std::vector<std::optional<TuneBound>> bounds;  ///< of each place; nothing where it cannot be run
  std::size_t resumed = 0;                       ///< runs that the store held
  std::size_t cannot_run = 0;                    ///< places
  std::string refused;                           ///< why one such place cannot (NearestRefusal)
};

/// Returns "stable" if a run's rates are those of a steady state, or why not.
std::string state_of(const SloRun&);

/// A metric of a run as tables print it; "-" where the run has none.
std::string metric_text(const SloRun&, const Metric&);

/// Share by which a latency may be longer than a run's p90, by its limit. It is below 0 where it is
/// exceeded; nothing where the SLO has no such limit ("tpot", "ttft", "e2el").
std::optional<double> margin_of(const SloRun&, std::string_view limit);

/// Hooks that the search calls while it works.
struct SloHooks {
  std::function<bool()> stop = [] { return false; };
  std::function<void(std::size_t done, std::size_t total)> bounded = [](auto, auto) {};
  std::function<void(std::size_t runs)> ran = [](auto) {};
};

/// Searches. Same search, same answer on any number of threads, and after any number of stops.
/// Throws ConfigError if a place has no "slo", its load is not a rate, or the store is another's.
SloResult search_slo(const SloSearch&, TraceLibrary&, Remarks&, const SloHooks&);

/// Finds the heaviest load that each deployment sustains under all its draws. Neighbours of
/// search.places, search.draws of them, are one deployment that differs in its seed. A search
/// begins at loads[i], one of the ladder's, for the i-th. It goes up or down from there, further
/// each time, then by halves. It sustains a load if every draw lasts, and their mean attainment and
/// that of the last are what is asked. Found is the run of the first draw, place i; its trial has
/// the mean attainment of all draws. Bounds nothing; otherwise as search_slo().
SloResult confirm_slo(const SloSearch&, std::span<const double> loads, TraceLibrary&, Remarks&,
                      const SloHooks&);

/// "TPOT 17.2 ms (90 % of the requests; limit 18 ms), TTFT 120 ms (limit 1 s)": the latencies that
/// the experiment's SLO limits.
std::string latencies_text(const SloRun&);

}  // namespace moesim
