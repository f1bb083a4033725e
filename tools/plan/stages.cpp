// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/stages.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tools/sweep/store.hpp"

namespace moesim {

Json sampled(Json deployment) {
  if (!deployment.contains("speculative")) deployment["fidelity"] = "sampled";
  return deployment;
}

std::vector<Json> places_of(const Json& base, const std::vector<PlannedDeployment>& planned) {
  std::vector<Json> places;
  for (const PlannedDeployment& each : planned) places.push_back(sampled(with_choices(base, each)));
  return places;
}

std::size_t runs_in(const std::filesystem::path& store) {
  std::error_code none;
  if (std::filesystem::file_size(store, none) == 0 || none) return 0;
  const auto rows = Store::open(store).rows();
  // Of runs that were given up the store keeps that they missed.
  return static_cast<std::size_t>(std::ranges::count_if(rows, [](const StoreRow& row) {
    return row.status != PointStatus::pending || !row.report.empty();
  }));
}

SloSearch stage_search(const PlanSearch& search, Json document, std::vector<Json> places,
                       const std::optional<RateLadder>& ladder) {
  return {.document = std::move(document),
          .base_file = search.folder / experiment_file,
          .places = std::move(places),
          .ladder = ladder,
          .attainment = search.attainment,
          .recheck = false,
          .proof = Proof::attained,
          .spot_checks = false,
          .give_up = true,
          .store = search.store};
}

SloHooks begin_stage(const PlanHooks& hooks, const std::vector<std::string_view>& stages,
                     std::string_view stage, const std::string& best, std::size_t before) {
  const auto place = std::ranges::find(stages, stage);
  check(place != stages.end(), "a stage that is not in the list of stages");
  hooks.begins(fmt::format("{} of {}: {}{}", place - stages.begin() + 1, stages.size(), stage,
                           best.empty() ? "" : fmt::format(" (best so far {})", best)));
  return {.stop = hooks.stop,
          .bounded = hooks.bounded,
          .ran = [ran = hooks.ran, before](std::size_t runs) { ran(before + runs); }};
}

void keep_nearest(std::vector<SloRun>& nearest, const SloResult& result) {
  if (result.nearest.empty()) return;
  const auto excess = [](const std::vector<SloRun>& miss) { return miss.front().trial.excess; };
  if (nearest.empty() || excess(result.nearest) < excess(nearest)) nearest = result.nearest;
}

void join_best(std::vector<SloRun>& best, std::vector<SloRun> found) {
  std::ranges::move(found, std::back_inserter(best));
  std::ranges::stable_sort(best, [](const SloRun& a, const SloRun& b) {
    return std::pair(a.per_second(), a.trial.attainment) >
           std::pair(b.per_second(), b.trial.attainment);
  });
  // Runs that were found first have fewer settings of their own.
  std::set<std::string> seen;
  std::erase_if(best,
                [&](const SloRun& run) { return !seen.insert(choices_of(run).shape()).second; });
}

}  // namespace moesim
