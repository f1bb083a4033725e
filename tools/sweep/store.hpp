// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "tools/sweep/axes.hpp"

struct sqlite3;

namespace moesim {

/// A point of a sweep: a whole experiment config, before defaults.
struct SweepPoint {
  std::string config_hash;  ///< 16 hex digits: FNV-1a of the config as canonical JSON, and of what
                            ///< the files hold that it names
  Json config;
};

/// Makes a point of a config that names files with these contents; none: 0.
SweepPoint sweep_point(Json config, std::uint64_t files = 0);

enum class PointStatus {
  pending,    ///< not run to its end yet; a search that gave its run up notes so as the report
  done,       ///< has a report
  failed,     ///< the simulator broke off: a bug, `error` says which
  infeasible  ///< the config asks for what cannot be, `error` says what
};
std::string_view status_name(PointStatus);

/// A point as the store holds it.
struct StoredPoint {
  std::string config_hash;
  Json config;
  PointStatus status = PointStatus::pending;
  std::string error;  ///< of a failed or infeasible point
  Json report;        ///< of a done point, else null; in part, if the store was read in part
};

/// Place where a report holds the experiment with every key, defaults included.
inline constexpr std::string_view config_in_report = "/context/config";
/// Setting of a point, by default too; null where nothing was.
const Json* setting_of(const StoredPoint&, const std::string& pointer);

/// A point as the store holds it: JSON unparsed, empty where there is none.
struct StoreRow {
  std::string config_hash, config;
  PointStatus status = PointStatus::pending;
  std::string error, report;
};

/// Everything in a store: what verbs that evaluate it work on.
struct StoredSweep {
  Json document;                    ///< the sweep file
  std::vector<Axis> axes;           ///< what differs between the points
  std::vector<StoredPoint> points;  ///< in the order of the sweep
};

/// The results of a sweep, one SQLite file:
///
///   meta(schema_version, sweep, moesim)   one row; the sweep file as JSON, and which versions of
///                                         moesim wrote points (stores of 0.1.0 may lack it)
///   points(config_hash, config, status, error, report)
///   metrics                         a view: the axes and the main numbers of each report
///
/// Nothing in it depends on the clock or on the number of threads.
///
/// Every point is written in a transaction of its own, with SQLite's rollback journal: killed at
/// any time, the file keeps what was finished. A store that is opened for the same sweep again
/// keeps its done points for good. Points that are pending, failed or infeasible are to be tried
/// again (a fixed file may make them feasible). The sweep may have grown: new points are added. A
/// store that holds points which the sweep lacks belongs to another sweep and is refused.
///
/// A faulty file gives a ConfigError of one line and stays as it was. It is no SQLite file, damaged
/// or cut short, a database of something else, of another schema version, locked by another
/// program, or not writable. Not for several threads at a time.
class Store {
 public:
  static constexpr int schema_version = 1;

  /// Throws ConfigError if a new store has no name, or one that says the file is something else.
  static void check_name(const std::filesystem::path& file);
  /// Opens what a sweep has written.
  static Store open(const std::filesystem::path& file);
  /// Opens as open(); nothing where there is no file yet, or one without a table: a program that
  /// was killed in its first moments leaves it so.
  static std::optional<Store> open_if_begun(const std::filesystem::path& file);
  /// Opens or creates the store of a sweep; points that it lacks become pending.
  static Store open_for(const std::filesystem::path& file, const Json& sweep,
                        std::span<const SweepPoint> points);

  StoredSweep read() const;
  /// Reads of each config what the sweep sets and what is at these pointers. Reads the latter of
  /// each report, and what its resolved config has there. The first done point's report is whole,
  /// so that messages can name its parts. Memory grows with the points, not with reports.
  StoredSweep read(std::span<const std::string> pointers) const;
  /// The report of one point, whole; null if it has none.
  Json report_of(const std::string& config_hash) const;
  /// Which versions of moesim wrote it, "" if it does not say.
  std::string written_by() const;
  /// Notes a version that writes points, once.
  void add_writer(const std::string& version);
  /// Calls read(row) with each point in the order of the sweep; one at a time is in memory.
  void for_each_row(const std::function<void(StoreRow)>& read) const;
  /// Every point in the order of the sweep, all in memory at once.
  std::vector<StoreRow> rows() const;
  /// The point of this hash. Throws ConfigError if there is none.
  StoreRow row(const std::string& config_hash) const;
  /// The sweep file, as JSON text with sorted keys.
  std::string sweep() const;
  /// The status of each of these points that the store holds, by hash. Throws ConfigError if it
  /// holds others.
  std::map<std::string, PointStatus> statuses_of(std::span<const SweepPoint> points) const;
  /// Records what became of a point, durably. `report` is JSON, empty unless the point is done.
  void record(const std::string& config_hash, PointStatus, std::string_view error,
              std::string_view report);
  /// Records many points, all or none. Points that the store lacks are added first.
  void record(std::span<const StoreRow> rows, std::span<const SweepPoint> of = {});
  /// Records `count` points, all or none, of which row(0), row(1), .. are asked for in this
  /// order: one at a time is in memory.
  void record(std::size_t count, const std::function<StoreRow(std::size_t)>& row,
              std::span<const SweepPoint> of = {});

 private:
  struct Close {
    void operator()(sqlite3*) const;
  };

  Store(const std::filesystem::path& file, bool create);
  bool is_empty() const;
  bool names_writers() const;
  void insert(std::span<const SweepPoint> points) const;
  void check_schema() const;
  Json parsed(std::string_view text) const;
  Json sweep_document() const;
  void execute(const std::string& sql) const;

  std::filesystem::path file_;
  std::unique_ptr<sqlite3, Close> database_;
};

/// The number at a pointer into a point's report, or nothing: absent, null, or the point is not
/// done.
std::optional<double> report_number(const StoredPoint& point, const std::string& pointer);

/// "12 done, 3 infeasible"
std::string count_by_status(std::span<const StoredPoint> points);

}  // namespace moesim
