// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/slo_search.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "tools/sweep/nearest_refusal.hpp"
#include "tools/sweep/slo_bound.hpp"
#include "tools/sweep/slo_runs.hpp"

namespace moesim {

namespace {

// Bounds the places of which no bound is known yet; none of those that cannot run.
std::vector<std::optional<TuneBound>> bounds_of(const SloSearch& search, SloRuns& runs,
                                                const SloHooks& hooks, NearestRefusal& refused) {
  std::vector<std::optional<TuneBound>> bounds = search.bounds;
  const std::size_t known = bounds.size();
  bounds.resize(search.places.size());
  // Nothing is known of how many sessions a place may serve: so many times the ladder's heaviest
  // load are tried at most.
  constexpr double beyond_ladder = 4;
  check(search.ladder || !search.sessions, "a search over sessions has a ladder");
  const double highest_load = search.ladder ? search.ladder->rate(search.ladder->size() - 1) : 0;
  for (std::size_t place = known; place < search.places.size(); ++place)
    runs.make_trace(search.places[place]);
  bound_all(bounds, known, hooks, refused, [&](std::size_t place) {
    const Experiment experiment = runs.load(search.places[place]);
    if (search.sessions) return TuneBound{.goodput = beyond_ladder * highest_load};
    return bound_of(experiment, search.attainment, {search.mixed_steps, search.worth});
  });
  return bounds;
}

}  // namespace

SloResult search_slo(const SloSearch& search, TraceLibrary& traces, Remarks& remarks,
                     const SloHooks& hooks) {
  SloRuns runs(search, traces, remarks, hooks);
  NearestRefusal refused;
  std::vector<std::optional<TuneBound>> bounds = bounds_of(search, runs, hooks, refused);
  SloResult result;
  result.cannot_run = refused.count();
  result.refused = refused.why();
  if (result.cannot_run == search.places.size())
    throw ConfigError(refused.text(search.places[refused.place()]));
  double best_bound = 0;
  for (const auto& bound : bounds) {
    if (bound) best_bound = std::max(best_bound, bound->goodput);
  }
  const RateLadder ladder = search.ladder ? *search.ladder : ladder_under(best_bound);
  runs.climb(ladder);
  // A bound is loose, by half where prefill and decode each have all the time: where to begin.
  const double begin = (search.mixed_steps ? .8 : .5) * best_bound;
  result.bounds = bounds;
  for (auto& bound : bounds) {
    if (bound) bound->goodput *= search.bound_margin;
  }
  result.search = tune({.bounds = std::move(bounds),
                        .ladder = ladder,
                        .run = std::ref(runs),
                        .sure = search.sure,
                        .recheck = search.recheck,
                        .start = search.start < 0 ? begin : search.start,
                        .to_beat = search.to_beat,
                        .near_misses = search.near_misses,
                        .runners_up = search.runners_up});
  result.search.stopped |= hooks.stop();
  runs.write_into(result);
  return result;
}

}  // namespace moesim
