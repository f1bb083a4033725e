// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "sim/serving/simulator.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/sweep/sweep.hpp"
#include "tools/sweep/tune.hpp"

namespace moesim {

namespace {

constexpr int exit_limit_not_met = 3;
const std::string rate_pointer = "/workload/arrivals/rate";

struct Options {
  std::string config, report;
  double attainment = .9;
  bool json = false;
};

// What a sweep file varies together: an axis, or all columns of its zip.
struct Coordinate {
  std::vector<std::string> pointers;
  std::vector<std::vector<Json>> rows;  ///< the pointers' values
};

struct Grid {
  std::vector<Coordinate> coordinates;
  std::vector<Json> rates;  ///< ascending
  std::map<std::pair<TunePlace, std::size_t>, const Json*> configs;
};

double per_second(const Json& rate) {
  return parse_quantity<PerSecond>(rate.get<std::string>()).value();
}

Grid read_grid(const Sweep& sweep, const ConfigNode& file) {
  const Json& document = sweep.document;
  if (document.contains("blocks") || document.contains("seeds"))
    file.fail("tune takes \"axes\", one \"zip\" and \"set\", no \"blocks\" and no \"seeds\"");
  Grid grid;
  const Json axes = document.value("axes", Json::object());
  for (const auto& axis : axes.items()) {
    if (axis.key() == rate_pointer) {
      for (const Json& rate : axis.value()) grid.rates.push_back(rate);
      continue;
    }
    Coordinate& coordinate = grid.coordinates.emplace_back();
    coordinate.pointers = {axis.key()};
    for (const Json& value : axis.value()) coordinate.rows.push_back({value});
  }
  if (grid.rates.empty()) {
    file.fail(fmt::format(
        "needs an axis \"{}\" with the loads to bisect, e.g. [\"1 /s\", \"2 /s\"]", rate_pointer));
  }
  std::sort(grid.rates.begin(), grid.rates.end(),
            [](const Json& a, const Json& b) { return per_second(a) < per_second(b); });
  if (document.contains("zip")) {
    Coordinate& coordinate = grid.coordinates.emplace_back();
    for (const auto& column : document.at("zip").items()) {
      coordinate.pointers.push_back(column.key());
      coordinate.rows.resize(column.value().size());
      for (std::size_t row = 0; row < coordinate.rows.size(); ++row)
        coordinate.rows[row].push_back(column.value()[row]);
    }
  }
  return grid;
}

std::size_t row_of(const Json& config, const Coordinate& coordinate) {
  const auto found = std::find_if(
      coordinate.rows.begin(), coordinate.rows.end(), [&](const std::vector<Json>& row) {
        for (std::size_t i = 0; i < row.size(); ++i) {
          const Json* value = find_value(config, coordinate.pointers[i]);
          if (value == nullptr || *value != row[i]) return false;
        }
        return true;
      });
  return static_cast<std::size_t>(found - coordinate.rows.begin());
}

void place_points(Grid& grid, const Sweep& sweep, const ConfigNode& file) {
  for (const SweepPoint& point : sweep.points) {
    TunePlace place;
    for (const Coordinate& coordinate : grid.coordinates) {
      place.push_back(row_of(point.config, coordinate));
      if (place.back() == coordinate.rows.size()) {
        file.fail(fmt::format("\"{}\" is changed by another axis, too; put both into one axis",
                              coordinate.pointers.front()));
      }
    }
    const Json* rate = find_value(point.config, rate_pointer);
    const auto load = std::find(grid.rates.begin(), grid.rates.end(), *rate);
    grid.configs[{place, static_cast<std::size_t>(load - grid.rates.begin())}] = &point.config;
  }
}

struct MeanLengths {
  double prompt = 0, output = 0;
};

MeanLengths mean_lengths(const Experiment& e) {
  constexpr int sample = 512;
  const auto source = e.workload.make(e.seed, e.ranks());
  MeanLengths sum;
  int n = 0;
  for (; n < sample; ++n) {
    const auto next = source->next();
    if (!next) break;
    sum.prompt += next->request.prompt_tokens;
    sum.output += next->request.output_tokens;
  }
  return {sum.prompt / n, sum.output / n};
}

// The most requests/s that steps of one kind alone allow: for decode dp b / (step(b) (n - 1)) over
// the batches b per rank whose step meets the SLO on TPOT, n tokens being generated per request,
// the first by prefill; for prefill dp chunk / (step(chunk) prompt). One step of each size is
// priced, at the shortest context; its routing is a sample, hence the slack.
double goodput_bound(const Experiment& e) {
  constexpr double slack = 1.05;
  const MeanLengths lengths = mean_lengths(e);
  const auto context = static_cast<int>(lengths.prompt);
  double decode = lengths.output > 1 ? 0 : std::numeric_limits<double>::infinity();
  const auto most = static_cast<int>(e.scheduler->max_num_seqs());
  for (int b = 1; lengths.output > 1; b = std::min(2 * b, most)) {
    const Seconds step = explain_step(e, StepKind::decode, b, context, 0).cost.total;
    if (e.slo.tpot && step.count() > e.slo.tpot->count() * slack) break;
    decode = std::max(decode, e.ranks() * b / (step.count() * (lengths.output - 1)));
    if (b == most) break;
  }
  const auto chunk =
      std::min(static_cast<int>(e.scheduler->max_num_batched_tokens()), std::max(1, context));
  const Seconds step = explain_step(e, StepKind::prefill, 0, 0, chunk).cost.total;
  const double prefill = e.ranks() * chunk / (step.count() * lengths.prompt);
  return slack * std::min(decode, prefill);
}

// A run's goodput, at most what arrives: while a short run drains, more requests end in the
// measured time than came in it, and the search would take that for merit.
Trial trial_of(const Json& report, double rate, double attainment) {
  const Json& metrics = report.at("metrics");
  const Json& share = metrics.at("slo_attainment");
  const Json& throughput = metrics.at("request_throughput");
  if (!share.is_number() || !throughput.is_number()) return {};
  const double met = share.get<double>();
  return {std::min(throughput.get<double>(), rate) * met, met >= attainment};
}

std::string found_text(const Grid& grid, const TuneResult& result, const Sweep& sweep,
                       const Json& report, std::size_t points) {
  std::string command = fmt::format("moesim run {}", sweep.base_file.string());
  const auto set = [&](const std::string& pointer, const Json& value) {
    command += fmt::format(" --set '{}={}'", pointer, value.dump());
  };
  const Json fixed = sweep.document.value("set", Json::object());
  for (const auto& item : fixed.items()) set(item.key(), item.value());
  Table table({"setting", "best"});
  const auto add = [&](const std::string& pointer, const Json& value) {
    table.add({pointer, setting_text(value)});
    set(pointer, value);
  };
  const std::size_t load = *result.load;
  for (std::size_t c = 0; c < grid.coordinates.size(); ++c) {
    const Coordinate& coordinate = grid.coordinates[c];
    for (std::size_t i = 0; i < coordinate.pointers.size(); ++i)
      add(coordinate.pointers[i], coordinate.rows[result.place[c]][i]);
  }
  add(rate_pointer, grid.rates[load]);
  const auto metric = [&](const char* name) {
    const Json& value = report.at("metrics").at(name);
    return value.is_number() ? number_text(value.get<double>()) : "-";
  };
  return fmt::format(
      "{}\ngoodput {} requests/s; SLO met by {} of them; TPOT {} ms, TTFT {} ms (median)\n"
      "{} runs for a grid of {} points; {} places ruled out by their bound alone\n\n{}\n",
      table.text(), number_text(result.goodput), metric("slo_attainment"), metric("median_tpot_ms"),
      metric("median_ttft_ms"), result.runs, points, result.pruned, command);
}

int run(const Options& options) {
  const ConfigNode file = ConfigNode::from_file(options.config);
  const Sweep sweep = expand_sweep(file);
  Grid grid = read_grid(sweep, file);
  place_points(grid, sweep, file);
  TraceLibrary traces;
  const auto load_point = [&](const Json& config) {
    return load_experiment(ConfigNode(config, sweep.base_file), traces);
  };
  std::string refused;
  Json best_report;
  double best_goodput = 0;

  TuneProblem problem;
  for (const Coordinate& coordinate : grid.coordinates)
    problem.sizes.push_back(coordinate.rows.size());
  problem.loads = grid.rates.size();
  problem.bound = [&](const TunePlace& place) -> std::optional<double> {
    const auto config = grid.configs.find({place, 0});
    if (config == grid.configs.end()) return std::nullopt;
    try {
      const Experiment experiment = load_point(*config->second);
      if (!experiment.slo.tpot && !experiment.slo.ttft && !experiment.slo.e2el)
        throw ConfigError("the experiment has no \"slo\", so every goodput is good; add one");
      return goodput_bound(experiment);
    } catch (const ConfigError& error) {
      if (refused.empty()) refused = error.what();
      return std::nullopt;
    }
  };
  problem.run = [&](const TunePlace& place, std::size_t load) -> Trial {
    const auto config = grid.configs.find({place, load});
    if (config == grid.configs.end()) return {};
    const Json report = Json::parse(moesim::run(load_point(*config->second)).document.dump());
    const Trial trial = trial_of(report, per_second(grid.rates[load]), options.attainment);
    if (trial.meets && trial.goodput > best_goodput) {
      best_goodput = trial.goodput;
      best_report = report;
      spdlog::info("{} requests/s at {}", number_text(trial.goodput),
                   grid.rates[load].get<std::string>());
    }
    return trial;
  };
  const TuneResult result = tune(problem);
  if (result.runs == 0 && !refused.empty()) throw ConfigError(refused);
  if (!result.load) {
    spdlog::error("no run met the SLO for {:.0f} % of its requests; allow lower rates or more time",
                  options.attainment * 100);
    return exit_limit_not_met;
  }
  if (!options.report.empty()) write_file(options.report, best_report.dump(1) + "\n");
  print(options.json ? Json{{"config", *grid.configs.at({result.place, *result.load})},
                            {"goodput", result.goodput},
                            {"runs", result.runs},
                            {"pruned", result.pruned},
                            {"points", sweep.points.size()}}
                               .dump(1) +
                           "\n"
                     : found_text(grid, result, sweep, best_report, sweep.points.size()));
  return 0;
}

constexpr std::string_view footer =
    R"(CONFIG is a sweep file with an axis "/workload/arrivals/rate"; its base has an "slo". Found is the
point of that grid with the most requests/s that meet the SLO, without running them all: the rate is
bisected, the other axes are searched one and two at a time, and what cannot be better by the time of
its steps alone is not run. That takes fewer requests to meet the SLO as the rate rises: give runs
enough requests to last many times the SLO's TTFT; with prefill_first and few of them it may not
hold, and the answer may be far off. Exit 3 if no point meets the SLO.)";

}  // namespace

Action setup_tune(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  command.add_option("CONFIG", options->config, "sweep, a JSON file")->required();
  command.add_option("-o,--output", options->report, "write the best point's report, JSON");
  command
      .add_option("--attainment", options->attainment,
                  "the share of requests that must meet the SLO")
      ->check(CLI::Range(0., 1.))
      ->capture_default_str();
  command.add_flag("--json", options->json, "print JSON instead of tables");
  command.footer(std::string(footer));
  return [options] { return run(*options); };
}

}  // namespace moesim
