// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/slo_search.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "sim/report/metric_catalogue.hpp"
#include "sim/report/slo_watch.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/nearest_refusal.hpp"
#include "tools/sweep/slo_bound.hpp"
#include "tools/sweep/store.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

struct Limit {
  const char* name;
  const Metric* metric;
  std::string_view key;
};
constexpr Limit limits[] = {{"TPOT", &metric("p90_tpot_ms"), "tpot"},
                            {"TTFT", &metric("p90_ttft_ms"), "ttft"},
                            {"E2E", &metric("p90_e2el_ms"), "e2el"}};

std::optional<double> number_at(const Json& report, const std::string& pointer) {
  const Json* value = find_value(report, pointer);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

std::optional<double> number_of(const Json& report, const Metric& metric) {
  return number_at(report, std::string(metric.pointer));
}

std::optional<double> limit_ms(const Json& config, std::string_view key) {
  const Json* value = find_value(config, fmt::format("/slo/{}", key));
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return 1000 * parse_quantity<Seconds>(value->get<std::string>()).count();
}

std::string state_in(const Json& report) {
  const Json* state = find_value(report, std::string(state_pointer));
  return state == nullptr ? "" : state->get<std::string>();
}

// Whether the time to the first token grows so fast that it will miss its limit in a run twice as
// long. No further: queues near the capacity take tens of seconds to reach their mean, and then
// stay.
bool grows_beyond(const Json& report, const std::optional<double>& limit_ms) {
  constexpr double later = 1;  // run lengths from now
  const auto growth = number_at(report, "/measurement/ttft_growth");
  const auto p90 = number_of(report, metric("p90_ttft_ms"));
  const auto seconds = number_at(report, "/metrics/duration_s");
  if (!growth || !p90 || !seconds || !limit_ms) return false;
  return *growth > 0 && *p90 + 1e3 * *growth * later * *seconds > *limit_ms;
}

// A limit on sessions, and where a report has what it limits; seconds are `per_second` of its unit.
struct SessionLimit {
  const char* name;
  std::optional<Seconds> SessionLimits::*most;
  const char* pointer;
  double per_second;
};
constexpr SessionLimit session_limits[] = {
    {"TTFT of first turns", &SessionLimits::first_ttft, "/turns/first/p90_ttft_ms", 1e3},
    {"TTFT of later turns", &SessionLimits::later_ttft, "/turns/later/p90_ttft_ms", 1e3},
    {"time of a session", &SessionLimits::completion, "/sessions/p90_completion_s", 1}};

// A latency of a run over its limit, above 1 where it is missed.
struct Excess {
  const char* name;
  double over;
};

// Of the p90s that have a limit. Turns of a kind that the run has none of are in time.
std::vector<Excess> excesses_of(const Json& config, const Json& report,
                                const SessionLimits& of_sessions) {
  std::vector<Excess> all;
  for (const Limit& limit : limits) {
    const auto most = limit_ms(config, limit.key);
    const auto found = number_of(report, *limit.metric);
    if (most && found) all.push_back({limit.name, *found / *most});
  }
  for (const SessionLimit& limit : session_limits) {
    const auto most = of_sessions.*limit.most;
    const auto found = number_at(report, limit.pointer);
    if (most && found) all.push_back({limit.name, *found / (limit.per_second * most->count())});
    // Sessions of which none ended in the run took longer than the run.
    if (of_sessions.completion && limit.most == &SessionLimits::completion && !found)
      all.push_back({limit.name, std::numeric_limits<double>::infinity()});
  }
  return all;
}

// Whether the limits on sessions are kept.
bool sessions_in_time(const Json& report, const SessionLimits& of_sessions) {
  return std::ranges::none_of(excesses_of({}, report, of_sessions),
                              [](const Excess& excess) { return excess.over > 1; });
}

// What a run shows beside its attainment.
bool shows(const Json& config, const Json& report, Proof proof, double attainment) {
  const std::string state = state_in(report);
  if (proof == Proof::attained) {
    // What is measured of an unsteady run may be its end alone, when few are left.
    const auto whole = number_at(report, "/measurement/attainment/whole_run");
    return state != "overloaded" && (state == "stable" || !whole || *whole >= attainment);
  }
  if (state != "stable") return false;
  if (proof == Proof::steady) return true;
  const Json* along = find_value(report, "/measurement/attainment");
  if (along == nullptr) return false;
  constexpr double by_chance_below = 2;  // standard errors
  const double error = along->at("standard_error");
  return along->at("second_half").get<double>() + by_chance_below * error >= attainment &&
         !grows_beyond(report, limit_ms(config, "ttft"));
}

// A run's goodput, at most what arrives: while a short run drains, more requests end in the
// measured time than came in it, and the search would take that for merit. The goodput of sessions
// are those that are alive, by the share of their turns that met the SLO.
Trial trial_of(const Json& config, const Json& report, double rate, const SloSearch& search) {
  const auto met = number_of(report, metric("slo_attainment"));
  const auto throughput = number_of(report, metric("request_throughput"));
  Trial trial;
  trial.excess = std::numeric_limits<double>::infinity();
  if (!throughput || (!met && !search.sessions)) return trial;
  trial.attainment = met.value_or(1);
  trial.goodput = (search.sessions ? rate : std::min(*throughput, rate)) * trial.attainment;
  trial.lasts = shows(config, report, search.proof, search.attainment);
  trial.meets = trial.lasts && trial.attainment >= search.attainment &&
                sessions_in_time(report, search.session_limits);
  if (trial.meets && search.by_load) trial.goodput = rate;
  trial.excess = 0;
  for (const Excess& excess : excesses_of(config, report, search.session_limits))
    trial.excess = std::max(trial.excess, excess.over);
  return trial;
}

// What a run that misses the SLO lacks: where a backlog grows, capacity; else the latency that
// fewest requests keep.
std::string lack_of(const Json& report) {
  if (state_in(report) == "overloaded") return "capacity";
  std::string name;
  double least = 2;
  for (const Limit& limit : limits) {
    const auto met = number_at(report, fmt::format("/metrics/attainment/{}", limit.key));
    if (!met || *met >= least) continue;
    least = *met;
    name = limit.name;
  }
  return name;
}

// By how much a draw may miss the attainment that all draws have in their mean.
constexpr double by_chance = .03;

// An order of runs in which no core is left with a long one at the end.
std::vector<std::size_t> longest_first(std::span<const SweepPoint> points) {
  const auto requests = [&](std::size_t i) {
    const Json* number = find_value(points[i].config, "/workload/requests");
    return number != nullptr && number->is_number() ? number->get<double>() : 0;
  };
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, requests);
  return order;
}

