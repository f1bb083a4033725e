// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "hardware/text.hpp"

namespace moesim {

namespace {

// Does `work` on 0 .. n - 1, on `threads` threads, until stopped or until one throws; then
// rethrows. Each piece of work is isolated. A thread that waits for the inner loops of one run must
// not start another run in between. That could wait for a lock that the first one holds.
template <class Work>
void for_each_point(std::size_t n, const SweepOptions& options, Work&& work) {
  std::mutex mutex;
  std::exception_ptr broken;
  std::atomic<bool> ended = false;
  // More threads than cores are given, too, if asked for.
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  at(options.threads));
  tbb::task_arena arena(options.threads);
  arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::size_t>(0, n, 1),
        [&](const auto& range) {
          for (std::size_t i = range.begin(); i < range.end(); ++i) {
            if (ended || options.stop()) return;
            try {
              tbb::this_task_arena::isolate([&] { work(i); });
            } catch (...) {
              // Not thrown on from here: that would cancel the inner loops of the runs in flight,
              // whose reports would then be wrong.
              const std::lock_guard lock(mutex);
              if (!broken) broken = std::current_exception();
              ended = true;
            }
          }
        },
        tbb::simple_partitioner());
  });
  if (broken) std::rethrow_exception(broken);
}

struct Result {
  PointStatus status;
  std::string error;
  std::string report;
};

Result run_point(const PointRunner& runner, const Json& config) {
  try {
    return {PointStatus::done, "", runner.run(config)};
  } catch (const ConfigError& error) {
    return {PointStatus::infeasible, error.what(), ""};
  } catch (const std::exception& error) {
    return {PointStatus::failed, error.what(), ""};
  }
}

// Why each point cannot be run; nothing for those that can.
std::vector<std::optional<std::string>> check_points(const std::vector<const SweepPoint*>& points,
                                                     const PointRunner& runner,
                                                     const SweepOptions& options) {
  std::vector<std::optional<std::string>> errors(points.size());
  std::mutex mutex;
  std::size_t checked = 0;
  for_each_point(points.size(), options, [&](std::size_t i) {
    try {
      runner.check(points[i]->config);
    } catch (const ConfigError& error) {
      errors[i] = error.what();
    }
    const std::lock_guard lock(mutex);
    options.checked(++checked, points.size());
  });
  return errors;
}

}  // namespace

Shard parse_shard(std::string_view text) {
  const std::size_t slash = std::min(text.find('/'), text.size());
  const auto place = try_number<std::size_t>(text.substr(0, slash));
  const auto count = try_number<std::size_t>(text.substr(std::min(slash + 1, text.size())));
  if (!place || !count || *place < 1 || *place > *count)
    throw ConfigError("--shard {}: expected I/N with I from 1 to N, e.g. 2/8", text);
  return {*place - 1, *count};
}

Sweep shard_of(Sweep sweep, Shard shard) {
  std::vector<SweepPoint> points;
  for (std::size_t i = shard.index; i < sweep.points.size(); i += shard.count)
    points.push_back(std::move(sweep.points[i]));
  if (points.empty()) {
    throw ConfigError("--shard {}/{}: the sweep has {} points; use no more shards", shard.index + 1,
                      shard.count, sweep.points.size());
  }
  sweep.points = std::move(points);
  return sweep;
}

SweepOutcome run_sweep(const Sweep& sweep, const std::filesystem::path& file,
                       const PointRunner& runner, const SweepOptions& options) {
  std::map<std::string, PointStatus> known;
  std::string written_by;
  if (const std::optional<Store> store = Store::open_if_begun(file)) {
    known = store->statuses_of(sweep.points);
    written_by = store->written_by();
  }
  std::vector<const SweepPoint*> open;
  for (const SweepPoint& point : sweep.points) {
    const auto found = known.find(point.config_hash);
    if (found == known.end() || found->second != PointStatus::done) open.push_back(&point);
  }

  SweepOutcome outcome{sweep.points.size() - open.size(), 0, open.size(), std::move(written_by)};
  options.resumes(outcome.resumed);
  const std::vector<std::optional<std::string>> errors = check_points(open, runner, options);
  if (options.stop()) return outcome;
  const auto infeasible =
      at(std::ranges::count_if(errors, [](const auto& error) { return error.has_value(); }));
  if (options.refuse_infeasible && infeasible == sweep.points.size()) {
    throw ConfigError(infeasible == 1
                          ? *errors.front()
                          : fmt::format("{} (none of the {} points can be run; this is the first)",
                                        *errors.front(), infeasible));
  }

  Store store = Store::open_for(file, sweep.document, sweep.points);
  if (!open.empty()) store.add_writer(options.version);
  std::vector<const SweepPoint*> to_run;
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (errors[i]) {
      store.record(open[i]->config_hash, PointStatus::infeasible, *errors[i], "");
    } else {
      to_run.push_back(open[i]);
    }
  }
  options.progress(0, to_run.size());
  std::mutex mutex;
  for_each_point(to_run.size(), options, [&](std::size_t i) {
    const Result result = run_point(runner, to_run[i]->config);
    const std::lock_guard lock(mutex);
    store.record(to_run[i]->config_hash, result.status, result.error, result.report);
    options.progress(++outcome.ran, to_run.size());
  });
  outcome.left = to_run.size() - outcome.ran;
  return outcome;
}

}  // namespace moesim
