// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <span>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "sim/report/metric_catalogue.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/cli/interrupt.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/sweep/session_options.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

struct TuneOptions {
  std::string config, report, store, launch;
  double attainment = .9;
  bool json = false, sure = false;
  SessionOptions session_limits;
};

// Load of a point: requests/s, or how many sessions are alive.
double load_of(const SweepPoint& point, const Sweep& sweep, const std::string& pointer) {
  const Json* load = find_value(point.config, pointer);
  const ConfigNode node(load == nullptr ? Json() : *load, sweep.base_file, pointer);
  if (pointer == lanes_pointer) return static_cast<double>(node.integer({1, 1e9}));
  const double value = node.quantity<PerSecond>().value();
  if (value <= 0) node.fail("a load must be above 0 requests/s");
  return value;
}

// The sweep's points without their loads, and the loads.
struct Grid {
  const std::string& load_pointer() const { return sessions ? lanes_pointer : rate_pointer; }

  bool sessions = false;
  std::vector<Json> places{};
  std::vector<double> rates{};
};

bool has_sessions(const SweepPoint& point) {
  return find_value(point.config, "/workload/sessions") != nullptr;
}

Grid read_grid(const Sweep& sweep, const ConfigNode& file) {
  const auto axes = axes_of(sweep.document);
  if (std::ranges::find(axes, "/seed", &Axis::pointer) != axes.end())
    file.fail("tune compares runs of one seed; leave \"seeds\" and \"/seed\" out");
  Grid grid{.sessions = std::ranges::any_of(sweep.points, has_sessions)};
  if (grid.sessions && !std::ranges::all_of(sweep.points, has_sessions))
    file.fail("requests and sessions have loads of different kinds; tune them apart");
  const std::string& load_pointer = grid.load_pointer();
  const bool loads =
      std::ranges::any_of(axes, [&](const Axis& axis) { return axis.pointer == load_pointer; });
  if (!loads)
    file.fail("needs an axis \"{}\" with the {}", load_pointer,
              grid.sessions ? "numbers of sessions alive to try, e.g. [16, 32]"
                            : R"(loads to try, e.g. ["1 /s", "2 /s"])");
  std::map<std::string, std::size_t> loads_of;  // by place
  std::set<double> rates;
  for (const SweepPoint& point : sweep.points) {
    rates.insert(load_of(point, sweep, load_pointer));
    Json place = point.config;
    place.at(Json::json_pointer("/workload/arrivals"))
        .erase(grid.sessions ? "concurrency" : "rate");
    if (loads_of[place.dump()]++ == 0) grid.places.push_back(point.config);
  }
  grid.rates.assign(rates.begin(), rates.end());
  for (const auto& [place, count] : loads_of) {
    if (count != rates.size()) file.fail("every combination needs every load; leave out \"skip\"");
  }
  return grid;
}

// The command that runs a point again: what differs from the base, by --set.
std::string command_of(const SloRun& run, const Sweep& sweep) {
  std::string command = fmt::format("moesim run {}", sweep.base_file.string());
  std::vector<std::string> pointers;
  for (const Axis& axis : axes_of(sweep.document)) pointers.push_back(axis.pointer);
  std::ranges::sort(pointers);
  for (const std::string& pointer : pointers) {
    const Json* value = find_value(run.config, pointer);
    if (value != nullptr) command += fmt::format(" --set '{}={}'", pointer, value->dump());
  }
  return command;
}

constexpr std::array shown{&metric("p90_tpot_ms"), &metric("p90_ttft_ms")};

std::string table_of(const std::vector<SloRun>& runs, const std::vector<Axis>& axes,
                     std::size_t rows) {
  std::vector<std::string> head;
  for (const Axis& axis : axes) head.push_back(axis.name);
  head.insert(head.end(), {"rate", "goodput", "SLO met", "state"});
  for (const Metric* metric : shown) head.emplace_back(metric->heading);
  std::vector<std::vector<std::string>> cells;
  for (std::size_t i = 0; i < std::min(rows, runs.size()); ++i) {
    const SloRun& run = runs[i];
    auto& row = cells.emplace_back();
    for (const Axis& axis : axes) row.push_back(setting_cell(find_value(run.config, axis.pointer)));
    row.insert(row.end(), {run.rate, number_text(run.trial.goodput), percent(run.trial.attainment),
                           state_of(run)});
    for (const Metric* metric : shown) row.push_back(metric_text(run, *metric));
  }
  return narrow_table(std::move(head), std::move(cells), axes.size());
}

