// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/slo_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "sim/report/metric_catalogue.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/store.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

// ---- what a place cannot exceed ----

// Routing of the step that is priced is a sample.
constexpr double slack = 1.05;

struct Lengths {
  double prompt = 0, output = 0;  // means
  double long_prompt = 0;         // the longest that has to meet the SLO
};

Lengths lengths_of(const Deployment& e, double attainment) {
  constexpr int sample = 512;
  const auto source = e.workload.make(e.seed, e.ranks());
  Lengths lengths;
  std::vector<double> prompts;
  for (int n = 0; n < sample; ++n) {
    const auto next = source->next();
    if (!next) break;
    prompts.push_back(next->request.prompt_tokens);
    lengths.prompt += next->request.prompt_tokens;
    lengths.output += next->request.output_tokens;
  }
  const auto count = static_cast<double>(prompts.size());
  lengths.prompt /= count;
  lengths.output /= count;
  std::sort(prompts.begin(), prompts.end());
  lengths.long_prompt = prompts[static_cast<std::size_t>((count - 1) * attainment)];
  return lengths;
}

// Tokens that a sequence emits in a decode step.
double tokens_per_step(const SpeculationPlan& plan) {
  double tokens = 1, held = 1;
  for (int i = 0; i < plan.tokens; ++i) tokens += held *= plan.acceptance;
  return tokens;
}

// The most of rate(batch, time) over batches of 1 .. largest whose steps keep the limit, and the
// time of a batch of one over it. A step's time rises with its batch, nearly in proportion but for
// what it takes at least: a straight line says where to look next.
template <class Time, class Rate>
TuneBound most_of(int largest, double limit, Time&& time_of, Rate&& rate) {
  constexpr double near = .98;  // of the limit is as good as at it
  const double alone = time_of(1);
  if (alone > slack * limit) return {0, alone / limit};
  int met = 1, missed = largest + 1;
  double at_met = alone, at_missed = 0, best = rate(1, alone);
  int looks = 0;
  for (int batch = largest; batch > met;) {
    const double time = time_of(batch);
    if (time <= slack * limit) {
      met = batch;
      at_met = time;
      best = std::max(best, rate(batch, time));
    } else {
      missed = batch;
      at_missed = time;
    }
    if (missed > largest || missed - met < 2 || at_met > near * slack * limit) break;
    // Batches padded to the sizes of CUDA graphs make stairs of it: halves now and then.
    const bool halve = ++looks % 3 == 0;
    const double way = halve ? .5 : (slack * limit - at_met) / (at_missed - at_met);
    batch = std::clamp(met + static_cast<int>(way * (missed - met)), met + 1, missed - 1);
  }
  return {best, alone / limit};
}

double limit_of(const Slo& slo) {
  return slo.tpot ? slo.tpot->count() : std::numeric_limits<double>::infinity();
}

// Where runs draw MoE layers from samples, a bound needs no more.
ExplainedStep priced_step(const Deployment& e, StepKind kind, int batch, int context, int prefill) {
  return e.sampled ? estimate_step(e, kind, batch, context, prefill)
                   : explain_step(e, kind, batch, context, prefill);
}

// Requests/s that decode steps alone allow: ranks b / (step(b) (n - 1)) for the largest batch b per
// rank that keeps the time between tokens, n tokens being generated per request, the first by
// prefill.
TuneBound decode_bound(const Deployment& e, const Slo& slo, const Lengths& lengths) {
  if (lengths.output <= 1) return {std::numeric_limits<double>::infinity(), 0};
  const auto context = static_cast<int>(lengths.prompt);
  const double emitted = tokens_per_step(e.speculation);
  const auto gap = [&](int batch) {
    return priced_step(e, StepKind::decode, batch, context, 0).cost.total.count() / emitted;
  };
  const auto rate = [&](int batch, double time) {
    return e.ranks() * batch / (time * (lengths.output - 1));
  };
  return most_of(most_sequences(e, context), limit_of(slo), gap, rate);
}

