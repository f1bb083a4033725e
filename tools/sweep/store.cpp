// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/store.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <sqlite3.h>

#include "hardware/parse_json.hpp"
#include "hardware/rng.hpp"
#include "sim/report/metric_catalogue.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

constexpr int lock_patience_ms = 5000;
constexpr std::array<std::string_view, 4> status_names{"pending", "done", "failed", "infeasible"};

std::string in_quotes(std::string_view text, char quote) {
  std::string result(1, quote);
  for (const char c : text) result += c == quote ? std::string(2, c) : std::string(1, c);
  return result + quote;
}

// "/steps/decode/mean_ms" -> '$."steps"."decode"."mean_ms"', as a text of SQL. A number between
// slashes is taken as a place in a list: no config has keys that are numbers.
std::string sql_path(const std::string& pointer) {
  std::string path = "$";
  Json::json_pointer rest(pointer);
  std::vector<std::string> keys;
  for (; !rest.empty(); rest.pop_back()) keys.push_back(rest.back());
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const bool place = !key->empty() && key->find_first_not_of("0123456789") == std::string::npos;
    path += place ? fmt::format("[{}]", *key) : fmt::format(".\"{}\"", *key);
  }
  return in_quotes(path, '\'');
}

std::string view_sql(const std::vector<Axis>& axes) {
  std::string sql =
      "DROP VIEW IF EXISTS metrics; CREATE VIEW metrics AS SELECT config_hash, status";
  const auto add = [&](std::string_view from, const std::string& pointer, std::string_view name) {
    sql +=
        fmt::format(", json_extract({}, {}) AS {}", from, sql_path(pointer), in_quotes(name, '"'));
  };
  for (const Axis& axis : axes) add("config", axis.pointer, axis.name);
  for (const Metric& metric : metric_catalogue) {
    add("report", std::string(metric.pointer), metric.name);
  }
  return sql + " FROM points";
}

PointStatus status_of(const std::string& name) {
  const auto found = std::ranges::find(status_names, name);
  if (found == status_names.end()) {
    throw ConfigError("a point has the unknown status \"{}\"", name);
  }
  return static_cast<PointStatus>(found - status_names.begin());
}

std::string_view advice(int code) {
  switch (code & 0xff) {  // the low byte is the kind of error, the rest its variety
    case SQLITE_NOTADB: return "is not a store that `moesim sweep` wrote; name another file";
    case SQLITE_CORRUPT: return "is damaged or cut short; restore a copy or name another file";
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return "is locked by another program; try again when that is done";
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH: return "cannot be opened or written; name a file in a writable folder";
    case SQLITE_FULL:
    case SQLITE_IOERR: return "cannot be written, is the disk full? What was finished is kept";
    default: return "cannot be used as a store; name another file";
  }
}

[[noreturn]] void fail(const std::filesystem::path& file, sqlite3* database, int code) {
  throw ConfigError("{}: {} ({})", file.string(), advice(code),
                    database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code));
}

// An SQL statement: bind, then row by row.
class Statement {
 public:
  Statement(const std::filesystem::path& file, sqlite3* database, std::string_view sql)
      : file_(file), database_(database) {
    sqlite3_stmt* statement = nullptr;
    const int code =
        sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
    statement_.reset(statement);
    if (code != SQLITE_OK) fail(file_, database_, code);
  }

  Statement& bind(int place, std::string_view text) {
    const int code = sqlite3_bind_text64(statement_.get(), place, text.data(), text.size(),
                                         SQLITE_STATIC, SQLITE_UTF8);
    if (code != SQLITE_OK) fail(file_, database_, code);
    return *this;
  }
  Statement& bind_null(int place) {
    sqlite3_bind_null(statement_.get(), place);
    return *this;
  }

