// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "sim/simulator.hpp"
#include "tools/output.hpp"
#include "tools/sweep.hpp"
#include "tools/verbs.hpp"

namespace moesim {

namespace {

constexpr int exit_internal_error = 1;
constexpr int exit_interrupted = 130;  // 128 + SIGINT, as shells have it

struct Options {
  std::string config, store;
  int threads = 0;
};

// The one global: a signal handler can reach nothing else.
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

// The first Ctrl-C lets the points in flight finish, the second ends the program as usual.
class InterruptGuard {
 public:
  InterruptGuard() {
    std::signal(SIGINT, [](int) {
      interrupted = true;
      std::signal(SIGINT, SIG_DFL);
    });
  }
  ~InterruptGuard() { std::signal(SIGINT, SIG_DFL); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

std::string duration_text(double seconds) {
  const auto s = static_cast<long>(seconds + .5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

// How far a sweep is: on a terminal one line that is drawn over, elsewhere a line every tenth.
class SweepProgress {
 public:
  void operator()(std::size_t finished, std::size_t total) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    const double left = elapsed.count() / double(finished) * double(total - finished);
    const std::string state = fmt::format("{} of {} points, {} left", finished, total,
                                          finished == total ? "none" : duration_text(left));
    if (::isatty(STDERR_FILENO) != 0) {
      constexpr std::size_t width = 30;
      const std::size_t full = width * finished / total;
      fmt::print(stderr, "\r[{}{}] {}\033[K{}", std::string(full, '#'),
                 std::string(width - full, '.'), state, finished == total ? "\n" : "");
      std::fflush(stderr);
    } else if (finished * 10 / total > tenths_) {
      tenths_ = finished * 10 / total;
      spdlog::info("{}", state);
    }
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::size_t tenths_ = 0;
};

int run(const Options& options) {
  const Sweep sweep = expand_sweep(ConfigNode::from_file(options.config));
  TraceLibrary traces;
  const auto load = [&](const Json& config) {
    return load_experiment(ConfigNode(config, sweep.base_file), traces);
  };
  const PointRunner runner{
      [&](const Json& config) { load(config); },
      [&](const Json& config) { return moesim::run(load(config)).document.dump(); }};
  SweepOptions how;
  how.threads = options.threads > 0
                    ? options.threads
                    : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  how.progress = [progress = SweepProgress()](std::size_t finished, std::size_t total) mutable {
    progress(finished, total);
  };
  how.stop = [] { return interrupted.load(); };

  const InterruptGuard guard;
  const SweepOutcome outcome = run_sweep(sweep, options.store, runner, how);
  if (outcome.resumed > 0)
    spdlog::info("{} of {} points were done before", outcome.resumed, sweep.points.size());
  if (outcome.left > 0) {
    spdlog::warn("stopped with {} points left; the same command runs them", outcome.left);
    return exit_interrupted;
  }
  const StoredSweep stored = Store::open(options.store).read();
  print(sweep_text(stored));
  const bool failed =
      std::any_of(stored.points.begin(), stored.points.end(),
                  [](const StoredPoint& point) { return point.status == PointStatus::failed; });
  return failed ? exit_internal_error : 0;
}

constexpr std::string_view footer = R"(CONFIG is a JSON file:
  {"base": "experiment.json",
   "axes": {"/placement/replication": [1, 1.5], "/token_routing/decode": ["even", "metro"]},
   "zip":  {"/parallel/dp": [8, 16], "/parallel/ep": [8, 16]},
   "set":  {"/slo": {"tpot": "50 ms"}},
   "seeds": [1, 2, 3],
   "skip": [{"/placement/replication": 1, "/token_routing/decode": "metro"}]}
Every combination of the axes is run with each row of the zip and each seed; what is set is set in
all. "blocks": [{"axes", "zip", "set"}, ..] holds several such grids. A point that matches a whole
skip rule is left out. Values may be objects. Paths in values are relative to the folder of the
base.

The same command goes on where it was stopped or killed: points that are done are not run again.
Ctrl-C waits for the points in flight, a second one does not.
Exit: 0 done (points that cannot be run are listed), 1 a point failed, 2 bad input, 130 Ctrl-C.)";

}  // namespace

Action setup_sweep(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  command.add_option("CONFIG", options->config, "sweep, a JSON file")->required();
  command.add_option("-o,--output", options->store, "store of the results, a SQLite file")
      ->required();
  command.add_option("-j,--threads", options->threads, "threads to use (default: all cores)")
      ->check(CLI::PositiveNumber);
  command.footer(std::string(footer));
  return [options] { return run(*options); };
}

}  // namespace moesim
