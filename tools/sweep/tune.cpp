// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/tune.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "hardware/at.hpp"

namespace moesim {

double four_digits(double value) { return std::stod(fmt::format("{:.4g}", value)); }

RateLadder::RateLadder(std::vector<double> rates, double ratio) : rates_(std::move(rates)) {
  const std::size_t n = rates_.size();
  ratio_below_ = n > 1 ? rates_[1] / rates_[0] : ratio;
  ratio_above_ = n > 1 ? rates_[n - 1] / rates_[n - 2] : ratio;
}

double RateLadder::rate(int rung) const {
  if (rung < 0) return four_digits(rates_.front() * std::pow(ratio_below_, rung));
  if (rung >= size()) {
    return four_digits(rates_.back() * std::pow(ratio_above_, rung - size() + 1));
  }
  return rates_[at(rung)];
}

int RateLadder::above(double rate) const {
  int rung = -most_below;
  while (rung < size() + most_above && this->rate(rung) <= rate) ++rung;
  return rung;
}

RateLadder ladder_under(double most) {
  constexpr double least = 1e-3, beyond_any = 1e6;
  constexpr int rungs = 228;
  const double step = std::pow(1.05, 1. / rungs_per_5_percent);
  const double top = std::clamp(most, least, beyond_any);
  std::vector<double> rates;
  for (int rung = 0; rung < rungs; ++rung)
    rates.push_back(four_digits(top / std::pow(step, rungs - 1 - rung)));
  return RateLadder(std::move(rates));
}

namespace {

// Points that are run side by side, whatever the number of threads.
constexpr std::size_t at_once = 4;
// Places whose best load is looked for when nothing in the ladder meets the SLO.
constexpr std::size_t hopeful = 4;

struct Stopped {};

class Search {
 public:
  explicit Search(const TuneProblem& problem) : problem_(problem) {
    for (std::size_t place = 0; place < problem.bounds.size(); ++place) {
      if (problem.bounds[place]) places_.push_back(place);
    }
    std::ranges::stable_sort(places_, [&](std::size_t a, std::size_t b) {
      if (bound(a) != bound(b)) return bound(a) > bound(b);
      return problem_.bounds[a]->excess < problem_.bounds[b]->excess;
    });
  }

  TuneResult run() {
    try {
      search();
    } catch (const Stopped&) {
      result_.stopped = true;
    }
    return rank();
  }

 private:
  void search() {
    challenge_all();
    if (!best_ && problem_.recheck) try_heaviest();
    if (!best_ && problem_.to_beat == 0) try_lighter();
    if (best_ && problem_.recheck) recheck_above(best_->point.place);
    if (problem_.sure || (contradicted_ && problem_.recheck)) try_rest();
    find_runners_up();
  }

  double bound(std::size_t place) const { return problem_.bounds[place]->goodput; }
  double best_goodput() const { return best_ ? best_->trial.goodput : problem_.to_beat; }
  double most(TunePoint point) const {
    return std::min(problem_.ladder.rate(point.rung), bound(point.place));
  }
  const Trial* tried(TunePoint point) const {
    const auto found = trials_.find(point);
    return found == trials_.end() ? nullptr : &found->second;
  }

  // Runs those of the points that were not run yet.
  void try_points(std::vector<TunePoint> points) {
    std::erase_if(points, [&](TunePoint point) { return tried(point) != nullptr; });
    if (points.empty()) return;
    // While nothing meets the SLO, how near each run comes is of interest.
    const auto trials = problem_.run(points, best_goodput() > 0 || !problem_.near_misses);
    if (!trials) throw Stopped();
    for (std::size_t i = 0; i < points.size(); ++i) note(points[i], trials->at(i));
  }

  void note(TunePoint point, const Trial& trial) {
    trials_[point] = trial;
    if (trial.meets && trial.goodput > best_goodput()) best_ = {point, trial};
    // A lighter load that misses, or a heavier one that meets, where it should not.
    for (const auto& [other, seen] : trials_) {
      if (other.place != point.place || other.rung == point.rung) continue;
      const bool lighter = other.rung < point.rung;
      if (lighter ? trial.meets && !seen.meets : !trial.meets && seen.meets) contradicted_ = true;
    }
  }

