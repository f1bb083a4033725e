// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <tbb/global_control.h>

#include "sim/serving/shared_run.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/bench/step_records.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/run/cluster_text.hpp"
#include "tools/run/event_log.hpp"
#include "tools/run/intervals.hpp"
#include "tools/run/report_text.hpp"
#include "tools/run/run_csv.hpp"
#include "tools/run/timeline.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

struct RunOptions {
  ExperimentOptions experiment;
  std::string report, profile, requests, steps, fpm, timeline, events, launch, launch_to;
  std::int64_t unfolded_step = 0;
  bool json = false, intervals = false, launch_only = false;
  int threads = 0;
};

// How far metrics vary between runs that could as well be true.
std::string bands_of(const OrderedJson& intervals) {
  Table table({fmt::format("{} of {} runs within", percent(intervals["share"].get<double>()),
                           intervals["runs"].get<int>()),
               "low", "median", "high"});
  for (const auto& [name, band] : intervals["metrics"].items()) {
    if (band.is_null()) continue;
    const auto at = [&band = band](const char* key) {
      return fixed_text(band.at(key).get<double>(), 2);
    };
    table.add({name, at("low"), at("median"), at("high")});
  }
  return "\n" + table.text();
}

// Why requests were rejected.
class Rejections : public RunObserver {
 public:
  explicit Rejections(const Deployment& e) : longest_(e.max_model_len) {}
  void request_left(std::uint32_t, const RequestRecord& request) override {
    if (request.state != RequestLife::State::rejected) return;
    const std::int64_t tokens = std::int64_t{request.prompt_tokens} + request.output_tokens;
    ++(longest_ > 0 && tokens > longest_ ? too_long_ : too_large_);
  }
  std::string text(std::int64_t blocks_per_rank) const {
    std::vector<std::string> reasons;
    if (too_long_ > 0)
      reasons.push_back(fmt::format("{} longer than the context of {} tokens (max_model_len)",
                                    too_long_, longest_));
    if (too_large_ > 0)
      reasons.push_back(fmt::format("{} in need of more KV blocks than the {} that a rank has",
                                    too_large_, blocks_per_rank));
    return fmt::format("{}", fmt::join(reasons, ", "));
  }

 private:
  std::int64_t longest_, too_long_ = 0, too_large_ = 0;
};

std::string trust_of(const OrderedJson& document, const Experiment& e) {
  return trust_line({{"breakdown", Json(document["breakdown"])}}, e.config);
}

// Trust line of the document of a run with several deployments.
std::string trust_of(const OrderedJson& document, const ConfigNode& config) {
  std::vector<Json> breakdowns;
  for (const auto& [name, one] : document["deployments"].items())
    breakdowns.push_back({{"breakdown", Json(one["report"]["breakdown"])}});
  std::vector<const Json*> all;
  for (const Json& one : breakdowns) all.push_back(&one);
  return trust_line_over(all, engine_of(config.json()));
}

// A script should not take it for a result that no request was served.
bool all_rejected(const Metrics& metrics) {
  return metrics.rejected > 0 && metrics.completed == 0 &&
         metrics.timed_out.value_or(0) + metrics.cancelled.value_or(0) == 0;
}

OrderedJson profile_of(const SimulatorWork& work, double wall) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return {{"wall_s", wall},
          {"cpu_s", seconds(usage.ru_utime) + seconds(usage.ru_stime)},
          {"peak_rss_mb", double(usage.ru_maxrss) / 1024},
          {"steps", work.steps},
          {"steps_per_s", double(work.steps) / wall},
          {"routed_ids_per_s", double(work.routed_ids) / wall},
          {"generated_tokens_per_s", double(work.generated_tokens) / wall}};
}

OrderedJson intervals_of(const ConfigNode& config) {
  constexpr int runs = 16;
  ProgressBar progress("runs");
  return intervals(config, runs, [&](int finished) { progress.update(finished, runs); });
}

// Refuses options of what is written of one run.
void refuse_options_of_one_run(const RunOptions& options) {
  const std::pair<const char*, bool> of_one_run[] = {
      {"--requests", !options.requests.empty()}, {"--steps", !options.steps.empty()},
      {"--fpm", !options.fpm.empty()},           {"--events", !options.events.empty()},
      {"--timeline", !options.timeline.empty()}, {"--launch", !options.launch.empty()},
      {"--intervals", options.intervals}};
  for (const auto& [option, given] : of_one_run) {
    if (!given) continue;
    throw ConfigError(
        "{}: is of one deployment, and the config has several; name one with --deployment", option);
  }
}