  /// Returns true if there is a row.
  bool step() {
    const int code = sqlite3_step(statement_.get());
    if (code != SQLITE_ROW && code != SQLITE_DONE) fail(file_, database_, code);
    return code == SQLITE_ROW;
  }
  void run_and_reset() {
    step();
    sqlite3_reset(statement_.get());
  }
  std::string text(int column) const {
    const auto* bytes = sqlite3_column_blob(statement_.get(), column);
    const auto size = at(sqlite3_column_bytes(statement_.get(), column));
    return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), size);
  }
  int integer(int column) const { return sqlite3_column_int(statement_.get(), column); }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  const std::filesystem::path& file_;
  sqlite3* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

constexpr std::string_view select_rows =
    "SELECT config_hash, config, status, error, report FROM points";

StoreRow row_of(const Statement& row) {
  return {row.text(0), row.text(1), status_of(row.text(2)), row.text(3), row.text(4)};
}

std::vector<std::string> keys_of(const std::string& pointer) {
  std::vector<std::string> keys;
  try {
    for (Json::json_pointer rest(pointer); !rest.empty(); rest.pop_back())
      keys.insert(keys.begin(), rest.back());
  } catch (const Json::exception&) {  // no pointer: leads nowhere
  }
  return keys;
}

// Puts what is at a pointer at the same place of `part`. A list is copied whole: its places mean
// nothing without what comes before them.
void copy_part(const Json& whole, const std::string& pointer, Json& part) {
  const Json* value = &whole;
  std::vector<std::string> path;
  for (const std::string& key : keys_of(pointer)) {
    if (value->is_array()) break;
    if (!value->is_object() || !value->contains(key)) return;
    value = &value->at(key);
    path.push_back(key);
  }
  if (path.empty()) return;
  Json* place = &part;
  for (const std::string& key : path) place = &(*place)[key];
  *place = *value;
}

// Part of a pointer that SQLite's paths can follow. It ends before a list, which would lose what
// comes before a place, and before a quote.
std::string reachable(const std::string& pointer) {
  Json::json_pointer reached;
  for (const std::string& key : keys_of(pointer)) {
    const bool digits = key.find_first_not_of("0123456789") == std::string::npos;
    if (digits || key.find('"') != std::string::npos) break;  // digits: of "", too
    reached.push_back(key);
  }
  return reached.to_string();
}

// Values at some pointers, taken out by SQLite: it reads JSON ten times as fast as we do.
class Extraction {
 public:
  explicit Extraction(std::vector<std::string> pointers) : pointers_(std::move(pointers)) {}

  /// Columns of a SELECT: each a JSON list of values, null where there is none.
  std::string columns(std::string_view from) const {
    std::string sql;
    for (std::size_t i = 0; i < pointers_.size(); ++i) {
      if (i % paths_at_once == 0)  // with one path alone it would not be a list
        sql += fmt::format("{}, json_extract({}, '$.none'", i == 0 ? "" : ")", from);
      sql += ", " + sql_path(pointers_[i]);
    }
    return sql.empty() ? sql : sql + ")";
  }

  /// The values at their places; `list(i)` is the i-th column.
  template <class List>
  Json part(List&& list) const {
    Json part = Json::object();
    Json values;
    for (std::size_t i = 0; i < pointers_.size(); ++i) {
      if (i % paths_at_once == 0) values = list(static_cast<int>(i / paths_at_once));
      Json& value = values.at(i % paths_at_once + 1);
      if (value.is_null()) continue;
      Json* place = &part;
      for (const std::string& key : keys_of(pointers_[i])) place = &(*place)[key];
      *place = std::move(value);
    }
    return part;
  }

 private:
  static constexpr std::size_t paths_at_once = 50;  // SQLite's functions take 127 arguments
  std::vector<std::string> pointers_;
};

Json part_of(const Json& whole, const std::vector<std::string>& pointers) {
  Json part = Json::object();
  for (const std::string& pointer : pointers) copy_part(whole, pointer, part);
  return part;
}

}  // namespace

