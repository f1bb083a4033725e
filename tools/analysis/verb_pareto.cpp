// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>

#include <unistd.h>

#include "tools/analysis/comparable.hpp"
#include "tools/analysis/pareto.hpp"
#include "tools/analysis/pareto_gain.hpp"
#include "tools/analysis/pareto_plot.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

namespace {

struct ParetoOptions {
  std::string store, csv, plot;
  ParetoAxes axes;
  std::vector<std::string> baseline, candidate;
  std::vector<double> at;
  bool json = false;
};

// Axes of compared settings get frontiers of their own.
void add_compared(ParetoAxes& axes, const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    if (std::ranges::find(axes.by, setting.pointer) == axes.by.end())
      axes.by.push_back(setting.pointer);
  }
}

int run(const ParetoOptions& options) {
  const std::vector<Setting> baseline = parse_settings(options.baseline);
  const std::vector<Setting> candidate = parse_settings(options.candidate);
  ParetoAxes axes = options.axes;
  add_compared(axes, baseline);
  std::vector<std::string> pointers = axes.by;
  pointers.insert(pointers.end(), {axes.x, axes.y, "/model", "/cluster"});
  for (const Setting& setting : candidate) pointers.push_back(setting.pointer);
  const StoredSweep sweep = read_comparable(Store::open(options.store), pointers);
  const Pareto result = pareto(sweep, axes);
  std::optional<ParetoGain> gain;
  if (!baseline.empty()) gain = pareto_gain(sweep, axes, baseline, candidate, options.at);
  const OrderedJson points = pareto_rows(result);
  if (!options.csv.empty()) write_file(options.csv, csv_of(points));
  if (!options.plot.empty()) plot_pareto(result, options.plot);
  if (options.json) {
    OrderedJson json{{"x", axes.x}, {"y", axes.y}, {"points", points}};
    if (gain) json["gain"] = gain_json(*gain);
    print(json.dump(1) + "\n");
    return 0;
  }
  if (::isatty(STDOUT_FILENO) != 0) print(plot_text(result));
  print(pareto_text(result) + (gain ? "\n" + gain_text(*gain) : ""));
  return 0;
}

constexpr std::string_view pareto_footer =
    R"(Pointers lead into the report (/metrics/.., /context/config/..) or the config
(/token_routing/decode). With --baseline and --candidate a table has the candidate's gain over the
baseline at equal x, for each group of --by. "step" takes the best evaluated point that meets x,
"interpolated" the straight line between two points. A terminal also gets a plot in letters.)";

}  // namespace

Action setup_pareto(CLI::App& command) {
  const auto options = std::make_shared<ParetoOptions>();
  option(command, "STORE", options->store, "store that `moesim sweep` wrote", mandatory);
  option(command, "--x", options->axes.x, "quantity to minimise: a pointer into the report",
         default_shown);
  option(command, "--y", options->axes.y, "quantity to maximise: a pointer into the report",
         default_shown);
  command.add_flag("--least-y", options->axes.least_y, "minimise y too, e.g. a cost");
  option(command, "--by", options->axes.by, "a frontier for each value of this; repeatable",
         repeatable);
  command.add_option("--csv", options->csv, "write all finished points, with column on_frontier");
  command.add_flag("--json", options->json, "print these points as JSON instead of tables");
  command.add_option("--plot", options->plot, "draw the frontiers: .svg, .png or .pdf (gnuplot)");
  CLI::Option* baseline =
      option(command, "--baseline", options->baseline, "/pointer=value; repeatable", repeatable);
  CLI::Option* candidate =
      option(command, "--candidate", options->candidate,
             "/pointer=value; the table shows its gain over the baseline; repeatable", repeatable)
          ->needs(baseline);
  baseline->needs(candidate);
  option(command, "--at", options->at, "values of x at which to print the gain, e.g. 10,20,50",
         comma_separated)
      ->needs(baseline);
  command.footer(std::string(pareto_footer));
  return [options] { return run(*options); };
}

}  // namespace moesim
