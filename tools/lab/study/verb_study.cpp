// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "tools/cli/interrupt.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/this_build.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/lab/study/regime_tables.hpp"

namespace moesim {

namespace {

constexpr int exit_internal_error = 1;

struct StudyOptions {
  std::string study, store, csv, plot;
  int threads = 0;
};

// A case in which a policy is not possible is worth a line, and no reason to stop; a reason is said
// once.
bool say_what_is_missing(const StoredSweep& stored) {
  std::map<std::pair<PointStatus, std::string>, int> reasons;
  for (const StoredPoint& point : stored.points) {
    if (point.status != PointStatus::done) ++reasons[{point.status, point.error}];
  }
  bool failed = false;
  for (const auto& [reason, points] : reasons) {
    const auto& [status, error] = reason;
    spdlog::warn("{} {} {}: {}", points, points == 1 ? "point is" : "points are",
                 status_name(status), error);
    failed = failed || status == PointStatus::failed;
  }
  return failed;
}

int run_regimes(const StudyOptions& options) {
  for (const std::string& file : {options.csv, options.plot}) require_writable(file);
  const RegimeStudy study = read_regime_study(ConfigNode::from_file(options.study));
  TraceLibrary traces;
  const PointRunner runner{
      [](const Json&) {},  // placements take long: not twice
      [&](const Json& point) { return price_regime(point, study.base_file, traces); }};
  const Sweep sweep = points_of(study);
  const InterruptGuard guard("the cases in flight are finished and kept; again to stop at once");
  check_first(study, sweep, traces);  // before anything is written
  ProgressBar progress("points");
  const SweepOutcome outcome = run_sweep(sweep, options.store, runner,
                                         {.threads = threads_of(options.threads),
                                          .version = this_build(),
                                          .progress = progress.hook(),
                                          .stop = InterruptGuard::interrupted});
  progress.finish();
  if (outcome.left > 0) {
    spdlog::warn("stopped with {} points left; the same command runs them", outcome.left);
    return exit_interrupted;
  }
  const StoredSweep stored = Store::open(options.store).read();
  const bool failed = say_what_is_missing(stored);
  const std::vector<RegimeRow> rows = regime_rows(study, stored);
  print(regime_text(study, rows));
  if (!options.csv.empty()) write_file(options.csv, regime_csv(study, rows));
  if (!options.plot.empty()) plot_regimes(study, rows, options.plot);
  return failed ? exit_internal_error : 0;
}

}  // namespace

Action setup_study(CLI::App& command) {
  const auto options = std::make_shared<StudyOptions>();
  command.require_subcommand(1);
  CLI::App* regimes = command.add_subcommand(
      "regimes", "how many copies, where, who serves a token: by tokens * k / experts");
  option(*regimes, "STUDY", options->study, "cases, policies, ratios and batches, a JSON file",
         mandatory);
  option(*regimes, "-o,--output", options->store, "store of the results, a SQLite file; resumes",
         mandatory);
  option(*regimes, "-j,--threads", options->threads, "threads to use (default: all cores)",
         at_least_one());
  regimes->add_option("--csv", options->csv, "write every row");
  regimes->add_option("--plot", options->plot, "draw the map: .svg, .png or .pdf (gnuplot)");
  return [options] { return run_regimes(*options); };
}

}  // namespace moesim