// A step's time. Prompts that share a step attend to their own tokens only: what one of as many
// tokens spends on attention beyond theirs is left out, and what the stages of a pipeline wait
// because its later tokens attend to more.
double step_seconds(const Deployment& e, StepKind kind, int batch, int context, int prefill,
                    double prompt) {
  const ExplainedStep step = priced_step(e, kind, batch, context, prefill);
  double seconds = step.cost.total.count();
  for (const ExplainedOperation& operation : step.operations) {
    if (prefill <= prompt) continue;
    if (operation.name == "attention_prefill")
      seconds -= operation.seconds * (1 - prompt / prefill);
    if (operation.name == "other_stages") seconds -= operation.seconds;
  }
  return seconds;
}

// Requests/s that prefill steps alone allow: ranks chunk / (step(chunk) prompt).
TuneBound prefill_bound(const Deployment& e, const Slo& slo, const Lengths& lengths) {
  const int prompt = std::max(1, static_cast<int>(lengths.prompt));
  const int chunk = e.scheduler->max_num_batched_tokens();
  const auto rate = [&](int tokens) {
    const double seconds = step_seconds(e, StepKind::prefill, 0, 0, tokens, lengths.prompt);
    return e.ranks() * tokens / (seconds * lengths.prompt);
  };
  double best = rate(std::min(chunk, prompt));
  if (chunk > prompt) best = std::max(best, rate(chunk));
  double excess = 0;
  if (slo.ttft) {
    const int tokens = std::clamp(static_cast<int>(lengths.long_prompt), 1, chunk);
    excess = step_seconds(e, StepKind::prefill, 0, 0, tokens, tokens) / slo.ttft->count();
  }
  return {excess > slack ? 0 : best, excess};
}

// Requests/s that a steady state allows in which every step holds the prompts and the decodes of
// its time, spread evenly over ranks: a batch of b decodes passes b / (n - 1) requests, whose
// prompts it computes beside them.
double steady_bound(const Deployment& e, const Lengths& lengths) {
  if (lengths.output <= 1 || e.prefix_caching) return std::numeric_limits<double>::infinity();
  const auto context = static_cast<int>(lengths.prompt + lengths.output / 2);
  const double emitted = tokens_per_step(e.speculation);
  const double prompt_per_decode = emitted * lengths.prompt / (lengths.output - 1);
  const int chunk = e.scheduler->max_num_batched_tokens();
  const auto prompts_of = [&](int batch) {
    return std::max(1, static_cast<int>(batch * prompt_per_decode));
  };
  const auto gap = [&](int batch) {
    return step_seconds(e, StepKind::mixed, batch, context, prompts_of(batch), lengths.prompt) /
           emitted;
  };
  const auto rate = [&](int batch, double time) {
    return e.ranks() * batch / (time * (lengths.output - 1));
  };
  const int fitting = static_cast<int>(chunk / (1 + prompt_per_decode));
  const int largest = std::max(1, std::min(most_sequences(e, context), fitting));
  const double limit = limit_of(e.slo);
  const TuneBound bound = most_of(largest, limit, gap, rate);
  // Where a batch of one misses the limit, fewer than one decode at a time, which is less.
  return bound.goodput > 0 ? bound.goodput : rate(1, slack * limit);
}

TuneBound bound_of(const Experiment& experiment, double attainment, bool steady) {
  const Deployment& e = experiment.decode();
  if (!e.slo.tpot && !e.slo.ttft && !e.slo.e2el)
    throw ConfigError("the experiment has no \"slo\", so every goodput is good; add one");
  const Lengths lengths = lengths_of(e, attainment);
  // Where prefill and decode have pools, each bounds the other's requests.
  const Deployment& prefill = experiment.pools.front();
  const TuneBound p = prefill.scheduler->prompts_arrive_computed()
                          ? TuneBound{std::numeric_limits<double>::infinity(), 0}
                          : prefill_bound(prefill, e.slo, lengths);
  const TuneBound d = decode_bound(e, e.slo, lengths);
  double goodput = std::min(p.goodput, d.goodput);
  // Steps of one kind or the other share the time.
  if (goodput > 0 && !experiment.apart() && e.scheduler->separates_phases()) {
    goodput = 1 / (1 / p.goodput + 1 / d.goodput);
  } else if (goodput > 0 && !experiment.apart() && steady) {
    goodput = std::min(goodput, steady_bound(e, lengths));
  }
  return {slack * goodput, std::max(p.excess, d.excess), p.goodput, d.goodput};
}