// Several models on one cluster.
int run_deployments(const RunOptions& options, const ConfigNode& config) {
  refuse_options_of_one_run(options);
  TraceLibrary traces;
  Remarks remarks;
  const auto start = std::chrono::steady_clock::now();
  ProgressBar progress("requests");
  std::vector<Recordings> recordings;  // of each deployment
  const ClusterReport report = run_shared(
      read_shared_cluster(config), traces, {}, progress.hook(), [&](const Experiment& experiment) {
        remarks.say_of(experiment);
        recordings.push_back(recordings_of(experiment.decode()));
      });
  progress.finish();
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    const auto& [name, stats] = report.deployments.at(i);
    const std::string remark = remark_on_recordings(recordings[i], stats.report);
    if (!remark.empty()) remarks.say(fmt::format("deployment {}: {}", name, remark));
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  const OrderedJson document = report.document();
  const std::string json = document.dump(1) + "\n";
  if (!options.profile.empty())
    write_file(options.profile, profile_of(report.work, wall.count()).dump(1) + "\n");
  if (!options.report.empty()) write_file(options.report, json);
  print(options.json ? json : cluster_text(report) + trust_of(document, config));
  const auto served = [](const auto& named) { return !all_rejected(named.second.report.metrics); };
  return std::ranges::all_of(report.deployments, served) ? 0 : 3;
}

// Files that a run writes while it runs.
class RunFiles {
 public:
  RunFiles(const RunOptions& options, const Experiment& experiment) : options_(options) {
    if (!options.timeline.empty()) {
      observers_.push_back(&timeline_.emplace(options.timeline, experiment, options.unfolded_step));
    } else if (options.unfolded_step > 0) {
      throw ConfigError("--timeline-layers: needs --timeline, which it adds to");
    }
    if (!options.steps.empty()) observers_.push_back(&steps_.emplace(options.steps));
    if (!options.fpm.empty()) observers_.push_back(&records_.emplace(options.fpm));
    if (!options.events.empty()) observers_.push_back(&events_.emplace(options.events));
    if (!options.requests.empty()) observers_.push_back(&requests_);
    observers_.push_back(&rejections_.emplace(experiment.decode()));
  }
  RunFiles(const RunFiles&) = delete;

  std::span<RunObserver* const> observers() const { return observers_; }
  const Rejections& rejections() const { return *rejections_; }
  void finish(const Deployment& e) {
    const auto& sessions = e.workload.sessions;
    if (!options_.requests.empty())
      write_file(options_.requests, requests_csv(requests_.requests(), e.classes, e.max_model_len,
                                                 sessions ? sessions->rules.shared_prefix : 0));
    if (timeline_) timeline_->finish();
    if (steps_) steps_->finish();
    if (records_) records_->finish();
    if (events_) events_->finish();
  }

 private:
  const RunOptions& options_;
  std::optional<Timeline> timeline_;
  std::optional<StepsCsv> steps_;
  std::optional<StepRecords> records_;
  std::optional<EventLog> events_;
  std::optional<Rejections> rejections_;
  RequestLog requests_;
  std::vector<RunObserver*> observers_;
};

void log_speed(const Report& report, const OrderedJson& profile, double seconds) {
  const std::string ids =
      report.work.routed_ids > 0
          ? fmt::format(", {:.3g} routed ids/s", profile["routed_ids_per_s"].get<double>())
          : "";
  spdlog::info("simulated {} steps in {:.2f} s ({:.0f} steps/s{})", report.work.steps, seconds,
               profile["steps_per_s"].get<double>(), ids);
}

// Prints or writes the commands alone.
int say_launch(const RunOptions& options, const ConfigNode& config) {
  const ExperimentSpec spec = read_spec(config);
  if (options.launch_only) print(launch_text(options.launch, spec));
  if (options.launch_to.empty()) return 0;
  const std::filesystem::path folder = options.launch_to;
  std::string names;
  for (const LaunchFile& file : launch_files(options.launch, spec)) {
    write_file(folder / file.name, file.text);
    names += " " + file.name;
  }
  print(indented(fmt::format("written into {}:{}", folder.string(), names), 2));
  return 0;
}

