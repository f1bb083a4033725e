// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/plan/deployments.hpp"
#include "tools/sweep/slo_search.hpp"

namespace moesim {

/// A plan to be made.
struct PlanSearch {
  Json base;  ///< see base_deployment()
  MoeModel model;
  ClusterSpec cluster;
  std::filesystem::path folder;  ///< paths in the base are relative to it
  std::filesystem::path store;   ///< of every run; the search goes on where it stopped
  double attainment = .9;        ///< share of the requests that must meet the SLO
};

/// What was found.
struct Plan {
  std::vector<SloRun> best;     ///< one of each shape, most requests/s first; at most five
  std::vector<SloRun> nearest;  ///< where none meets the SLO: the run that missed by least
  /// The first of the best under other draws of arrivals and routing: requests/s up to its own
  /// that it bears then, or 0 where it misses the SLO at all that was tried.
  std::vector<double> redrawn;
  /// The same where every expert is as likely as any other. Nothing where routing was recorded or
  /// there are no experts.
  std::optional<double> uniform;
  std::size_t shapes = 0;  ///< looked at ...
  std::size_t fit = 0;     ///< ... of which so many fit in memory
  std::size_t runs = 0;
  std::size_t before = 0;  ///< of these runs, those that the store held
  bool stopped = false;
};

/// What the search tells while it works: one stage after the other.
struct PlanHooks {
  std::function<bool()> stop = [] { return false; };
  std::function<void(const std::string& stage)> begins = [](auto&) {};
  std::function<void(std::size_t done, std::size_t total)> bounded = [](auto, auto) {};
  std::function<void(std::size_t runs)> ran = [](auto) {};
};

/// Looks for the deployments with the most requests/s under the SLO: all shapes, each given up when
/// memory or the time of its steps rules it out or a short run under more load than the best bears
/// misses the SLO; then copies and routing, chunks and limits of the best three; then long
/// runs of what is left. Runs draw MoE layers from steps alike (fidelity "sampled"), the last ones
/// only where pricing each token would take too long. Same question, same answer on any number of
/// threads, and after any number of stops. Throws ConfigError if nothing fits or the store is
/// another's.
Plan make_plan(const PlanSearch&, TraceLibrary&, Remarks&, const PlanHooks&);

/// What limits a deployment: the latency that is nearest to its limit, and where most of the time
/// goes: "TPOT; experts 41 %, HBM".
std::string binding_text(const SloRun&);

}  // namespace moesim
