// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "tools/sweep/store.hpp"

namespace moesim {

/// A sweep file, written out.
struct Sweep {
  Json document;                    ///< the file as written
  std::filesystem::path base_file;  ///< paths in the configs are relative to it
  std::vector<SweepPoint> points;   ///< different from each other; later axes vary fastest
};

/// Writes out a sweep file:
///
///   {"base": "experiment.json",                    or the experiment itself
///    "axes": {"/json/pointer": [values], ...},     every combination of these ...
///    "zip":  {"/a": [1, 2], "/b": [8, 4]},         ... with each row of these ...
///    "set":  {"/c": value},                        ... and this in every point
///    "seeds": [1, 2, 3],                           the same as an axis "/seed"
///    "couple": {"/x": {"metro": {"/y": "all_gather"}}},   what goes with a value of a key
///    "skip": [{"/a": 1, "/x": "metro"}, ...]}      leaves out points that match all of a rule
///
/// or, in the place of axes, zip and set, "blocks": a list of objects with these keys, one after
/// the other. Pointers lead into the base; what they set may be new, what holds it must be there.
/// Values may be objects; shorter pointers are set before longer ones, so that one axis can change
/// a policy and another its option. A coupling is by the value's text as tables show it, and its
/// settings may not be set elsewhere. A skip rule matches what is written, not defaults; "metro"
/// and
/// {"type": "metro"} match each other. Equal points are merged, equal values of an axis (1 and 1.0)
/// too.
///
/// Throws ConfigError if it is none, an axis is empty or set twice, or a pointer leads nowhere.
/// Throws it if a skip rule names what no point has, or no point is left.
Sweep expand_sweep(const ConfigNode& file);
/// Makes points of configs that no sweep file lists. Files that several of them name are read once.
class PointMaker {
 public:
  /// Names in configs are relative to the folder.
  explicit PointMaker(std::filesystem::path folder);
  ~PointMaker();
  SweepPoint of(Json config);

 private:
  struct Files;
  std::filesystem::path folder_;
  std::unique_ptr<Files> files_;
};
/// The keys of a sweep file, as expand_sweep() reads them.
std::span<const Key> sweep_keys();

/// Work of a sweep on a config. Called by several threads at a time.
struct PointRunner {
  /// Throws ConfigError if the config cannot be run.
  std::function<void(const Json& config)> check;
  /// The report, JSON. Throws ConfigError if the config cannot be run after all; any other
  /// exception is a failed point.
  std::function<std::string(const Json& config)> run;
};

/// Every `count`th point from the `index`th on, counted from 0: what one of several machines runs.
struct Shard {
  std::size_t index = 0, count = 1;
};
/// Reads "2/8", counted from 1. Throws ConfigError.
Shard parse_shard(std::string_view text);
/// The sweep with this shard's points alone. Throws ConfigError if it has none.
Sweep shard_of(Sweep, Shard);

struct SweepOptions {
  int threads = 1;
  std::string version{};  ///< of moesim, noted in the store
  /// True if a sweep of which no point can be run is refused; a shard may be so by chance.
  bool refuse_infeasible = true;
  /// Called, by one thread at a time, before the first point is run and whenever one is finished:
  /// (finished, to run this time).
  std::function<void(std::size_t, std::size_t)> progress = [](std::size_t, std::size_t) {};
  /// Called likewise for the checks before the runs.
  std::function<void(std::size_t, std::size_t)> checked = [](std::size_t, std::size_t) {};
  /// Called once, before the checks: how many points are done already.
  std::function<void(std::size_t)> resumes = [](std::size_t) {};
  /// Asked before each point: true ends the sweep after the points in flight.
  std::function<bool()> stop = [] { return false; };
};

struct SweepOutcome {
  std::size_t resumed = 0;   ///< points that were done before
  std::size_t ran = 0;       ///< points that were run now
  std::size_t left = 0;      ///< points that are not tried yet, because of a stop
  std::string written_by{};  ///< the versions of moesim that ran those done before, if they said so
};

/// Runs the points that the store does not have as done, and records each as it finishes. All are
/// checked before the first is run: one that cannot be run is recorded as infeasible. Throws
/// ConfigError, with the store untouched, if no point of the sweep can be run (the first one's
/// error, see SweepOptions). Throws it, too, if the store is not this sweep's (see Store).
SweepOutcome run_sweep(const Sweep&, const std::filesystem::path& store, const PointRunner&,
                       const SweepOptions&);

/// Merges stores of one sweep, such as those of its shards, into `output`, which may be there
/// already and may be among them. The rows are taken in turn, so that all shards, in order, give
/// the order of the sweep. If two stores have the same point, a done one replaces one that is not;
/// merging again changes nothing. Throws ConfigError, with `output` untouched, if a file is no
/// store of this schema, or the stores are not of one sweep. Throws it if two stores contradict
/// each other: a point with two configs or two reports.
void merge_stores(const std::vector<std::filesystem::path>& stores,
                  const std::filesystem::path& output);

/// Reads what sweep_text() shows.
StoredSweep read_for_text(const Store&);

/// Place where a report says if its rates are those of a steady state: "stable", or why not.
inline constexpr const char* state_pointer = "/measurement/state";
/// Text that a terminal shows of a finished sweep: a row per done point, then the others and why.
std::string sweep_text(const StoredSweep&);

/// A row for each point of a store: config_hash, status, error, state, settings of the axes, and
/// metrics under their names; null where a point has none.
OrderedJson sweep_rows(const Store&);

/// Returns trust_line_over() of all that is done in a store that was read with trust_pointers.
std::string trust_line(const StoredSweep&);

}  // namespace moesim