// ---- runs ----

struct Limit {
  const char* name;
  const Metric* metric;
  std::string_view key;
};
constexpr Limit limits[] = {{"TPOT", &metric("p90_tpot_ms"), "tpot"},
                            {"TTFT", &metric("p90_ttft_ms"), "ttft"},
                            {"E2E", &metric("p90_e2el_ms"), "e2el"}};

std::optional<double> number_of(const Json& report, const Metric& metric) {
  const Json* value = find_value(report, std::string(metric.pointer));
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

std::optional<double> limit_ms(const Json& config, std::string_view key) {
  const Json* value = find_value(config, fmt::format("/slo/{}", key));
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return 1000 * parse_quantity<Seconds>(value->get<std::string>()).count();
}

// A run's goodput, at most what arrives: while a short run drains, more requests end in the
// measured time than came in it, and the search would take that for merit.
Trial trial_of(const Json& config, const Json& report, double rate, double attainment) {
  const auto met = number_of(report, metric("slo_attainment"));
  const auto throughput = number_of(report, metric("request_throughput"));
  Trial trial;
  trial.excess = std::numeric_limits<double>::infinity();
  if (!met || !throughput) return trial;
  trial.attainment = *met;
  trial.goodput = std::min(*throughput, rate) * *met;
  trial.meets = *met >= attainment;
  double excess = 0;
  for (const Limit& limit : limits) {
    const auto most = limit_ms(config, limit.key);
    const auto found = number_of(report, *limit.metric);
    if (most && found) excess = std::max(excess, *found / *most);
  }
  trial.excess = excess;
  return trial;
}

std::string rate_text(double rate) { return fmt::format("{} /s", rate); }

class Runs {
 public:
  Runs(const SloSearch& search, TraceLibrary& traces, Remarks& remarks, const SloHooks& hooks)
      : search_(search), traces_(traces), remarks_(remarks), hooks_(hooks) {
    if (!search.store.empty()) open_store();
  }
  void climb(const RateLadder& ladder) { ladder_ = &ladder; }

  Experiment load(const Json& config) {
    return remarks_.say_of(load_experiment(ConfigNode(config, search_.base_file), traces_));
  }

  std::optional<std::vector<Trial>> operator()(std::span<const TunePoint> points) {
    if (hooks_.stop()) return std::nullopt;
    std::vector<SweepPoint> configs;
    for (const TunePoint point : points) {
      configs.push_back(point_of(config_of(point), search_.base_file.parent_path()));
    }
    std::vector<StoreRow> rows(points.size());
    tbb::parallel_for(std::size_t{0}, points.size(), [&](std::size_t i) {
      tbb::this_task_arena::isolate([&] { rows[i] = run(configs[i]); });
    });
    if (store_) record(configs, rows);
    std::vector<Trial> trials;
    for (std::size_t i = 0; i < points.size(); ++i) trials.push_back(note(points[i], rows[i]));
    hooks_.ran(runs_.size());
    return trials;
  }

  // What the search found, with its runs.
  void write_into(SloResult& result) const {
    for (const TuneResult::Found& found : result.search.found) result.found.push_back(of(found));
    if (result.search.nearest) result.nearest.push_back(of(*result.search.nearest));
    result.best_report = best_report_;
    result.resumed = resumed_;
  }

 private:
  SloRun of(const TuneResult::Found& found) const {
    const StoreRow& row = runs_.at(found.point);
    return {found.point.place, rate_text(ladder_->rate(found.point.rung)), found.trial,
            Json::parse(row.config), Json::parse(row.report)};
  }
  Json config_of(TunePoint point) const {
    Json config = search_.places[point.place];
    const double rate = ladder_->rate(point.rung);
    search_.set_load(config, rate_text(rate), rate);
    return config;
  }

  // A run of the store, or one now.
  StoreRow run(const SweepPoint& point) {
    if (const auto known = known_.find(point.config_hash); known != known_.end()) {
      return known->second;
    }
    StoreRow row{point.config_hash, point.config.dump(), PointStatus::done, "", ""};
    try {
      Experiment experiment = load(point.config);
      for (Deployment& pool : experiment.pools) pool.spot_checks = search_.spot_checks;
      row.report = moesim::run(experiment).document().dump();
    } catch (const ConfigError& error) {
      row.status = PointStatus::infeasible;
      row.error = error.what();
    }
    return row;
  }

  Trial note(TunePoint point, StoreRow& row) {
    const Json report = row.report.empty() ? Json() : Json::parse(row.report);
    const Trial trial = trial_of(search_.places[point.place], report, ladder_->rate(point.rung),
                                 search_.attainment);
    // The best run keeps its whole report, the many others only what is printed.
    if (trial.meets && trial.goodput > best_goodput_) {
      best_goodput_ = trial.goodput;
      best_report_ = std::move(row.report);
    }
    Json kept;
    for (const char* key : {"metrics", "breakdown"}) {
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
      if (before.sweep() != search_.document.dump()) {
        throw ConfigError(
            fmt::format("{}: holds the runs of another question; name another file (-o)",
                        search_.store.string()));
      }
      for (StoreRow& row : before.rows()) {
        points.push_back({row.config_hash, Json::parse(row.config)});
        if (row.status == PointStatus::done) known_.emplace(row.config_hash, std::move(row));
      }
    }
    store_.emplace(Store::open_for(search_.store, search_.document, points));
  }

  void record(const std::vector<SweepPoint>& points, const std::vector<StoreRow>& rows) {
    std::vector<StoreRow> fresh;
    for (const StoreRow& row : rows) {
      known_.contains(row.config_hash) ? void(++resumed_) : fresh.push_back(row);
    }
    if (!fresh.empty()) store_->record(fresh, points);
  }

  const SloSearch& search_;
  TraceLibrary& traces_;
  Remarks& remarks_;
  const SloHooks& hooks_;
  const RateLadder* ladder_ = nullptr;
  std::optional<Store> store_;
  std::map<std::string, StoreRow> known_;  // done before
  std::map<TunePoint, StoreRow> runs_;
  std::size_t resumed_ = 0;
  double best_goodput_ = 0;
  std::string best_report_;
};

}  // namespace