int run_experiment(const RunOptions& options) {
  const auto threads = at(threads_of(options.threads));
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  if (!options.requests.empty() &&
      options.requests.find_first_not_of("0123456789") == options.requests.npos)
    throw ConfigError(
        "--requests {0} names a file; for {0} requests use --set /workload/requests={0}",
        options.requests);
  for (const auto& file : {options.report, options.profile, options.requests}) {
    require_writable(file);
  }
  require_different({{"CONFIG", options.experiment.config},
                     {"-o", options.report},
                     {"--profile", options.profile},
                     {"--requests", options.requests},
                     {"--steps", options.steps},
                     {"--fpm", options.fpm},
                     {"--events", options.events},
                     {"--timeline", options.timeline}});
  const ConfigNode config = options.experiment.read();
  if (is_shared(config)) return run_deployments(options, config);
  TraceLibrary traces;
  Remarks remarks;
  if (options.launch_only || !options.launch_to.empty()) return say_launch(options, config);
  const Experiment experiment = remarks.say_of(load_experiment(config, traces));
  RunFiles files(options, experiment);
  const auto start = std::chrono::steady_clock::now();
  ProgressBar progress("requests");
  const Report report = run(experiment, progress.hook(), files.observers());
  progress.finish();
  if (options.unfolded_step > report.work.steps)
    spdlog::warn("--timeline-layers {}: the run has {} steps", options.unfolded_step,
                 report.work.steps);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;

  const OrderedJson profile = profile_of(report.work, wall.count());
  log_speed(report, profile, wall.count());
  remarks.say(remark_on_recordings(recordings_of(experiment.decode()), report));
  OrderedJson document = report.document();
  std::string text = report_text(report, experiment.decode(),
                                 files.rejections().text(report.pool.kv.blocks_per_rank));
  if (options.intervals) {
    const OrderedJson& intervals = document["intervals"] = intervals_of(config);
    if (report.metrics.completed > 0) text += bands_of(intervals);
  }
  const std::string json = document.dump(1) + "\n";
  if (!options.profile.empty()) write_file(options.profile, profile.dump(1) + "\n");
  files.finish(experiment.decode());
  if (!options.report.empty()) write_file(options.report, json);
  const bool none = all_rejected(report.metrics);
  print(options.json ? json : text + (none ? "" : trust_of(document, experiment)));
  if (!options.launch.empty()) print("\n" + launch_text(options.launch, read_spec(config)));
  return none ? 3 : 0;
}

}  // namespace

Action setup_run(CLI::App& command) {
  const auto options = std::make_shared<RunOptions>();
  options->experiment.add_with_deployment(command);
  command.add_option("-o,--output", options->report, "write the whole report, JSON");
  command.add_flag("--json", options->json, "print the report instead of tables");
  command.add_flag("--intervals", options->intervals,
                   "run 16 times more with constants, seeds and recorded requests drawn again, and "
                   "say how far the results vary");
  add_launch_option(command, options->launch);
  command
      .add_flag("--launch-only", options->launch_only,
                "print the commands of --launch alone, and simulate nothing")
      ->needs("--launch");
  option(command, "--launch-to", options->launch_to,
         "write the commands of --launch into this folder, and simulate nothing: a script and a "
         "Kubernetes manifest for each server, router and benchmark")
      ->needs("--launch");
  option(command, "--threads", options->threads, "threads to use (default: all cores)",
         at_least_one());
  command.add_option("--profile", options->profile,
                     "write the simulator's own time, memory and speed, JSON");
  command.add_option("--requests", options->requests, "write a line per request, CSV");
  command.add_option("--steps", options->steps, "write a line per step, CSV");
  command.add_option(
      "--fpm", options->fpm,
      "write a line per step and rank as Dynamo records them, JSONL: what bench --fpm reads");
  command.add_option("--events", options->events,
                     "write a line per event of the simulation, JSON: what happens, when, to which "
                     "request or EP group");
  command.add_option("--timeline", options->timeline,
                     "write steps, GPU lanes and requests as a trace that Perfetto opens, JSON");
  option(command, "--timeline-layers", options->unfolded_step,
         "a step (line of --steps) whose MoE layers the timeline shows one by one", at_least_one());
  return [options] { return run_experiment(*options); };
}

}  // namespace moesim