SweepPoint sweep_point(Json config, std::uint64_t files) {
  std::string canonical = config.dump();
  if (files != 0) canonical += fmt::format("{:016x}", files);
  return {fmt::format("{:016x}", fnv1a(canonical)), std::move(config)};
}

std::string_view status_name(PointStatus status) { return status_names[at(status)]; }

void Store::Close::operator()(sqlite3* database) const { sqlite3_close(database); }

Store::Store(const std::filesystem::path& file, bool create) : file_(file) {
  if (file.empty()) throw ConfigError("the store has no name; name a SQLite file");
  if (create) create_folders_of(file);
  sqlite3* database = nullptr;
  // Absolute, because SQLite gives names such as ":memory:" a meaning. Writable also for readers:
  // what a killed sweep left half-written has to be rolled back.
  const int code =
      sqlite3_open_v2(std::filesystem::absolute(file).c_str(), &database,
                      SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0), nullptr);
  database_.reset(database);
  if (code != SQLITE_OK) fail(file_, database, code);
  sqlite3_extended_result_codes(database, 1);
  sqlite3_busy_timeout(database, lock_patience_ms);
  Statement check(file_, database, "PRAGMA quick_check(1)");
  if (check.step() && check.text(0) != "ok") fail(file_, nullptr, SQLITE_CORRUPT);
}

Store Store::open(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    throw ConfigError("{}: there is no such store; make one with `moesim sweep CONFIG -o {}`",
                      file.string(), file.filename().string());
  }
  Store store(file, false);
  if (store.is_empty()) {
    throw ConfigError("{}: holds no sweep; fill it with `moesim sweep CONFIG -o {}`", file.string(),
                      file.filename().string());
  }
  store.check_schema();
  return store;
}

std::optional<Store> Store::open_if_begun(const std::filesystem::path& file) {
  std::error_code none;
  const auto size = std::filesystem::file_size(file, none);
  if (none || size == 0) return std::nullopt;
  // Its size says little: what a killed program left in the journal is rolled back as it is opened.
  Store store(file, false);
  if (store.is_empty()) return std::nullopt;
  store.check_schema();
  return store;
}

void Store::check_name(const std::filesystem::path& file) {
  if (file.empty()) throw ConfigError("the store has no name; name a SQLite file");
  constexpr std::array<std::string_view, 5> others{".csv", ".json", ".html", ".md", ".txt"};
  if (std::ranges::find(others, file.extension().string()) == others.end()) return;
  throw ConfigError("{}: results are kept in a SQLite file; name it {}", file.string(),
                    std::filesystem::path(file).replace_extension(".sqlite").string());
}

Store Store::open_for(const std::filesystem::path& file, const Json& sweep,
                      std::span<const SweepPoint> points) {
  check_name(file);
  Store store(file, true);
  store.execute("BEGIN IMMEDIATE");  // rolled back by closing when something throws
  if (store.is_empty())
    store.execute(
        "CREATE TABLE meta(schema_version INTEGER NOT NULL, sweep TEXT NOT NULL, moesim "
        "TEXT);CREATE TABLE points(config_hash TEXT PRIMARY KEY, config TEXT NOT NULL, status TEXT "
        "NOT NULL, error TEXT, report TEXT);" +
        fmt::format("INSERT INTO meta VALUES({}, '', NULL)", schema_version));
  store.check_schema();
  store.statuses_of(points);
  Statement(store.file_, store.database_.get(), "UPDATE meta SET sweep = ?1")
      .bind(1, sweep.dump())
      .step();
  store.insert(points);
  store.execute(view_sql(axes_of(sweep)));
  store.execute("COMMIT");
  return store;
}

void Store::insert(std::span<const SweepPoint> points) const {
  Statement insert(file_, database_.get(),
                   "INSERT INTO points VALUES(?1, ?2, 'pending', NULL, NULL) ON "
                   "CONFLICT(config_hash) DO NOTHING");
  for (const SweepPoint& point : points) {
    const std::string config = point.config.dump();
    insert.bind(1, point.config_hash).bind(2, config).run_and_reset();
  }
}

