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

#include "sim/experiment/pools.hpp"
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

// Requests/s that decode steps alone allow: ranks b / (step(b) (n - 1)) for the largest batch b per
// rank that keeps the time between tokens, n tokens being generated per request, the first by
// prefill. A step's time rises with its batch, at less than its rate.
TuneBound decode_bound(const Deployment& e, const Slo& slo, const Lengths& lengths) {
  if (lengths.output <= 1) return {std::numeric_limits<double>::infinity(), 0};
  const auto context = static_cast<int>(lengths.prompt);
  const double emitted = tokens_per_step(e.speculation);
  const auto gap = [&](int batch) {
    return explain_step(e, StepKind::decode, batch, context, 0).cost.total.count() / emitted;
  };
  const double limit = slo.tpot ? slo.tpot->count() : std::numeric_limits<double>::infinity();
  std::int64_t most = e.scheduler->max_num_seqs();
  if (!e.prefix_caching) {
    most = std::min(most, e.memory.kv_blocks / e.kv_layout.blocks_for(std::max(1, context)));
  }
  const auto largest = static_cast<int>(std::max<std::int64_t>(1, most));
  const double alone = gap(1);
  const auto rate = [&](int batch, double time) {
    return e.ranks() * batch / (time * (lengths.output - 1));
  };
  if (alone > slack * limit) return {0, alone / limit};
  int met = 1, missed = largest + 1;
  double best = rate(1, alone);
  while (missed - met > std::max(1, met / 32)) {
    const int batch = std::min(missed - 1, missed > largest ? 2 * met : met + (missed - met) / 2);
    const double time = gap(batch);
    if (time <= slack * limit) {
      met = batch;
      best = std::max(best, rate(batch, time));
      if (batch == largest) break;
    } else {
      missed = batch;
    }
  }
  return {best, alone / limit};
}

// Requests/s that prefill steps alone allow: ranks chunk / (step(chunk) prompt). Prompts that share
// a step attend to their own tokens only: what a chunk of as many tokens spends on attention beyond
// theirs is left out.
TuneBound prefill_bound(const Deployment& e, const Slo& slo, const Lengths& lengths) {
  const int prompt = std::max(1, static_cast<int>(lengths.prompt));
  const int chunk = e.scheduler->max_num_batched_tokens();
  const auto step_time = [&](int tokens, bool attention) {
    const ExplainedStep step = explain_step(e, StepKind::prefill, 0, 0, tokens);
    double seconds = step.cost.total.count();
    for (const ExplainedOperation& operation : step.operations) {
      if (!attention && operation.name == "attention_prefill") seconds -= operation.seconds;
    }
    return seconds;
  };
  const double whole = step_time(std::min(chunk, prompt), true);
  double best = e.ranks() * std::min(chunk, prompt) / (whole * lengths.prompt);
  if (chunk > prompt) {
    best = std::max(best, e.ranks() * chunk / (step_time(chunk, false) * lengths.prompt));
  }
  double excess = 0;
  if (slo.ttft) {
    const int tokens = std::clamp(static_cast<int>(lengths.long_prompt), 1, chunk);
    excess = step_time(tokens, true) / slo.ttft->count();
  }
  return {excess > slack ? 0 : best, excess};
}

TuneBound bound_of(const Experiment& experiment, double attainment) {
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
  }
  return {slack * goodput, std::max(p.excess, d.excess)};
}

// ---- runs ----

struct Limit {
  const char* name;
  const Metric* metric;
  const char* key;
};
constexpr Limit limits[] = {{"TPOT", &metric("p90_tpot_ms"), "tpot"},
                            {"TTFT", &metric("p90_ttft_ms"), "ttft"},
                            {"E2E", &metric("p90_e2el_ms"), "e2el"}};

std::optional<double> number_of(const Json& report, const Metric& metric) {
  const Json* value = find_value(report, std::string(metric.pointer));
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

std::optional<double> limit_ms(const Json& config, const char* key) {
  const Json* value = find_value(config, std::string("/slo/") + key);
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

  SloRun of(const TuneResult::Found& found) const {
    const StoreRow& row = runs_.at(found.point);
    return {found.point.place, rate_text(search_.ladder.rate(found.point.rung)), found.trial,
            Json::parse(row.config), Json::parse(row.report)};
  }
  const std::string& best_report() const { return best_report_; }
  std::size_t resumed() const { return resumed_; }

 private:
  Json config_of(TunePoint point) const {
    Json config = search_.places[point.place];
    const double rate = search_.ladder.rate(point.rung);
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
      row.report = moesim::run(load(point.config)).document().dump();
    } catch (const ConfigError& error) {
      row.status = PointStatus::infeasible;
      row.error = error.what();
    }
    return row;
  }

  Trial note(TunePoint point, StoreRow& row) {
    const Json report = row.report.empty() ? Json() : Json::parse(row.report);
    const Trial trial = trial_of(search_.places[point.place], report,
                                 search_.ladder.rate(point.rung), search_.attainment);
    // Of many runs only what is printed is kept, of the best the whole report.
    if (trial.meets && trial.goodput > best_goodput_) {
      best_goodput_ = trial.goodput;
      best_report_ = std::move(row.report);
    }
    Json kept;
    for (const char* key : {"metrics", "breakdown"}) {
      if (report.contains(key)) kept[key] = report.at(key);
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
        throw ConfigError(fmt::format("{}: holds the runs of something else; name another file",
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
  TuneProblem problem{.bounds = std::vector<std::optional<TuneBound>>(search.places.size()),
                      .ladder = search.ladder,
                      .run = std::ref(runs),
                      .sure = search.sure};
  std::vector<std::string> errors(search.places.size());
  std::mutex mutex;
  std::size_t bounded = 0;
  tbb::parallel_for(std::size_t{0}, search.places.size(), [&](std::size_t place) {
    if (hooks.stop()) return;
    tbb::this_task_arena::isolate([&] {
      try {
        problem.bounds[place] = bound_of(runs.load(search.places[place]), search.attainment);
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
  problem.start = search.start;
  if (search.start < 0) {
    // The best bound is loose: about half of it is where to begin.
    for (const auto& bound : problem.bounds) {
      if (bound) problem.start = std::max(problem.start, .5 * bound->goodput);
    }
  }
  result.search = tune(problem);
  result.search.stopped |= hooks.stop();
  for (const TuneResult::Found& found : result.search.found) result.found.push_back(runs.of(found));
  if (result.search.nearest) result.nearest.push_back(runs.of(*result.search.nearest));
  result.best_report = runs.best_report();
  result.resumed = runs.resumed();
  return result;
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