OrderedJson to_json(const SloRun& run) {
  return {{"config", run.config},
          {"rate", run.rate},
          {"state", state_of(run)},
          {"goodput", run.trial.goodput},
          {"slo_attainment", run.trial.attainment}};
}

OrderedJson to_json(const SloResult& result, std::size_t points) {
  OrderedJson json;
  if (!result.found.empty()) json = to_json(result.found.front());
  json["runs"] = result.search.runs;
  json["points"] = points;
  json["ruled_out"] = result.search.ruled_out;
  json["taken_to_miss"] = result.search.taken_to_miss;
  json["cannot_run"] = result.cannot_run;
  json["runners_up"] = OrderedJson::array();
  for (std::size_t i = 1; i < result.found.size(); ++i)
    json["runners_up"].push_back(to_json(result.found[i]));
  if (!result.nearest.empty()) json["nearest"] = to_json(result.nearest.front());
  return json;
}

std::string effort_text(const SloResult& result, std::size_t points) {
  const TuneResult& search = result.search;
  std::string text = fmt::format(
      "{} runs for a grid of {} points; {} combinations ruled out by the time of their steps alone",
      search.runs, points, search.ruled_out);
  if (result.cannot_run > 0)
    text += fmt::format("; {} cannot be run ({})", result.cannot_run, result.refused);
  text += search.taken_to_miss == 0
              ? ". No other point of the grid is better by more than 1 %."
              : fmt::format(
                    ". {} points that might be better were not run: their combination missed the "
                    "SLO under a lighter load. --sure runs them.",
                    search.taken_to_miss);
  return paragraph(text);
}

// Puts the combinations that tie with the best first, those with most left to the limits ahead, and
// returns their number. They sustain the same load, and their shares within the limits are no
// further apart than 1 % and than two standard errors.
std::size_t order_ties(std::vector<SloRun>& found) {
  const SloRun best = found.front();
  const Json* completed = find_value(best.report, "/metrics/completed");
  if (completed == nullptr || completed->get<double>() <= 0) return 1;
  constexpr double errors = 2, hundredth = .01;
  const double met = best.trial.attainment;
  const double noise =
      std::min(errors * std::sqrt(2 * met * (1 - met) / completed->get<double>()), hundredth);
  const auto others = std::stable_partition(found.begin(), found.end(), [&](const SloRun& run) {
    return run.rate == best.rate && std::abs(run.trial.attainment - met) <= noise &&
           run.trial.goodput >= (1 - hundredth) * best.trial.goodput;
  });
  const std::span<SloRun> ties(found.begin(), others);
  std::ranges::stable_sort(ties, {}, [](const SloRun& run) { return run.trial.excess; });
  return ties.size();
}

std::string found_text(const SloResult& result, std::size_t ties, const Sweep& sweep,
                       const std::vector<Axis>& axes) {
  constexpr std::size_t rows = 5;
  const SloRun& first = result.found.front();
  const std::string tied =
      ties < 2 ? "best"
               : fmt::format("{} tie at {}, in the order of what is left to the limits; the first",
                             ties, first.rate);
  return fmt::format("{}\n{}\n{}\n{}\n", table_of(result.found, axes, rows),
                     wrapped(fmt::format("{}: {}; {}, met by {}", tied, first.rate,
                                         latencies_text(first), percent(first.trial.attainment))),
                     effort_text(result, sweep.points.size()), command_of(first, sweep));
}

// A state, and what to do about it.
std::string state_text(const SloRun& run) {
  const std::string state = state_of(run);
  return state == "unsteady" || state == "too_short"
             ? state + " (raise /workload/requests: the runs are too short)"
             : state;
}

int say_missed(const SloResult& result, const TuneOptions& options, const Sweep& sweep) {
  const SloRun& nearest = result.nearest.front();
  spdlog::error(
      "no run met the SLO for {:.0f} % of its requests in a steady state; the nearest, at {}: {}, "
      "met by {}, {}",
      options.attainment * 100, nearest.rate, latencies_text(nearest),
      percent(nearest.trial.attainment), state_text(nearest));
  print(options.json ? to_json(result, sweep.points.size()).dump(1) + "\n"
                     : effort_text(result, sweep.points.size()) + "\nthe nearest:\n" +
                           command_of(nearest, sweep) + "\n");
  return exit_limit_not_met;
}

