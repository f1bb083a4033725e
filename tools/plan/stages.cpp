// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/stages.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tools/cli/table.hpp"
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
  return at(std::ranges::count_if(rows, [](const StoreRow& row) {
    return row.status != PointStatus::pending || !row.report.empty();
  }));
}

std::vector<SloRun>::const_iterator best_of_kind(const std::vector<SloRun>& runs, bool apart) {
  return std::ranges::find(runs, apart, [](const SloRun& run) { return choices_of(run).apart(); });
}

Stages::Stages(const PlanSearch& search, PlanFound& found, TraceLibrary& traces, Remarks& remarks,
               const PlanHooks& hooks, std::vector<std::string> axes)
    : search_(search),
      found_(found),
      traces_(traces),
      remarks_(remarks),
      hooks_(hooks),
      document_{{"base", search.base}, {"axes", Json::object()}} {
  for (const std::string& pointer : axes) document_["axes"][pointer] = Json::array();
  found_.before = runs_in(search.store);
}

SloSearch Stages::stage(std::vector<Json> places) const {
  return {.document = document_,
          .base_file = search_.folder / experiment_file,
          .places = std::move(places),
          .ladder = ladder_,
          .attainment = search_.attainment,
          .recheck = false,
          .proof = Proof::attained,
          .spot_checks = false,
          .give_up = true,
          .store = search_.store};
}

SloHooks Stages::begin(const std::string& stage) const {
  std::string best;
  if (!leaders_.empty()) {
    const SloRun& first = leaders_.front();
    const std::string load =
        sessions_ ? first.rate : number_text(first.per_second()) + " requests/s";
    best = fmt::format(" (best so far {}: {})", load, choices_of(first).shape());
  }
  const std::vector<std::string_view> all = stages();
  const auto place = std::ranges::find(all, std::string_view(stage));
  check(place != all.end(), "a stage that is not in the list of stages");
  hooks_.begins(fmt::format("{} of {}: {}{}", place - all.begin() + 1, all.size(), stage, best));
  return {
      .stop = hooks_.stop,
      .bounded = hooks_.bounded,
      .ran = [ran = hooks_.ran, before = found_.runs](std::size_t runs) { ran(before + runs); }};
}

void Stages::count(const SloResult& result) {
  found_.runs += result.search.runs;
  found_.stopped |= result.search.stopped;
}

SloResult Stages::run(const SloSearch& search, const std::string& stage) {
  return run(search, begin(stage));
}

SloResult Stages::run(const SloSearch& search, const SloHooks& hooks) {
  SloResult result = search_slo(search, traces_, remarks_, hooks);
  count(result);
  keep_nearest(result);
  return result;
}

SloResult Stages::confirm(const SloSearch& search, std::span<const double> loads,
                          const std::string& stage) {
  SloResult result = confirm_slo(search, loads, traces_, remarks_, begin(stage));
  count(result);
  return result;
}

void Stages::keep_nearest(const SloResult& result) {
  if (result.nearest.empty()) return;
  const auto excess = [](const std::vector<SloRun>& miss) { return miss.front().trial.excess; };
  std::vector<SloRun>& nearest = found_.nearest;
  if (nearest.empty() || excess(result.nearest) < excess(nearest)) nearest = result.nearest;
}

std::vector<PlannedDeployment> Stages::that_start(std::vector<PlannedDeployment> planned) const {
  return startable(std::move(planned), search_.base, search_.model, search_.precision,
                   search_.layouts);
}

std::vector<PlannedDeployment> Stages::shapes_to_try() const {
  return that_start(
      shapes(choices_in(search_.base), search_.model, search_.cluster, search_.layouts));
}

std::vector<PlannedDeployment> Stages::pools_to_try(
    const std::vector<BoundedShape>& bounded) const {
  return that_start(pools(bounded, search_.model, search_.cluster));
}

std::vector<Json> Stages::drawn(const std::vector<Json>& places, std::size_t seeds) const {
  const auto first = search_.base.at("seed").get<std::uint64_t>();
  std::vector<Json> drawn;
  for (const Json& place : places) {
    for (std::size_t draw = 0; draw < seeds; ++draw)
      drawn.emplace_back(place)["seed"] = first + draw;
  }
  return drawn;
}

void Stages::add(std::vector<SloRun> found) {
  std::ranges::move(found, std::back_inserter(leaders_));
  std::ranges::stable_sort(leaders_, [](const SloRun& a, const SloRun& b) {
    return std::pair(a.per_second(), a.trial.attainment) >
           std::pair(b.per_second(), b.trial.attainment);
  });
  // Runs that were found first have fewer settings of their own.
  std::set<std::string> seen;
  std::erase_if(leaders_,
                [&](const SloRun& run) { return !seen.insert(choices_of(run).shape()).second; });
}

void Stages::finish() {
  if (!leaders_.empty()) found_.nearest.clear();
  found_.best = std::move(leaders_);
}

}  // namespace moesim
