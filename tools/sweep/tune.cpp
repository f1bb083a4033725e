// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/tune.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace moesim {

namespace {

class Search {
 public:
  explicit Search(const TuneProblem& problem) : problem_(problem) {}

  TuneResult run() {
    result_.place = best_bound();
    if (!bound(result_.place)) return result_;
    climb(result_.place, 0, problem_.loads);
    // A change of one coordinate is tried first; of two only where one no longer helps.
    while (improve(neighbours(result_.place)) || improve(pairs(result_.place))) {
    }
    return result_;
  }

 private:
  std::optional<double> bound(const TunePlace& place) {
    const auto found = bounds_.find(place);
    if (found != bounds_.end()) return found->second;
    return bounds_.emplace(place, problem_.bound(place)).first->second;
  }

  Trial trial(const TunePlace& place, std::size_t load) {
    const auto [found, is_new] = trials_.try_emplace({place, load});
    if (is_new) {
      found->second = problem_.run(place, load);
      ++result_.runs;
      if (found->second.meets && found->second.goodput > result_.goodput) {
        result_.place = place;
        result_.load = load;
        result_.goodput = found->second.goodput;
      }
    }
    return found->second;
  }

  // Bisects for the heaviest load in [first, end) that meets the SLO.
  void climb(const TunePlace& place, std::size_t first, std::size_t end) {
    while (first < end) {
      const std::size_t middle = first + (end - first) / 2;
      if (trial(place, middle).meets) {
        first = middle + 1;
      } else {
        end = middle;
      }
    }
  }

  // From the first place, one coordinate after the other to its best bound, until none changes.
  TunePlace best_bound() {
    TunePlace place(problem_.sizes.size(), 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (const TunePlace& next : neighbours(place)) {
        if (bound(next).value_or(0) > bound(place).value_or(0)) {
          place = next;
          changed = true;
        }
      }
    }
    return place;
  }

  // Places that differ in one coordinate; the most promising first.
  std::vector<TunePlace> neighbours(const TunePlace& place) {
    std::vector<TunePlace> places;
    for (std::size_t c = 0; c < place.size(); ++c) {
      for (std::size_t value = 0; value < problem_.sizes[c]; ++value) {
        if (value == place[c]) continue;
        places.push_back(place);
        places.back()[c] = value;
      }
    }
    return places;
  }

  // Places that differ in two coordinates.
  std::vector<TunePlace> pairs(const TunePlace& place) {
    std::set<TunePlace> places;
    for (const TunePlace& next : neighbours(place)) {
      for (const TunePlace& second : neighbours(next)) places.insert(second);
    }
    places.erase(place);
    for (const TunePlace& next : neighbours(place)) places.erase(next);
    return {places.begin(), places.end()};
  }

  // Whether one of the places is better than the best so far; the most promising are tried first.
  bool improve(std::vector<TunePlace> places) {
    std::stable_sort(places.begin(), places.end(), [&](const auto& a, const auto& b) {
      return bound(a).value_or(0) > bound(b).value_or(0);
    });
    const double before = result_.goodput;
    for (const TunePlace& place : places) {
      if (!tried_.insert(place).second) continue;
      const auto most = bound(place);
      if (!most) continue;
      if (*most <= result_.goodput) {
        ++result_.pruned;
        continue;
      }
      challenge(place);
      if (result_.goodput > before) return true;
    }
    return false;
  }

  // A place that misses the SLO under the load that the best one carries is not better.
  void challenge(const TunePlace& place) {
    const std::size_t load = result_.load.value_or(0);
    if (trial(place, load).meets) climb(place, load + 1, problem_.loads);
  }

  const TuneProblem& problem_;
  TuneResult result_;
  std::map<TunePlace, std::optional<double>> bounds_;
  std::map<std::pair<TunePlace, std::size_t>, Trial> trials_;
  std::set<TunePlace> tried_;
};

}  // namespace

TuneResult tune(const TuneProblem& problem) { return Search(problem).run(); }

}  // namespace moesim
