// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/slo_runs.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "sim/report/slo_watch.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/slo_trial.hpp"

namespace moesim {

namespace {

struct Dropped {};

// Ends a run that is no longer wanted.
class StopWatch : public RunObserver {
 public:
  explicit StopWatch(const std::stop_token& stop) : stop_(stop) {}
  void event(const EventSeen&) override {
    if (stop_.stop_requested()) throw Dropped();
  }

 private:
  const std::stop_token& stop_;
};

}  // namespace

SloRuns::SloRuns(const SloSearch& search, TraceLibrary& traces, Remarks& remarks,
                 const SloHooks& hooks)
    : search_(search),
      points_(search.base_file.parent_path()),
      traces_(traces),
      remarks_(remarks),
      hooks_(hooks) {
  if (!search.store.empty()) open_store();
}

double SloRuns::load_at(int rung) const {
  const double rate = ladder_->rate(rung);
  // Beyond a ladder of sessions rungs are no whole numbers.
  return search_.sessions ? std::max(1.0, std::round(rate)) : rate;
}

Experiment SloRuns::load(const Json& config) const {
  return remarks_.say_of(load_experiment(ConfigNode(config, search_.base_file), traces_));
}

void SloRuns::make_trace(const Json& config) {
  const Json* gating = find_value(config, "/workload/gating");
  const Json* seed = find_value(config, "/seed");
  std::string key = gating == nullptr ? "" : gating->dump();
  if (seed != nullptr) key += seed->dump();
  if (traced_.contains(key)) return;
  try {
    load(config);
    traced_.insert(std::move(key));
  } catch (const ConfigError&) {  // its run, or its bound, says so
  }
}

bool SloRuns::was_run(const SweepPoint& point) const {
  return known_.contains(point.config_hash) || given_up_.contains(point.config_hash);
}

void SloRuns::make_trace_of(const SweepPoint& run) {
  if (!was_run(run)) make_trace(run.config);
}

double SloRuns::length_of(TunePoint point) const {
  const Json config = config_of(point);
  const Json* number = find_value(config, "/workload/requests");
  return number != nullptr && number->is_number() ? number->get<double>() : 0;
}

SweepPoint SloRuns::point_of(TunePoint point) { return points_.of(config_of(point)); }

std::optional<std::vector<Trial>> SloRuns::operator()(std::span<const TunePoint> points,
                                                      bool whether) {
  if (stopped()) return std::nullopt;
  std::vector<SweepPoint> configs;
  for (const TunePoint point : points) make_trace_of(configs.emplace_back(point_of(point)));
  const auto least = whether ? std::optional(least_attainment()) : std::nullopt;
  std::vector<Outcome> outcomes(points.size());
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::size_t i) { return length_of(points[i]); });
  std::atomic<std::size_t> next = 0;
  tbb::parallel_for(std::size_t{0}, points.size(), [&](std::size_t) {
    const std::size_t i = order[next++];
    tbb::this_task_arena::isolate([&] { outcomes[i] = *run(configs[i], least); });
  });
  return keep(points, outcomes);
}

std::optional<SloRuns::Outcome> SloRuns::run(const SweepPoint& point, std::optional<double> least,
                                             const std::stop_token& stop) const {
  if (!search_.give_up) least.reset();
  if (const auto known = known_.find(point.config_hash); known != known_.end())
    return Outcome{point, known->second, {}, true};
  const auto before = given_up_.find(point.config_hash);
  if (least && before != given_up_.end() && before->second.asked <= *least)
    return Outcome{point, {}, before->second, true};
  Outcome outcome{point, {point.config_hash, point.config.dump(), PointStatus::done, "", ""}};
  try {
    Experiment experiment = load(point.config);
    for (Deployment& pool : experiment.pools) {
      pool.spot_checks = search_.spot_checks;
      pool.few_samples = search_.proof == Proof::attained;
    }
    outcome.row.report = report_of(experiment, least, stop);
  } catch (const ConfigError& error) {
    outcome.row.status = PointStatus::infeasible;
    outcome.row.error = error.what();
  } catch (const SloMissed& missed) {
    outcome.missed = {missed.attained, *least};
    outcome.row.status = PointStatus::pending;
    outcome.row.report =
        Json{{"given_up", {{"attained", missed.attained}, {"asked", *least}}}}.dump();
  } catch (const Dropped&) {
    return std::nullopt;
  }
  return outcome;
}