bool Store::is_empty() const {
  return !Statement(file_, database_.get(), "SELECT 1 FROM sqlite_master LIMIT 1").step();
}

void Store::check_schema() const {
  Statement tables(file_, database_.get(),
                   "SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'points')");
  tables.step();
  if (tables.integer(0) != 2) {
    throw ConfigError("{}: is a database of something else; name another file", file_.string());
  }
  Statement version(file_, database_.get(), "SELECT schema_version FROM meta");
  if (!version.step() || version.integer(0) != schema_version) {
    throw ConfigError(
        "{}: is a store of schema version {}, this moesim reads {}; name another file",
        file_.string(), version.text(0), schema_version);
  }
}

void Store::execute(const std::string& sql) const {
  const int code = sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(file_, database_.get(), code);
}

void Store::for_each_row(const std::function<void(StoreRow)>& read) const {
  Statement statement(file_, database_.get(), std::string(select_rows) + " ORDER BY rowid");
  while (statement.step()) read(row_of(statement));
}

StoreRow Store::row(const std::string& config_hash) const {
  Statement statement(file_, database_.get(), std::string(select_rows) + " WHERE config_hash = ?1");
  if (!statement.bind(1, config_hash).step())
    throw ConfigError("{}: holds no point {}", file_.string(), config_hash);
  return row_of(statement);
}

std::vector<StoreRow> Store::rows() const {
  std::vector<StoreRow> rows;
  for_each_row([&](StoreRow row) { rows.push_back(std::move(row)); });
  return rows;
}

std::string Store::sweep() const {
  Statement meta(file_, database_.get(), "SELECT sweep FROM meta");
  meta.step();
  return meta.text(0);
}

bool Store::names_writers() const {
  Statement column(file_, database_.get(),
                   "SELECT 1 FROM pragma_table_info('meta') WHERE name = 'moesim'");
  return column.step();
}

std::string Store::written_by() const {
  if (!names_writers()) return "";
  Statement meta(file_, database_.get(), "SELECT moesim FROM meta");
  meta.step();
  return meta.text(0);
}

void Store::add_writer(const std::string& version) {
  if (!names_writers()) execute("ALTER TABLE meta ADD COLUMN moesim TEXT");
  const std::string known = written_by();
  if ((", " + known + ", ").find(", " + version + ", ") != std::string::npos) return;
  Statement(file_, database_.get(), "UPDATE meta SET moesim = ?1")
      .bind(1, known.empty() ? version : known + ", " + version)
      .step();
}

Json Store::parsed(std::string_view text) const {
  try {
    return parse_written_json(text);
  } catch (const ConfigError& error) {
    throw ConfigError("{}: holds text that is {}; name another file", file_.string(), error.what());
  }
}

Json Store::sweep_document() const {
  Json document = parsed(sweep());
  try {
    axes_of(document);
  } catch (const ConfigError& error) {
    throw ConfigError("{}: {}; name another file", file_.string(), error.what());
  }
  return document;
}

StoredSweep Store::read() const {
  StoredSweep sweep;
  for_each_row([&](StoreRow row) {
    StoredPoint point{row.config_hash, parsed(row.config), row.status, std::move(row.error), {}};
    if (point.status == PointStatus::done) point.report = parsed(row.report);
    sweep.points.push_back(std::move(point));
  });
  sweep.document = sweep_document();
  sweep.axes = varied(axes_of(sweep.document), sweep.points, &StoredPoint::config);
  return sweep;
}