SloResult search_slo(const SloSearch& search, TraceLibrary& traces, Remarks& remarks,
                     const SloHooks& hooks) {
  Runs runs(search, traces, remarks, hooks);
  std::vector<std::optional<TuneBound>> bounds = search.bounds;
  const std::size_t known = bounds.size();
  bounds.resize(search.places.size());
  std::vector<std::string> errors(search.places.size());
  std::mutex mutex;
  std::size_t bounded = 0;
  tbb::parallel_for(known, search.places.size(), [&](std::size_t place) {
    if (hooks.stop()) return;
    tbb::this_task_arena::isolate([&] {
      try {
        bounds[place] = bound_of(runs.load(search.places[place]), search.attainment, search.steady);
      } catch (const ConfigError& error) {
        errors[place] = error.what();
      }
    });
    const std::lock_guard lock(mutex);
    hooks.bounded(++bounded, search.places.size());
  });

  SloResult result;
  for (const std::string& error : errors) {
    if (error.empty()) continue;
    if (result.cannot_run++ == 0) result.refused = error;
  }
  if (result.cannot_run == search.places.size()) {
    throw ConfigError(result.cannot_run == 1
                          ? result.refused
                          : fmt::format("{} (none of the {} places can be run; this is the first)",
                                        result.refused, result.cannot_run));
  }
  double best_bound = 0;
  for (const auto& bound : bounds) {
    if (bound) best_bound = std::max(best_bound, bound->goodput);
  }
  const RateLadder ladder = search.ladder ? *search.ladder : ladder_under(best_bound);
  runs.climb(ladder);
  // A bound is loose, by half where prefill and decode each have all the time: where to begin.
  const double begin = (search.steady ? .8 : .5) * best_bound;
  result.bounds = bounds;
  result.search = tune({.bounds = std::move(bounds),
                        .ladder = ladder,
                        .run = std::ref(runs),
                        .sure = search.sure,
                        .doubting = search.doubting,
                        .start = search.start < 0 ? begin : search.start,
                        .to_beat = search.to_beat,
                        .runners_up = search.runners_up});
  result.search.stopped |= hooks.stop();
  runs.write_into(result);
  return result;
}