std::string SloRuns::report_of(const Experiment& experiment, std::optional<double> least,
                               const std::stop_token& stop) const {
  StopWatch stops(stop);
  std::vector<RunObserver*> observers;
  if (stop.stop_possible()) observers.push_back(&stops);
  // Short runs of requests begin with nothing in flight. Sessions have caches to fill.
  const bool from_start = search_.proof == Proof::attained && !search_.sessions;
  std::optional<SloWatch> watch;
  if (least) observers.push_back(&watch.emplace(experiment, *least, from_start));
  return moesim::run(experiment, {}, observers).document().dump();
}

std::vector<Trial> SloRuns::keep(std::span<const TunePoint> points, std::span<Outcome> outcomes) {
  std::vector<StoreRow> fresh;
  std::vector<SweepPoint> of;
  for (const Outcome& outcome : outcomes) {
    if (outcome.before) {
      ++resumed_;
      continue;
    }
    fresh.push_back(outcome.row);
    of.push_back(outcome.of);
  }
  if (store_ && !fresh.empty()) store_->record(fresh, of);
  std::vector<Trial> trials;
  for (std::size_t i = 0; i < points.size(); ++i) trials.push_back(note(points[i], outcomes[i]));
  done_ += points.size();
  hooks_.ran(done_);
  return trials;
}

void SloRuns::write_into(SloResult& result) const {
  for (const TuneResult::Found& found : result.search.found) result.found.push_back(of(found));
  if (result.search.nearest) result.nearest.push_back(of(*result.search.nearest));
  result.resumed = resumed_;
}

SloRun SloRuns::of(const TuneResult::Found& found) const {
  const StoreRow& row = runs_.at(found.point);
  return {found.point.place, load_text(load_at(found.point.rung)), found.trial,
          Json::parse(row.config), Json::parse(row.report)};
}

std::string SloRuns::load_text(double load) const {
  return fmt::format("{}{}", load, search_.sessions ? " sessions" : " /s");
}

const Json& SloRuns::place_of(TunePoint point) const {
  return search_.places[point.place % search_.places.size()];
}

Json SloRuns::config_of(TunePoint point) const {
  Json config = place_of(point);
  const double rate = load_at(point.rung);
  if (search_.set_load) {
    search_.set_load(config, load_text(rate), rate);
  } else if (search_.sessions) {
    config[Json::json_pointer(lanes_pointer)] = static_cast<std::int64_t>(rate);
  } else {
    config[Json::json_pointer(rate_pointer)] = load_text(rate);
  }
  if (point.place >= search_.places.size()) search_.lengthen(config, rate);
  return config;
}

Trial SloRuns::note(TunePoint point, Outcome& outcome) {
  const double rate = load_at(point.rung);
  if (outcome.missed) {
    const double attained = outcome.missed->attained;
    return {.goodput = rate * attained,
            .attainment = attained,
            .excess = 2 - attained,
            .given_up = true};
  }
  StoreRow& row = outcome.row;
  const Json report = row.report.empty() ? Json() : Json::parse(row.report);
  const Trial trial = trial_of(place_of(point), report, rate, search_);
  Json kept;  // what is printed
  for (const char* key : {"metrics", "energy", "measurement", "breakdown", "sessions", "turns"}) {
    if (report.contains(key)) kept[key] = report.at(key);
  }
  for (const char* value : {"active_experts_mean", "uniform_experts_mean"}) {
    const std::string pointer = fmt::format("/experts/by_step_kind/decode/{}", value);
    if (const Json* found = find_value(report, pointer)) kept[Json::json_pointer(pointer)] = *found;
  }
  row.report = kept.dump();
  runs_.emplace(point, std::move(row));
  return trial;
}

void SloRuns::open_store() {
  std::error_code none;
  std::vector<SweepPoint> points;
  const auto size = std::filesystem::file_size(search_.store, none);
  if (!none && size > 0) {
    const Store before = Store::open(search_.store);
    const auto rows = before.rows();
    const bool same = before.sweep() == search_.document.dump();
    // A question that could not be answered blocks no other.
    if (!same && std::ranges::none_of(
                     rows, [](const StoreRow& row) { return row.status == PointStatus::done; })) {
      std::filesystem::remove(search_.store, none);
      store_.emplace(Store::open_for(search_.store, search_.document, points));
      return;
    }
    if (!same) {
      throw ConfigError("{}: holds the runs of another question; name another file (-o)",
                        search_.store.string());
    }
    for (const StoreRow& row : rows) {
      points.push_back({row.config_hash, Json::parse(row.config)});
      if (row.status == PointStatus::done) known_.emplace(row.config_hash, row);
      if (row.status != PointStatus::pending || row.report.empty()) continue;
      const Json given_up = Json::parse(row.report).at("given_up");
      given_up_.emplace(row.config_hash, GivenUp{given_up.at("attained"), given_up.at("asked")});
    }
  }
  store_.emplace(Store::open_for(search_.store, search_.document, points));
}

}  // namespace moesim