StoredSweep Store::read(std::span<const std::string> pointers) const {
  StoredSweep sweep;
  sweep.document = sweep_document();
  const std::vector<Axis> axes = axes_of(sweep.document);
  std::vector<std::string> of_configs(pointers.begin(), pointers.end());
  for (const Axis& axis : axes) of_configs.push_back(axis.pointer);
  std::set<std::string> of_reports;
  for (const std::string& pointer : pointers) of_reports.insert(reachable(pointer));
  for (const std::string& pointer : of_configs)
    of_reports.insert(reachable(std::string(config_in_report) + pointer));
  of_reports.erase("");
  const Extraction extraction({of_reports.begin(), of_reports.end()});
  bool any_done = false;
  Statement statement(file_, database_.get(),
                      "SELECT config_hash, config, status, error" + extraction.columns("report") +
                          " FROM points ORDER BY rowid");
  while (statement.step()) {
    StoredPoint point{statement.text(0),
                      part_of(parsed(statement.text(1)), of_configs),
                      status_of(statement.text(2)),
                      statement.text(3),
                      {}};
    if (point.status == PointStatus::done) {
      point.report = any_done
                         ? extraction.part([&](int i) { return parsed(statement.text(4 + i)); })
                         : report_of(point.config_hash);
      any_done = true;
    }
    sweep.points.push_back(std::move(point));
  }
  sweep.axes = varied(axes, sweep.points, &StoredPoint::config);
  return sweep;
}

Json Store::report_of(const std::string& config_hash) const {
  Statement row(file_, database_.get(), "SELECT report FROM points WHERE config_hash = ?1");
  row.bind(1, config_hash);
  const std::string report = row.step() ? row.text(0) : "";
  return report.empty() ? Json() : parsed(report);
}

std::map<std::string, PointStatus> Store::statuses_of(std::span<const SweepPoint> points) const {
  std::set<std::string> known;
  for (const SweepPoint& point : points) known.insert(point.config_hash);
  std::map<std::string, PointStatus> statuses;
  std::size_t others = 0;
  Statement rows(file_, database_.get(), "SELECT config_hash, status FROM points");
  while (rows.step()) {
    if (known.contains(rows.text(0))) {
      statuses[rows.text(0)] = status_of(rows.text(1));
    } else {
      ++others;
    }
  }
  if (others > 0) {
    throw ConfigError(
        "{}: holds {} points that this sweep does not have: another sweep wrote it, or another "
        "version of this one or of a file that it names; name another file with -o",
        file_.string(), others);
  }
  return statuses;
}

void Store::record(const std::string& config_hash, PointStatus status, std::string_view error,
                   std::string_view report) {
  Statement update(file_, database_.get(),
                   "UPDATE points SET status = ?2, error = ?3, report = ?4 WHERE config_hash = ?1");
  update.bind(1, config_hash).bind(2, status_name(status));
  error.empty() ? update.bind_null(3) : update.bind(3, error);
  report.empty() ? update.bind_null(4) : update.bind(4, report);
  update.step();
}

void Store::record(std::span<const StoreRow> rows, std::span<const SweepPoint> of) {
  record(
      rows.size(), [&](std::size_t i) { return rows[i]; }, of);
}

void Store::record(std::size_t count, const std::function<StoreRow(std::size_t)>& row,
                   std::span<const SweepPoint> of) {
  execute("BEGIN IMMEDIATE");
  insert(of);
  for (std::size_t i = 0; i < count; ++i) {
    const StoreRow next = row(i);
    record(next.config_hash, next.status, next.error, next.report);
  }
  execute("COMMIT");
}

std::optional<double> report_number(const StoredPoint& point, const std::string& pointer) {
  return found_number(point.report, pointer);
}

const Json* setting_of(const StoredPoint& point, const std::string& pointer) {
  if (const Json* value = find_value(point.config, pointer)) return value;
  return find_value(point.report, std::string(config_in_report) + pointer);
}

std::string count_by_status(std::span<const StoredPoint> points) {
  if (points.empty()) return "no points";
  std::string text;
  for (std::size_t s = 0; s < status_names.size(); ++s) {
    const auto count = std::ranges::count_if(points, [&](const StoredPoint& point) {
      return point.status == static_cast<PointStatus>(s);
    });
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, status_names[s]);
  }
  return text;
}

}  // namespace moesim
