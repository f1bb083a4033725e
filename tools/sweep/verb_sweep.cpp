// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <spdlog/spdlog.h>

#include "tools/cli/interrupt.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/this_build.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/sweep/experiments_at.hpp"
#include "tools/sweep/slurm.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

constexpr int exit_internal_error = 1;

struct SweepArguments {
  std::string config, store, shard, launcher = "here", csv;
  bool json = false;
  std::vector<std::string> merged;
  int threads = 0;
  SlurmOptions slurm;
};

// Refuses what no task could run, so that it is said here and not in N logs.
void require_feasible(const Sweep& sweep, const PointRunner& runner) {
  std::string first;
  for (const SweepPoint& point : sweep.points) {
    try {
      runner.check(point.config);
      return;
    } catch (const ConfigError& error) {
      if (first.empty()) first = error.what();
    }
  }
  throw ConfigError("{} (none of the {} points can be run; this is the first)", first,
                    sweep.points.size());
}

// Prints the points of the store as a table with a note, or as JSON, and writes them as CSV.
void show(const SweepArguments& options, const StoredSweep& stored, const std::string& note) {
  const bool rows = options.json || !options.csv.empty();
  const OrderedJson points = rows ? sweep_rows(Store::open(options.store)) : OrderedJson();
  if (!options.csv.empty()) write_file(options.csv, csv_of(points));
  print(options.json ? OrderedJson{{"points", points}}.dump(1) + "\n" : sweep_text(stored) + note);
}

int submit(const SweepArguments& options, const Sweep& sweep, const PointRunner& runner) {
  if (options.json || !options.csv.empty())
    throw ConfigError("--json, --csv: nothing is run yet with --launcher slurm; leave them out");
  require_feasible(sweep, runner);
  SlurmOptions slurm = options.slurm;
  slurm.tasks = std::min(slurm.tasks, sweep.points.size());
  slurm.cpus = std::max(1, options.threads);
  const SlurmJobs jobs = submit_to_slurm(std::filesystem::read_symlink("/proc/self/exe"),
                                         options.config, options.store, slurm);
  print(
      paragraph("{} points in {} tasks: job array {}; job {} merges them into {}. Stores, scripts "
                "and logs of the tasks are in {}. The same command submits what is not done.",
                sweep.points.size(), slurm.tasks, jobs.array, jobs.merge, options.store,
                jobs.folder.string()));
  return 0;
}

int run_here(const SweepArguments& options, Sweep sweep, const PointRunner& runner) {
  ProgressBar checks("points checked");
  ProgressBar progress("points");
  SweepOptions how;
  how.threads = threads_of(options.threads);
  how.version = this_build();
  how.refuse_infeasible = options.shard.empty();
  how.checked = checks.hook();
  how.progress = [&](std::size_t finished, std::size_t total) {
    checks.finish();
    progress.hook()(finished, total);
  };
  how.resumes = [&](std::size_t done) {
    if (done > 0) spdlog::info("{} of {} points were done before", done, sweep.points.size());
  };
  how.stop = [] { return InterruptGuard::interrupted(); };

  const InterruptGuard guard("the points in flight are finished and kept; again to stop at once");
  const SweepOutcome outcome = run_sweep(sweep, options.store, runner, how);
  progress.finish();
  if (outcome.resumed > 0 && outcome.written_by != how.version)
    spdlog::warn(
        "earlier points are of moesim {}, this is {}: results may differ; to run all again, name "
        "another file with -o",
        outcome.written_by.empty() ? "of a version that was not noted" : outcome.written_by,
        how.version);
  if (outcome.left > 0) {
    spdlog::warn(
        "stopped with {} of {} points done, which {} keeps; the same command runs the other {}",
        sweep.points.size() - outcome.left, sweep.points.size(), options.store, outcome.left);
    return exit_interrupted;
  }
  sweep.points = {};  // the store has them
  const StoredSweep stored = read_for_text(Store::open(options.store));
  show(options, stored, trust_line(stored));
  const bool failed = std::ranges::any_of(
      stored.points, [](const StoredPoint& point) { return point.status == PointStatus::failed; });
  return failed ? exit_internal_error : 0;
}