int say_stopped(const SloResult& result, const TuneOptions& options) {
  const std::string kept = options.store.empty() ? "nothing is kept without --store"
                                                 : "the same command continues from there";
  const std::string best = result.found.empty()
                               ? "none met the SLO so far"
                               : fmt::format("best so far {} requests/s",
                                             number_text(result.found.front().trial.goodput));
  spdlog::warn("stopped after {} runs: {}; {}", result.search.runs, best, kept);
  return exit_interrupted;
}

int run(const TuneOptions& options) {
  require_writable(options.report);
  require_different({{"CONFIG", options.config}, {"-o", options.report}});
  const ConfigNode file = ConfigNode::from_file(here_or_shipped(options.config));
  const Sweep sweep = expand_sweep(file);
  Grid grid = read_grid(sweep, file);
  std::vector<Axis> axes = varied(axes_of(sweep.document), grid.places);
  std::erase_if(axes, [&](const Axis& axis) { return axis.pointer == grid.load_pointer(); });
  if (!grid.sessions && options.session_limits.any())
    throw ConfigError("--ttft-first, --ttft-later, --session-p90: limits of \"workload/sessions\"");
  const SloSearch search{.document = sweep.document,
                         .base_file = sweep.base_file,
                         .places = std::move(grid.places),
                         .ladder = RateLadder(std::move(grid.rates)),
                         .attainment = options.attainment,
                         .sessions = grid.sessions,
                         .session_limits = options.session_limits.read(),
                         .sure = options.sure,
                         .store = options.store};
  TraceLibrary traces;
  Remarks remarks;
  ProgressBar bounds("combinations looked at"), progress("runs");
  const InterruptGuard guard(
      options.store.empty() ? "nothing is kept without --store; again to stop at once"
                            : "the runs in flight are finished and kept; again to stop at once");
  const auto ran = [&](std::size_t runs) {
    bounds.finish();
    progress.hook()(runs, 0);
  };
  SloResult result =
      search_slo(search, traces, remarks,
                 {.stop = InterruptGuard::interrupted, .bounded = bounds.hook(), .ran = ran});
  progress.finish();
  if (result.resumed > 0) spdlog::info("{} of the runs were done before", result.resumed);
  if (result.search.stopped) return say_stopped(result, options);
  if (result.found.empty()) return say_missed(result, options, sweep);
  const std::size_t ties = order_ties(result.found);
  const SloRun& best = result.found.front();
  if (!options.report.empty()) {
    // The search keeps of its runs what is printed.
    const Experiment again = load_experiment(ConfigNode(best.config, sweep.base_file), traces);
    write_file(options.report, moesim::run(again).document().dump(1) + "\n");
  }
  print(options.json
            ? to_json(result, sweep.points.size()).dump(1) + "\n"
            : found_text(result, ties, sweep, axes) + trust_line(best.report, best.config));
  if (!options.launch.empty())
    print("\n" + launch_text(options.launch, read_spec({best.config, sweep.base_file})));
  return 0;
}

constexpr std::string_view tune_footer =
    R"(CONFIG is a sweep file with an axis "/workload/arrivals/rate"; its base has an "slo". The answer is
the point of the grid with the most requests/s that meet the SLO in a steady state. With
"workload/sessions" the axis is "/workload/arrivals/concurrency", how many sessions are alive, and
the answer has the most sessions. Not all points are run. A point whose step time alone shows that
it cannot win is left out. A combination that misses the SLO under one load is not run under heavier
loads, unless a run shows that heavier loads can meet the SLO.
The last lines say how many points were left out; --sure runs these points. Loads beyond the grid
are tried if the heaviest load of the grid meets the SLO, or if none does. With --store every run is
kept, the same command continues a stopped search, and `moesim report` draws the runs. Exit 3 if no
point meets the SLO, with the nearest miss.)";

}  // namespace

Action setup_tune(CLI::App& command) {
  const auto options = std::make_shared<TuneOptions>();
  option(command, "CONFIG", options->config, "sweep, a JSON file", mandatory);
  command.add_option("-o,--output", options->report, "write the best point's report, JSON");
  command.add_option("--store", options->store, "keep every run here, a SQLite file, and resume");
  option(command, "--attainment", options->attainment,
         "the share of requests that must meet the SLO", a_share(), default_shown);
  options->session_limits.add_to(command);
  command.add_flag("--sure", options->sure, "run every point that could still be better");
  add_launch_option(command, options->launch);
  command.add_flag("--json", options->json, "print JSON instead of tables");
  command.footer(std::string(tune_footer));
  return [options] { return run(*options); };
}

}  // namespace moesim