  // Every place that its bound leaves a chance, under the lightest load that would make it the
  // best.
  void challenge_all() {
    const int lightest = problem_.start > 0 ? problem_.ladder.above(problem_.start) - 1 : 0;
    for (std::size_t next = 0; next < places_.size();) {
      const int rung = best_goodput() > 0 ? problem_.ladder.above(best_goodput()) : lightest;
      std::vector<TunePoint> challengers;
      for (; next < places_.size() && challengers.size() < at_once; ++next) {
        if (bound(places_[next]) > best_goodput()) challengers.push_back({places_[next], rung});
      }
      if (challengers.empty()) return;
      try_points(challengers);
      const std::size_t most_promising = challengers.front().place;
      keep_those_that_meet(challengers);
      while (!challengers.empty()) {
        const TunePoint strongest = challengers.front();
        challengers.erase(challengers.begin());
        climb(strongest.place, strongest.rung);
        leave_those_with_a_chance(challengers);
      }
      if (best_goodput() > 0) continue;
      // It began too high: down from there, with the place that has most to promise. What missed
      // the load that was too much may still bear more than that place.
      descend(most_promising, lightest);
      if (best_goodput() > 0) next = 0;
    }
  }

  void keep_those_that_meet(std::vector<TunePoint>& points) const {
    std::erase_if(points, [&](TunePoint point) { return !tried(point)->meets; });
  }

  // Leaves challengers that met what was the best load before, now that one of them sustains more.
  // Where runners-up are wanted, what each sustains is worth knowing.
  void leave_those_with_a_chance(std::vector<TunePoint>& challengers) {
    std::erase_if(challengers,
                  [&](TunePoint point) { return bound(point.place) <= best_goodput(); });
    if (problem_.runners_up > 0) return;
    const int rung = problem_.ladder.above(best_goodput());
    for (TunePoint& point : challengers) point.rung = std::max(point.rung, rung);
    try_points(challengers);
    keep_those_that_meet(challengers);
  }

  // From a load that misses to the heaviest that meets: a little lighter first, then three times as
  // far and so on, down to the ladder's lightest.
  void descend(std::size_t place, int missed) {
    for (int step = 2; missed > 0; step *= 3) {
      const int rung = std::max(0, missed - step);
      try_points({{place, rung}});
      if (tried({place, rung})->meets) return narrow(place, rung, missed);
      missed = rung;
    }
  }

  // The rung above which no load can make the place better.
  int top_of(std::size_t place) const {
    const int highest = problem_.ladder.size() - 1 + RateLadder::most_above;
    int rung = 0;
    while (rung < highest && problem_.ladder.rate(rung) < bound(place)) ++rung;
    return rung;
  }

  // Finds the heaviest load that meets the SLO, from one that does.
  void climb(std::size_t place, int met) {
    met = std::max(met, problem_.ladder.above(best_goodput()) - 1);
    const int top = std::max(met, top_of(place));
    narrow(place, met, top + 1);
    if (const Trial* trial = tried({place, top}); trial != nullptr && trial->meets)
      rise(place, top);
  }

  // A place that meets the SLO at the top of what its bound allows has a bound that is too low.
  void rise(std::size_t place, int met) {
    const int highest = problem_.ladder.size() - 1 + RateLadder::most_above;
    for (int step = 1; met + step <= highest; step *= 2) {
      const int rung = met + step;
      try_points({{place, rung}});
      if (!tried({place, rung})->meets) return narrow(place, met, rung);
      met = rung;
    }
  }