class Runs {
 public:
  Runs(const SloSearch& search, TraceLibrary& traces, Remarks& remarks, const SloHooks& hooks)
      : search_(search),
        points_(search.base_file.parent_path()),
        traces_(traces),
        remarks_(remarks),
        hooks_(hooks) {
    if (!search.store.empty()) open_store();
  }
  void climb(const RateLadder& ladder) { ladder_ = &ladder; }
  // Beyond a ladder of sessions rungs are no whole numbers.
  double load_at(int rung) const {
    const double rate = ladder_->rate(rung);
    return search_.sessions ? std::max(1.0, std::round(rate)) : rate;
  }

  Experiment load(const Json& config) {
    return remarks_.say_of(load_experiment(ConfigNode(config, search_.base_file), traces_));
  }

  // Makes the trace that a config needs, with all cores: those that wait for the same one side by
  // side would leave that to one of them.
  void make_trace(const Json& config) {
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

  // Runs points. Where only `whether` they meet the SLO is asked, those that miss may be given up.
  std::optional<std::vector<Trial>> operator()(std::span<const TunePoint> points, bool whether) {
    return run_all(points, whether ? std::optional(least_attainment()) : std::nullopt);
  }

  // Runs points; those that cannot attain `least` may be given up.
  std::optional<std::vector<Trial>> run_all(std::span<const TunePoint> points,
                                            std::optional<double> least) {
    if (hooks_.stop()) return std::nullopt;
    if (!search_.give_up) least.reset();
    std::vector<SweepPoint> configs;
    for (const TunePoint point : points) {
      configs.push_back(points_.of(config_of(point)));
    }
    for (const SweepPoint& point : configs) {
      if (!known_.contains(point.config_hash) && !given_up_.contains(point.config_hash))
        make_trace(point.config);
    }
    std::vector<Outcome> outcomes(points.size());
    const std::vector<std::size_t> order = longest_first(configs);
    std::atomic<std::size_t> next = 0;
    tbb::parallel_for(std::size_t{0}, points.size(), [&](std::size_t) {
      const std::size_t i = order[next++];
      tbb::this_task_arena::isolate([&] { outcomes[i] = run(configs[i], least); });
    });
    if (store_) record(configs, outcomes);
    std::vector<Trial> trials;
    for (std::size_t i = 0; i < points.size(); ++i) trials.push_back(note(points[i], outcomes[i]));
    done_ += points.size();
    hooks_.ran(done_);
    return trials;
  }

  // What the search found, with its runs.
  void write_into(SloResult& result) const {
    for (const TuneResult::Found& found : result.search.found) result.found.push_back(of(found));
    if (result.search.nearest) result.nearest.push_back(of(*result.search.nearest));
    result.best_report = best_report_;
    result.resumed = resumed_;
  }

  // A run that was made, and what it showed.
  SloRun of(const TuneResult::Found& found) const {
    const StoreRow& row = runs_.at(found.point);
    return {found.point.place, load_text(load_at(found.point.rung)), found.trial,
            Json::parse(row.config), Json::parse(row.report)};
  }
  // What a run that misses what is asked lacks: where a backlog grows, capacity; else the latency
  // that fewest requests keep. Of sessions the one that is furthest beyond its limit.
  std::string lack_of(const SloRun& run) const {
    if (!search_.sessions || state_in(run.report) == "overloaded")
      return moesim::lack_of(run.report);
    const auto all = excesses_of(run.config, run.report, search_.session_limits);
    const auto most = std::ranges::max_element(all, {}, &Excess::over);
    return most == all.end() ? "" : most->name;
  }

 private:
  // A run that was given up: what it had attained, and below what it would have stayed.
  struct GivenUp {
    double attained = 0, asked = 0;
  };
  struct Outcome {
    StoreRow row;
    std::optional<GivenUp> missed{};  // the row says that alone
    bool before = false;              // of the store
  };

  std::string load_text(double load) const {
    return fmt::format("{}{}", load, search_.sessions ? " sessions" : " /s");
  }

  Json config_of(TunePoint point) const {
    Json config = search_.places[point.place];
    const double rate = load_at(point.rung);
    if (search_.set_load) {
      search_.set_load(config, load_text(rate), rate);
    } else if (search_.sessions) {
      config[Json::json_pointer(lanes_pointer)] = static_cast<std::int64_t>(rate);
    } else {
      config[Json::json_pointer(rate_pointer)] = load_text(rate);
    }
    return config;
  }

  // A run of the store, or one now.
  Outcome run(const SweepPoint& point, std::optional<double> least) {
    if (const auto known = known_.find(point.config_hash); known != known_.end())
      return {known->second, {}, true};
    const auto before = given_up_.find(point.config_hash);
    if (least && before != given_up_.end() && before->second.asked <= *least)
      return {{}, before->second, true};
    Outcome outcome{{point.config_hash, point.config.dump(), PointStatus::done, "", ""}};
    try {
      Experiment experiment = load(point.config);
      for (Deployment& pool : experiment.pools) {
        pool.spot_checks = search_.spot_checks;
        pool.few_samples = search_.proof == Proof::attained;
      }
      outcome.row.report = report_of(experiment, least);
    } catch (const ConfigError& error) {
      outcome.row.status = PointStatus::infeasible;
      outcome.row.error = error.what();
    } catch (const SloMissed& missed) {
      outcome.missed = {missed.attained, *least};
      outcome.row.status = PointStatus::pending;
      outcome.row.report =
          Json{{"given_up", {{"attained", missed.attained}, {"asked", *least}}}}.dump();
    }
    return outcome;
  }

  std::string report_of(const Experiment& experiment, std::optional<double> least) const {
    if (!least) return moesim::run(experiment).document().dump();
    // Short runs of requests begin with nothing in flight. Sessions have caches to fill.
    const bool from_start = search_.proof == Proof::attained && !search_.sessions;
    SloWatch watch(experiment, *least, from_start);
    const std::array<RunObserver*, 1> observers{&watch};
    return moesim::run(experiment, {}, observers).document().dump();
  }

  // Runs that stay below are given up.
  double least_attainment() const {
    return search_.attainment - (search_.draws > 1 ? by_chance : 0);
  }

  Trial note(TunePoint point, Outcome& outcome) {
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
    const Trial trial = trial_of(search_.places[point.place], report, rate, search_);
    // The best run keeps its whole report, the many others only what is printed.
    if (trial.meets && trial.goodput > best_goodput_) {
      best_goodput_ = trial.goodput;
      best_report_ = std::move(row.report);
    }
    Json kept;
    for (const char* key : {"metrics", "energy", "measurement", "breakdown", "sessions", "turns"}) {
      if (report.contains(key)) kept[key] = report.at(key);
    }
    for (const char* value : {"active_experts_mean", "uniform_experts_mean"}) {
      const std::string pointer = fmt::format("/experts/by_step_kind/decode/{}", value);
      if (const Json* found = find_value(report, pointer))
        kept[Json::json_pointer(pointer)] = *found;
    }
    row.report = kept.dump();
    runs_.emplace(point, std::move(row));
    return trial;
  }

  void open_store() {
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
        throw ConfigError(
            fmt::format("{}: holds the runs of another question; name another file (-o)",
                        search_.store.string()));
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

  void record(const std::vector<SweepPoint>& points, const std::vector<Outcome>& outcomes) {
    std::vector<StoreRow> fresh;
    for (const Outcome& outcome : outcomes) {
      outcome.before ? void(++resumed_) : fresh.push_back(outcome.row);
    }
    if (!fresh.empty()) store_->record(fresh, points);
  }

  const SloSearch& search_;
  PointMaker points_;
  TraceLibrary& traces_;
  Remarks& remarks_;
  const SloHooks& hooks_;
  const RateLadder* ladder_ = nullptr;
  std::optional<Store> store_;
  std::map<std::string, StoreRow> known_;    // done before
  std::map<std::string, GivenUp> given_up_;  // before
  std::set<std::string> traced_;             // gatings and seeds whose traces are made
  std::map<TunePoint, StoreRow> runs_;
  std::size_t done_ = 0, resumed_ = 0;
  double best_goodput_ = 0;
  std::string best_report_;
};

// Bounds the places of which no bound is known yet; none of those that cannot run.
std::vector<std::optional<TuneBound>> bounds_of(const SloSearch& search, Runs& runs,
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
  std::mutex mutex;
  std::size_t bounded = 0;
  tbb::parallel_for(known, search.places.size(), [&](std::size_t place) {
    if (hooks.stop()) return;
    tbb::this_task_arena::isolate([&] {
      try {
        const Experiment experiment = runs.load(search.places[place]);
        bounds[place] = search.sessions ? TuneBound{.goodput = beyond_ladder * highest_load}
                                        : bound_of(experiment, search.attainment,
                                                   {search.mixed_steps, search.worth});
      } catch (const ConfigError& error) {
        const std::lock_guard lock(mutex);
        refused.add(place, error);
      }
    });
    const std::lock_guard lock(mutex);
    hooks.bounded(++bounded, search.places.size());
  });
  return bounds;
}

}  // namespace

SloResult search_slo(const SloSearch& search, TraceLibrary& traces, Remarks& remarks,
                     const SloHooks& hooks) {
  Runs runs(search, traces, remarks, hooks);
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

namespace {

// Between which loads the heaviest one is that a deployment bears.
class Bracket {
 public:
  explicit Bracket(int rung) : rung_(rung), first_(rung) {}
  int rung() const { return rung_; }
  std::optional<int> met() const { return met_; }
  bool open() const {
    constexpr int furthest_down = 96, furthest_up = 32;
    if (met_ && missed_) return *missed_ - *met_ > 1;
    return rung_ >= first_ - furthest_down && rung_ <= first_ + furthest_up;
  }
  /// To the rung below the one that is met, to be asked for.
  void step_back() {
    missed_ = *met_;
    rung_ = --*met_;
  }
  void note(bool bears) {
    (bears ? met_ : missed_) = rung_;
    if (met_ && missed_) {
      rung_ = *met_ + (*missed_ - *met_) / 2;
    } else {
      rung_ += bears ? step_ : -step_;
      step_ *= 2;
    }
  }

 private:
  int rung_, first_, step_ = 1;
  std::optional<int> met_, missed_;
};

// Deployments that are run under ever other loads, all side by side.
class Confirmation {
 public:
  Confirmation(const SloSearch& search, std::span<const double> loads, Runs& runs)
      : draws_(search.draws),
        attainment_(search.attainment),
        tells_heavier_(search.tells_heavier),
        runs_(runs) {
    for (const double load : loads) brackets_.emplace_back(search.ladder->above(load) - 1);
  }

  TuneResult run() {
    while (std::ranges::any_of(brackets_, &Bracket::open) && !result_.stopped) {
      // Most loads that a deployment does not bear show so in the first draw.
      ask_open(0, 1);
      ask_open(1, draws_);
      for (std::size_t i = 0; i < brackets_.size(); ++i) {
        if (brackets_[i].open() && !result_.stopped) brackets_[i].note(bears(i, draws_));
      }
    }
    ask_whether_few();
    step_back();
    for (std::size_t i = 0; i < brackets_.size(); ++i) {
      if (brackets_[i].met()) result_.found.push_back(found(i, *brackets_[i].met()));
    }
    if (result_.found.empty() && !trials_.empty()) result_.nearest = nearest();
    result_.runs = trials_.size();
    return result_;
  }

  // How the i-th deployment fares beyond what it bears.
  std::optional<Heavier> heavier(std::size_t i) const {
    const int rung = *brackets_[i].met() + rungs_per_5_percent;
    const auto trial = trials_.find({i * draws_, rung});
    if (trial == trials_.end() || trial->second.given_up) return std::nullopt;
    // The least of the draws that were run to their end.
    auto least = trial;
    for (std::size_t draw = 1; draw < draws_; ++draw) {
      const auto other = trials_.find({i * draws_ + draw, rung});
      if (other != trials_.end() && !other->second.given_up &&
          other->second.attainment < least->second.attainment)
        least = other;
    }
    return Heavier{runs_.load_at(rung) / runs_.load_at(*brackets_[i].met()) - 1,
                   least->second.attainment,
                   runs_.lack_of(runs_.of({least->first, least->second}))};
  }

 private:
  TunePoint point(std::size_t i, std::size_t draw) const {
    return {i * draws_ + draw, brackets_[i].rung()};
  }
  // Whether the first draws all last, and as many requests as are asked for meet the SLO in their
  // mean. Of a few draws one may fall short by chance, but not the last, which may be the longest.
  bool bears(std::size_t i, std::size_t draws) const {
    double attained = 0;
    for (std::size_t draw = 0; draw < draws; ++draw) {
      const auto trial = trials_.find(point(i, draw));
      if (trial == trials_.end() || !trial->second.lasts) return false;
      attained += trial->second.attainment;
    }
    if (draws == draws_ && !trials_.at(point(i, draws - 1)).meets) return false;
    const double asked = attainment_ - (draws < draws_ ? by_chance : 0);
    return attained >= asked * static_cast<double>(draws);
  }

  // Draws from .. to of every deployment whose load is looked for, and that bears it in those
  // before.
  void ask_open(std::size_t from, std::size_t to) {
    std::vector<TunePoint> points;
    for (std::size_t i = 0; i < brackets_.size(); ++i) {
      if (!brackets_[i].open() || !bears(i, from)) continue;
      for (std::size_t draw = from; draw < to; ++draw) points.push_back(point(i, draw));
    }
    if (draws_ == 1) add_next(points);
    ask(std::move(points), Ask::whether);
  }

  // One run alone leaves a core idle: beside it the load that is asked for if this one is borne.
  void add_next(std::vector<TunePoint>& points) const {
    if (points.size() != 1) return;
    Bracket next = brackets_[points.front().place];
    next.note(true);
    if (next.open()) points.push_back({points.front().place, next.rung()});
  }

  TunePoint heavier_point(std::size_t i) const {
    return {i * draws_, *brackets_[i].met() + rungs_per_5_percent};
  }
  // Whether a run under no more than 5 % more load was served in time to few.
  bool was_few(std::size_t i) const {
    TunePoint point = heavier_point(i);
    for (; point.rung > *brackets_[i].met(); --point.rung) {
      const auto trial = trials_.find(point);
      if (trial == trials_.end() || trial->second.given_up) continue;
      if (trial->second.attainment < few) return true;
    }
    return false;
  }

  // Whether 5 % more load is served in time to few; runs end as soon as that is sure. Beside one
  // run alone the load that step_back() asks for.
  void ask_whether_few() {
    std::vector<TunePoint> points;
    for (std::size_t i = 0; i < brackets_.size(); ++i) {
      if (brackets_[i].met() && !was_few(i)) points.push_back(heavier_point(i));
    }
    if (points.size() == 1)
      points.push_back({points.front().place, points.front().rung - rungs_per_5_percent - 1});
    ask(std::move(points), Ask::whether_few);
  }

  // What deployments do under 5 % more load.
  void ask_heavier() {
    std::vector<TunePoint> points;
    for (std::size_t i = 0; i < brackets_.size(); ++i) {
      if (brackets_[i].met()) points.push_back(heavier_point(i));
    }
    ask(std::move(points), Ask::all);
  }

  // At the very edge of what can be served a queue grows so slowly that no run is long enough to
  // see it. Where a little more load is too much for the capacity, or served in time to few, the
  // answer is a rung below the edge. There the first draw is run; the others stay as at the edge,
  // which they bear.
  void step_back() {
    std::vector<TunePoint> points;
    std::vector<std::size_t> stepped;
    for (std::size_t i = 0; i < brackets_.size() && !result_.stopped; ++i) {
      if (!brackets_[i].met()) continue;
      const auto heavy = trials_.find(heavier_point(i));
      const bool given_up = heavy != trials_.end() && heavy->second.given_up;
      const std::optional<Heavier> beyond = heavier(i);
      const bool too_much = beyond && (beyond->attainment < few || beyond->binds == "capacity");
      if (!given_up && !too_much && !was_few(i)) continue;
      stepped.push_back(i);
      points.push_back({i * draws_, *brackets_[i].met() - 1});
      if (tells_heavier_)
        points.push_back({i * draws_, *brackets_[i].met() - 1 + rungs_per_5_percent});
    }
    ask(std::move(points), Ask::all);
    if (result_.stopped) return;
    for (const std::size_t i : stepped) {
      const Trial& lighter = trials_.at({i * draws_, *brackets_[i].met() - 1});
      if (!lighter.lasts || lighter.attainment < attainment_ - by_chance) continue;
      brackets_[i].step_back();
    }
    if (tells_heavier_) ask_heavier();
  }

  // What is asked of runs: all that they show, whether they meet the SLO, or whether few are served
  // in time. Where that is sure they need not go on to their end.
  enum class Ask { all, whether, whether_few };
  static constexpr double few = .5;

  // Runs what was not run yet, or not far enough.
  void ask(std::vector<TunePoint> points, Ask what) {
    std::erase_if(points, [&](TunePoint point) {
      const auto trial = trials_.find(point);
      return trial != trials_.end() && (what == Ask::whether || !trial->second.given_up);
    });
    if (points.empty() || result_.stopped) return;
    const auto trials =
        what == Ask::whether_few ? runs_.run_all(points, few) : runs_(points, what == Ask::whether);
    result_.stopped = !trials;
    if (!trials) return;
    for (std::size_t p = 0; p < points.size(); ++p)
      trials_.insert_or_assign(points[p], trials->at(p));
  }

  TuneResult::Found found(std::size_t i, int rung) const {
    TuneResult::Found run{{i * draws_, rung}, trials_.at({i * draws_, rung})};
    for (std::size_t draw = 1; draw < draws_; ++draw) {
      // Where the answer is a rung below the edge, the others were run at the edge.
      const auto here = trials_.find({i * draws_ + draw, rung});
      const Trial& other =
          here != trials_.end() ? here->second : trials_.at({i * draws_ + draw, rung + 1});
      run.trial.attainment += other.attainment;
      run.trial.goodput = std::min(run.trial.goodput, other.goodput);
    }
    run.trial.attainment /= static_cast<double>(draws_);
    return run;
  }

  // The run that missed by least, to its end.
  std::optional<TuneResult::Found> nearest() {
    const auto excess = [](const auto& run) { return run.second.excess; };
    const TunePoint least = std::ranges::min_element(trials_, {}, excess)->first;
    ask({least}, Ask::all);
    const Trial& trial = trials_.at(least);
    return trial.given_up ? std::nullopt : std::optional(TuneResult::Found{least, trial});
  }

  std::size_t draws_;
  double attainment_;
  bool tells_heavier_;
  Runs& runs_;
  std::vector<Bracket> brackets_;
  std::map<TunePoint, Trial> trials_;
  TuneResult result_;
};

}  // namespace

SloResult confirm_slo(const SloSearch& search, std::span<const double> loads, TraceLibrary& traces,
                      Remarks& remarks, const SloHooks& hooks) {
  check(search.ladder && loads.size() * search.draws == search.places.size(),
        "each deployment has a load");
  Runs runs(search, traces, remarks, hooks);
  runs.climb(*search.ladder);
  Confirmation confirmation(search, loads, runs);
  SloResult result;
  result.search = confirmation.run();
  runs.write_into(result);
  for (SloRun& run : result.found) {
    run.place /= search.draws;
    run.draws = search.draws;
    run.heavier = confirmation.heavier(run.place);
  }
  std::ranges::stable_sort(result.found, [](const SloRun& a, const SloRun& b) {
    return std::pair(a.per_second(), a.trial.attainment) >
           std::pair(b.per_second(), b.trial.attainment);
  });
  return result;
}

std::string state_of(const SloRun& run) { return state_in(run.report); }

std::string metric_text(const SloRun& run, const Metric& metric) {
  const auto value = number_of(run.report, metric);
  return value ? number_text(*value) : "-";
}

std::optional<double> margin_of(const SloRun& run, std::string_view limit) {
  const auto row = std::ranges::find(limits, limit, &Limit::key);
  const auto most = limit_ms(run.config, row->key);
  const auto found = number_of(run.report, *row->metric);
  return most && found ? std::optional(1 - *found / *most) : std::nullopt;
}

std::string latencies_text(const SloRun& run) {
  std::string text;
  for (const Limit& limit : limits) {
    const auto most = limit_ms(run.config, limit.key);
    const auto found = number_of(run.report, *limit.metric);
    if (!most) continue;
    text += fmt::format("{}{} {} ms (limit {} ms)", text.empty() ? "" : ", ", limit.name,
                        found ? number_text(*found) : "-", number_text(*most));
  }
  return text;
}

}  // namespace moesim