// Shards into one store. Merging again changes nothing.
int merge(const SweepArguments& options) {
  merge_stores({options.merged.begin(), options.merged.end()}, options.store);
  show(options, read_for_text(Store::open(options.store)), "");
  return 0;
}

int run(const SweepArguments& options) {
  require_writable(options.csv);
  require_different({{"CONFIG", options.config}, {"-o", options.store}, {"--csv", options.csv}});
  if (!options.merged.empty()) return merge(options);
  if (options.config.empty())
    throw ConfigError("sweep: give a sweep, a JSON file, or --merge STORE...");
  Store::check_name(options.store);
  Sweep sweep = expand_sweep(ConfigNode::from_file(here_or_shipped(options.config)));
  if (!options.shard.empty()) sweep = shard_of(std::move(sweep), parse_shard(options.shard));
  const PointRunner runner = experiments_at(sweep.base_file);
  return options.launcher == "slurm" ? submit(options, sweep, runner)
                                     : run_here(options, std::move(sweep), runner);
}

constexpr std::string_view sweep_footer = R"(CONFIG is a JSON file:
  {"base": "experiment.json",
   "axes": {"/placement/replication": [1, 1.5], "/token_routing/decode": ["even", "metro"]},
   "zip":  {"/parallel/dp": [8, 16], "/parallel/ep": [8, 16]},
   "set":  {"/slo": {"tpot": "50 ms"}},
   "seeds": [1, 2, 3],
   "skip": [{"/placement/replication": 1, "/token_routing/decode": "metro"}]}
Every combination of the axes is run with each row of the zip and each seed. Values of "set" hold
for all points. "blocks": [{"axes", "zip", "set"}, ..] holds several such grids. A point that
matches a whole skip rule is left out. Values may be objects. Paths in values are relative to the
folder of the base.

The same command continues a stopped or killed sweep: points that are done are not run again.
Ctrl-C waits for the points in flight, a second Ctrl-C does not. Under slurm, -j is the number of
cores of each task, and requeued tasks continue in the same way.
Exit: 0 done (points that cannot be run are listed), 1 a point failed, 2 bad input, 130 Ctrl-C.)";

}  // namespace

Action setup_sweep(CLI::App& command) {
  const auto options = std::make_shared<SweepArguments>();
  CLI::Option* config = command.add_option("CONFIG", options->config, "sweep, a JSON file");
  option(command, "--merge", options->merged,
         "instead of CONFIG: stores that --shard wrote, put into one; stores of different sweeps, "
         "or with different results of one point, are refused")
      ->excludes(config);
  option(command, "-o,--output", options->store, "store of the results, a SQLite file", mandatory);
  option(command, "-j,--threads", options->threads, "threads to use (default: all cores)",
         at_least_one());
  CLI::Option* shard = option(command, "--shard", options->shard,
                              "run every Nth point from the Ith on: I/N; --merge joins the stores",
                              [](const std::string& text) -> std::string {
                                return text.empty() ? "expected I/N, e.g. 2/8, found nothing" : "";
                              });
  option(command, "--launcher", options->launcher,
         "here, or slurm: a job array and a job that merges", CLI::IsMember({"here", "slurm"}))
      ->excludes(shard);
  option(command, "--tasks", options->slurm.tasks, "slurm: tasks of the array (default: 8)",
         at_least_one());
  command.add_option("--partition", options->slurm.partition, "slurm: where the tasks run");
  command.add_option("--time", options->slurm.time, "slurm: limit of each task, e.g. 2:00:00");
  option(command, "--sbatch", options->slurm.more,
         "slurm: any other option, e.g. --sbatch=--account=lab; repeatable", repeatable);
  command.add_option("--csv", options->csv, "write every point, named as in JSON, to this file");
  command.add_flag("--json", options->json, "print JSON instead of a table");
  command.footer(std::string(sweep_footer));
  return [options] { return run(*options); };
}

}  // namespace moesim