  // Finds it between a load that meets the SLO, or is known to be too light to matter, and one that
  // misses it. Asks for loads a third and two thirds of the way.
  void narrow(std::size_t place, int met, int missed) {
    while (missed - met > 1) {
      const int low = met + std::max(1, (missed - met) / 3);
      const int high = std::max(low, missed - std::max(1, (missed - met) / 3));
      try_points(low == high ? std::vector<TunePoint>{{place, low}}
                             : std::vector<TunePoint>{{place, low}, {place, high}});
      if (tried({place, high})->meets) {
        met = high;
      } else if (tried({place, low})->meets) {
        met = low;
        missed = high;
      } else {
        missed = low;
      }
    }
  }

  // When no place bears the lightest load: some bear a heavier one, because steps are composed
  // another way.
  void try_heaviest() {
    for (std::size_t next = 0; next < places_.size() && !best_;) {
      std::vector<TunePoint> points;
      for (; next < places_.size() && points.size() < at_once; ++next) {
        if (bound(places_[next]) > 0) points.push_back({places_[next], problem_.ladder.size() - 1});
      }
      try_points(points);
    }
  }

  // Loads below the ladder, for the places that missed by least; the others are then challenged.
  void try_lighter() {
    if (places_.empty()) return;
    for (int rung = -1; rung >= -RateLadder::most_below && !best_; --rung) {
      std::vector<TunePoint> nearest;
      for (const std::size_t place : by_nearness(rung + 1)) {
        if (nearest.size() < hopeful && bound(place) > 0) nearest.push_back({place, rung});
      }
      if (nearest.empty()) break;
      const double before = least_excess();
      try_points(nearest);
      if (!best_ && least_excess() > .999 * before) break;
    }
    if (best_) challenge_all();
    if (!trials_.empty()) return;
    // No place has a chance by its bound: what the nearest give is worth knowing.
    std::vector<TunePoint> points;
    for (const std::size_t place : places_) {
      if (points.size() < hopeful) points.push_back({place, 0});
    }
    try_points(points);
  }

  static bool nearer(const Trial& a, const Trial& b) {
    if (a.attainment != b.attainment) return a.attainment > b.attainment;
    return a.excess < b.excess;
  }

  double least_excess() const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [point, trial] : trials_) least = std::min(least, trial.excess);
    return least;
  }

  // Places that were run at a rung, those that missed by least first.
  std::vector<std::size_t> by_nearness(int rung) const {
    std::vector<std::size_t> places;
    for (const std::size_t place : places_) {
      if (tried({place, rung}) != nullptr) places.push_back(place);
    }
    std::ranges::stable_sort(places, [&](std::size_t a, std::size_t b) {
      return nearer(*tried({a, rung}), *tried({b, rung}));
    });
    return places;
  }

  // Tries a few heavier loads than the best place's first miss: do they really miss?
  void recheck_above(std::size_t place) {
    std::vector<TunePoint> above;
    for (int rung = 0; rung < problem_.ladder.size(); ++rung) {
      const TunePoint point{place, rung};
      if (tried(point) == nullptr && most(point) > best_goodput()) above.push_back(point);
    }
    std::vector<TunePoint> some;
    for (std::size_t i = 0; i < std::min(at_once, above.size()); ++i)
      some.push_back(above[above.size() - 1 - i * above.size() / at_once]);
    std::ranges::sort(some);
    some.erase(std::unique(some.begin(), some.end()), some.end());
    try_points(some);
  }

  // Points of the ladder that could be better and were not run, the most promising first.
  std::vector<TunePoint> rest() const {
    std::vector<TunePoint> points;
    for (const std::size_t place : places_) {
      for (int rung = 0; rung < problem_.ladder.size(); ++rung) {
        const TunePoint point{place, rung};
        if (most(point) > best_goodput() && tried(point) == nullptr) points.push_back(point);
      }
    }
    std::ranges::stable_sort(points, [&](TunePoint a, TunePoint b) { return most(a) > most(b); });
    return points;
  }

  void try_rest() {
    for (std::vector<TunePoint> points = rest(); !points.empty(); points = rest()) {
      points.resize(std::min(points.size(), at_once));
      try_points(points);
    }
  }