namespace {

// What a place was found to bear may be less than it bears: a short run missed by chance, or its
// bound is a few per cent low. Up a rung at a time, for places that are not far behind the best.
void try_heavier(TuneResult& found, Runs& runs) {
  constexpr int rungs = 10, behind = 3;
  std::vector<TuneResult::Found*> rising;
  for (TuneResult::Found& place : found.found) rising.push_back(&place);
  for (int i = 0; i < rungs; ++i) {
    int highest = std::numeric_limits<int>::min();
    for (const TuneResult::Found& place : found.found)
      highest = std::max(highest, place.point.rung);
    std::erase_if(rising, [&](const auto* place) { return place->point.rung + behind < highest; });
    if (rising.empty() || found.stopped) return;
    std::vector<TunePoint> heavier;
    for (const auto* place : rising) heavier.push_back({place->point.place, place->point.rung + 1});
    const auto trials = runs(heavier);
    found.stopped = !trials;
    if (!trials) return;
    found.runs += heavier.size();
    std::vector<TuneResult::Found*> rose;
    for (std::size_t p = 0; p < rising.size(); ++p) {
      const Trial& trial = trials->at(p);
      if (!trial.meets || trial.goodput <= rising[p]->trial.goodput) continue;
      *rising[p] = {heavier[p], trial};
      rose.push_back(rising[p]);
    }
    rising = std::move(rose);
  }
}

}  // namespace

SloResult confirm_slo(const SloSearch& search, std::span<const double> loads, TraceLibrary& traces,
                      Remarks& remarks, const SloHooks& hooks) {
  constexpr int tries = 10;
  check(search.ladder && loads.size() == search.places.size(), "each place has a load");
  Runs runs(search, traces, remarks, hooks);
  runs.climb(*search.ladder);
  std::vector<TunePoint> open;
  for (std::size_t place = 0; place < loads.size(); ++place)
    open.push_back({place, search.ladder->above(loads[place]) - 1});
  SloResult result;
  TuneResult& found = result.search;
  for (int i = 0; i < tries && !open.empty(); ++i) {
    const auto trials = runs(open);
    found.stopped = !trials;
    if (!trials) break;
    found.runs += open.size();
    std::vector<TunePoint> lighter;
    for (std::size_t p = 0; p < open.size(); ++p) {
      const Trial& trial = trials->at(p);
      if (trial.meets) {
        found.found.push_back({open[p], trial});
      } else {
        lighter.push_back({open[p].place, open[p].rung - 1 - i / 2});
        if (!found.nearest || trial.excess < found.nearest->trial.excess)
          found.nearest = {open[p], trial};
      }
    }
    open = std::move(lighter);
  }
  if (search.climb) try_heavier(found, runs);
  std::ranges::stable_sort(
      found.found, [](const auto& a, const auto& b) { return a.trial.goodput > b.trial.goodput; });
  if (!found.found.empty()) found.nearest.reset();
  runs.write_into(result);
  return result;
}

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
