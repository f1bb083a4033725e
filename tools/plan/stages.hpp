// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/plan/plan.hpp"

namespace moesim {

/// The deployment with MoE layers drawn from similar steps. With drafts, which that does not model,
/// it stays as it is.
Json sampled(Json deployment);

/// Shapes as experiments, as sampled() makes them.
std::vector<Json> places_of(const Json& base, const std::vector<PlannedDeployment>&);

/// Number of runs that a store holds, those that were given up too; 0 where there is no store.
std::size_t runs_in(const std::filesystem::path& store);

/// First run of the best that has pools (`apart`), or none of its own.
std::vector<SloRun>::const_iterator best_of_kind(const std::vector<SloRun>&, bool apart);

/// Deployments and the loads by which their long runs begin.
struct LongRuns {
  std::vector<Json> places{};
  std::vector<double> loads{};

  void add(Json place, double load) {
    places.push_back(std::move(place));
    loads.push_back(load);
  }
};

/// Stages of a search of `plan`, for requests (plan.cpp) or for sessions (session_plan.cpp): what
/// they run, and the best so far.
class Stages {
 protected:
  /// `axes` are pointers to what the points of the store differ in.
  Stages(const PlanSearch&, PlanFound&, TraceLibrary&, Remarks&, const PlanHooks&,
         std::vector<std::string> axes);
  ~Stages() = default;

  /// Names of all stages, in order.
  virtual std::vector<std::string_view> stages() const = 0;
  /// The search of one stage over some places: short runs that end when they cannot meet the
  /// limits. How their loads are set is the caller's.
  SloSearch stage(std::vector<Json> places) const;
  /// Tells that a stage begins, its place among all, and what is best so far. Returns the hooks of
  /// its runs.
  SloHooks begin(const std::string& stage) const;
  SloResult run(const SloSearch&, const std::string& stage);
  SloResult run(const SloSearch&, const SloHooks&);
  /// Runs for confirm_slo(), of which the runs that missed are not kept.
  SloResult confirm(const SloSearch&, std::span<const double> loads, const std::string& stage);
  /// Keeps the run that missed by least.
  void keep_nearest(const SloResult&);
  /// Deployments, of those given, that the question's engine can start.
  std::vector<PlannedDeployment> that_start(std::vector<PlannedDeployment>) const;
  /// Shapes of groups that do both phases, and pools of bounded ones, that the engine can start.
  std::vector<PlannedDeployment> shapes_to_try() const;
  std::vector<PlannedDeployment> pools_to_try(const std::vector<BoundedShape>&) const;
  /// Each place under so many seeds, from the question's on.
  std::vector<Json> drawn(const std::vector<Json>& places, std::size_t seeds) const;
  /// Adds runs to the leaders: most load first, of equal loads what meets the limits for more, then
  /// what was found first. There is one of each shape.
  void add(std::vector<SloRun> found);
  bool is_over() const { return leaders_.empty() || found_.stopped; }
  /// Writes what was found.
  void finish();

  const PlanSearch& search_;
  PlanFound& found_;
  TraceLibrary& traces_;
  Remarks& remarks_;
  const PlanHooks& hooks_;
  std::optional<RateLadder> ladder_;
  std::vector<SloRun> leaders_;
  bool sessions_ = false;

 private:
  void count(const SloResult&);

  Json document_;
};

}  // namespace moesim