  // The heaviest loads of a few more places: those that met the SLO, then those that missed it by
  // least where they were challenged. At less than half the best they are not worth ranking.
  void find_runners_up() {
    if (!best_ || problem_.runners_up == 0) return;
    // Misses at a load far above what a place sustains say little: a lighter one tells more of them
    // apart.
    constexpr double near_best = .8;
    const int near = problem_.ladder.above(near_best * best_goodput()) - 1;
    std::vector<TunePoint> asked;
    for (const Candidate& candidate : candidates(2 * problem_.runners_up)) {
      if (candidate.met < near && near < candidate.missed) asked.push_back({candidate.place, near});
    }
    try_points(asked);
    for (const Candidate& candidate : candidates(problem_.runners_up))
      narrow(candidate.place, candidate.met, candidate.missed);
  }

  // A place that is not the best: the heaviest load that it met, the lightest above that it missed,
  // and the better of its trials.
  struct Candidate {
    std::size_t place;
    Trial trial;
    int met, missed;
  };

  // So many places to rank behind the best, the most promising first.
  std::vector<Candidate> candidates(std::size_t most) const {
    std::vector<Candidate> candidates;
    const int floor = problem_.ladder.above(best_goodput() / 2) - 1;
    for (const std::size_t place : places_) {
      if (place == best_->point.place) continue;
      Candidate candidate{place, {}, floor, std::numeric_limits<int>::max()};
      bool seen = false;
      for (auto at = trials_.lower_bound({place, std::numeric_limits<int>::min()});
           at != trials_.end() && at->first.place == place; ++at) {
        const auto& [point, trial] = *at;
        if (trial.meets) candidate.met = std::max(candidate.met, point.rung);
        if (!seen || trial.goodput > candidate.trial.goodput) candidate.trial = trial;
        seen = true;
      }
      if (!seen) continue;
      for (int rung = candidate.met + 1; rung <= top_of(place) + 1; ++rung) {
        const Trial* trial = tried({place, rung});
        candidate.missed = trial != nullptr ? rung : candidate.missed;
        if (trial != nullptr) break;
      }
      candidate.missed = std::min(candidate.missed, std::max(candidate.met, top_of(place)) + 1);
      candidates.push_back(candidate);
    }
    std::ranges::stable_sort(candidates, [](const auto& a, const auto& b) {
      if (a.trial.goodput != b.trial.goodput) return a.trial.goodput > b.trial.goodput;
      return nearer(a.trial, b.trial);
    });
    if (candidates.size() > most) candidates.resize(most);
    return candidates;
  }

  TuneResult rank() {
    std::map<std::size_t, TuneResult::Found> best_of;
    for (const auto& [point, trial] : trials_) {
      if (!trial.meets) continue;
      const auto [found, is_new] =
          best_of.try_emplace(point.place, TuneResult::Found{point, trial});
      if (!is_new && trial.goodput > found->second.trial.goodput) found->second = {point, trial};
    }
    for (const auto& [place, found] : best_of) result_.found.push_back(found);
    std::ranges::stable_sort(result_.found, [](const auto& a, const auto& b) {
      return a.trial.goodput > b.trial.goodput;
    });
    for (const auto& [point, trial] : trials_) {
      if (trial.given_up) continue;
      if (!result_.nearest || nearer(trial, result_.nearest->trial))
        result_.nearest = {point, trial};
    }
    if (!result_.found.empty()) result_.nearest.reset();
    result_.runs = trials_.size();
    for (const std::size_t place : places_) {
      const bool run = std::ranges::any_of(
          trials_, [&](const auto& trial) { return trial.first.place == place; });
      if (!run && bound(place) <= best_goodput()) ++result_.ruled_out;
    }
    result_.taken_to_miss = rest().size();
    return result_;
  }

  const TuneProblem& problem_;
  std::vector<std::size_t> places_;  // that can be run, best bound first
  std::map<TunePoint, Trial> trials_;
  std::optional<TuneResult::Found> best_;
  bool contradicted_ = false;
  TuneResult result_;
};

}  // namespace

TuneResult tune(const TuneProblem& problem) { return Search(problem).run(); }

}  // namespace moesim
