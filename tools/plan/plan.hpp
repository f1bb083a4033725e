// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/plan/deployments.hpp"
#include "tools/sweep/slo_search.hpp"

namespace moesim {

/// A plan to be made.
struct PlanSearch {
  Json base;  ///< see base_deployment()
  MoeModel model;
  PrecisionPlan precision;
  ClusterSpec cluster;
  std::filesystem::path folder;  ///< paths in the base are relative to it
  std::filesystem::path store;   ///< of every run; the search goes on where it stopped
  double attainment = .9;        ///< share of the requests that must meet the SLO
  Layouts layouts = Layouts::usual;
};

/// Result of a search, for requests or for sessions.
struct PlanFound {
  std::vector<SloRun> best;     ///< runs, one of each shape, most load first
  std::vector<SloRun> nearest;  ///< where none meets the limits: the run that missed by least
  std::size_t shapes = 0;       ///< looked at ...
  std::size_t fit = 0;          ///< ... of which so many fit in memory
  std::size_t runs = 0;
  std::size_t before = 0;  ///< of these runs, those that the store held
  bool stopped = false;
};

/// Result of a search for requests. Of the best there are at most five; of each kind, together and
/// apart, the best is among them. It sustains its load under every draw, unless that is less than
/// half of what the best of all sustains. The others ran under one.
struct Plan : PlanFound {
  /// Requests/s that each of the best sustains where every expert is as likely as any other.
  /// Nothing where that was not tried (not the best of its kind, recorded routing, no experts), or
  /// where it sustains nothing near its load.
  std::vector<std::optional<double>> uniform;
  /// Least latency of a request that is alone, and on which shape; where there is a limit.
  struct Least {
    double seconds = 0;
    std::string shape;
  };
  std::optional<Least> least_ttft{}, least_tpot{};
};

/// Hooks that the search calls while it works: one stage after the other.
struct PlanHooks {
  std::function<bool()> stop = [] { return false; };
  /// `stage`: its name and what is best so far, after "3 of 12". Some searches leave stages out,
  /// and some go back to one.
  std::function<void(const std::string& stage)> begins = [](auto&) {};
  std::function<void(std::size_t done, std::size_t total)> bounded = [](auto, auto) {};
  std::function<void(std::size_t runs)> ran = [](auto) {};
};

/// Looks for the deployments with the most requests/s under the SLO, among all shapes. A shape is
/// given up when memory or the time of its steps rules it out, the latter by a wide margin. It is
/// also given up when a short run under more load than the best sustains misses the SLO. Then come
/// copies and routing, chunks and limits of the best three. Last are long runs of what is left, and
/// of the best of either kind under several seeds, for the load that lasts. Short runs draw MoE
/// layers from similar steps (fidelity "sampled"), long ones only where pricing each token would
/// take too long. Same question, same answer on any number of threads, and after any number of
/// stops. Throws ConfigError if nothing fits or the store is another's.
Plan make_plan(const PlanSearch&, TraceLibrary&, Remarks&, const PlanHooks&);

/// Choices of plan in the deployment that ran.
inline PlannedDeployment choices_of(const SloRun& run) { return choices_in(run.config); }
/// Run that a search answers with: the best, or the nearest where none meets the limits.
inline const SloRun& first_of(const PlanFound& found) {
  return found.best.empty() ? found.nearest.front() : found.best.front();
}
/// Ratio of a load to the next lower one that the search tells apart: loads are 1.6 % apart.
inline constexpr double load_step = 1.0165;
/// "16 x h200".
inline std::string gpus_text(const ClusterSpec& cluster) {
  return fmt::format("{} x {}", cluster.gpus(), cluster.gpu.name);
}

/// Limit of a deployment. It is what is missed first under more load ("capacity", "TPOT", "TTFT").
/// It is the latency that is nearest to its limit where no more load was tried.
std::string limit_text(const SloRun&);
/// Part of the steps that takes most of their time, and what bounds it.
struct BusyPart {
  std::string part;        ///< "experts"
  double share = 0;        ///< of the time
  std::string bound_by{};  ///< "hbm"
};
/// Nothing where the run does not say.
std::optional<BusyPart> busy_part(const SloRun&);
/// The same as "experts 41 % (hbm)"; "" where the run does not say.
std::string busy_text(const SloRun&);

}  // namespace moesim
