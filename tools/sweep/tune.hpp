// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace moesim {

/// A number rounded to four digits, for people to read.
double four_digits(double value);

/// Loads to try, in requests/s: rungs 0 .. size() - 1 as given, and more rungs below and above,
/// each further off by the ratio of the outermost two.
class RateLadder {
 public:
  /// Rates ascend. `ratio` (> 1) is taken where there is but one.
  explicit RateLadder(std::vector<double> rates, double ratio = 1.4142135623730951);
  int size() const { return static_cast<int>(rates_.size()); }
  double rate(int rung) const;
  /// The lowest rung whose rate is above this one, between the ends that are ever tried.
  int above(double rate) const;
  static constexpr int most_below = 16, most_above = 32;

 private:
  std::vector<double> rates_;
  double ratio_below_, ratio_above_;
};

/// Rungs of ladder_under() from a load to one that is 5 % heavier.
inline constexpr int rungs_per_5_percent = 3;

/// Ladder from a fortieth of the most that is possible up to it, 1.6 % apart. No answer is worth
/// more digits, and a search by thirds takes few runs for them.
RateLadder ladder_under(double most);

/// A place (one combination of all settings but the load) under one load.
struct TunePoint {
  std::size_t place = 0;
  int rung = 0;
  auto operator<=>(const TunePoint&) const = default;
};

/// Result of one run.
struct Trial {
  double goodput = 0;     ///< requests/s that met the SLO, at most the load
  double attainment = 0;  ///< share of the requests that did
  double excess = 0;      ///< the worst of latency over its limit, 1 where it is met exactly
  bool meets = false;     ///< whether enough requests met it, in a run that lasts
  bool lasts = false;     ///< whether the run shows what the search wants to see beside that
  /// True if the run was ended because it could not meet the SLO any more. Its attainment is that
  /// of the requests until then, its excess 1 + the share of them that missed.
  bool given_up = false;
};

/// Bound of a place, by the time of its steps alone.
struct TuneBound {
  double goodput = 0;  ///< requests/s under any load; 0 where a single request misses the SLO
  double excess = 0;   ///< of a single request's latency over its limit
  /// Requests/s that prefill steps and decode steps allow if they have all the time.
  double prefill = 0, decode = 0;
  /// Seconds that a request alone takes to its first token and per token, where they are limited.
  double least_ttft = 0, least_tpot = 0;
};

struct TuneProblem {
  /// Bounds of each place; nothing where it cannot be run.
  std::vector<std::optional<TuneBound>> bounds;
  RateLadder ladder;
  /// Runs some points, each asked for once, and answers in their order. Nothing: stopped. Runs may
  /// be given up where no more than `whether` they meet the SLO is asked.
  std::function<std::optional<std::vector<Trial>>(std::span<const TunePoint>, bool whether)> run;
  /// True if every point of the ladder that could still be better is run in the end.
  bool sure = false;
  /// True if runs are spent on finding out that heavier loads than a place's first miss can meet
  /// the SLO after all. Else they are taken to miss, whatever runs show.
  bool recheck = true;
  /// A load to begin with, in requests/s; 0: the ladder's lightest.
  double start = 0;
  /// Requests/s that are had elsewhere: no place is looked at under less load than beats them.
  double to_beat = 0;
  /// True if it is told how near runs come to the SLO where none meets it.
  bool near_misses = true;
  /// How many places are ranked below the best one.
  std::size_t runners_up = 4;
};

struct TuneResult {
  struct Found {
    TunePoint point;
    Trial trial;
  };
  std::vector<Found> found;  ///< the best point of each place that met the SLO, best first
  /// Nearest run where none did: of those not given up the one that missed by least.
  std::optional<Found> nearest;
  std::size_t runs = 0;
  std::size_t ruled_out = 0;  ///< places that cannot be better by their bound alone
  /// Points within the ladder that were not run and are not ruled out by bound or load. They are
  /// taken to miss the SLO because their place missed it under a lighter load. 0: nothing in the
  /// ladder is better than what was found.
  std::size_t taken_to_miss = 0;
  bool stopped = false;
};

/// Finds the point of the largest goodput that meets the SLO. A place is given up when it misses
/// the SLO under the lightest load that would make it better than the best so far. Places are tried
/// in the order of their bounds, until no bound is better than what was found. That assumes that a
/// setting that misses the SLO under one load misses it under heavier ones. Where a run shows
/// otherwise, or it is asked to be `sure`, every point that could be better is run. Loads above the
/// ladder are tried where its top is met, below it where nothing in it is. Deterministic: the
/// points depend on nothing but the problem.
TuneResult tune(const TuneProblem&);

}  // namespace moesim
