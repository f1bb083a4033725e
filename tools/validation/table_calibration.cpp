// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/table_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

/// A row of a table with what it says of its kernels.
struct MeasuredRow {
  std::vector<std::string> fields;
  std::vector<Sample> samples;
  std::string model;  // of experts
  double order = 0;   // where it stands in a fixed shuffle
};

struct Table {
  std::vector<std::string> columns;
  std::vector<MeasuredRow> rows;
  std::map<std::string, CalibratedTable::Kind> kinds;  // by the group of a row's first sample
};

const std::string& kind_of(const MeasuredRow& row) { return row.samples.front().group; }

bool is_possible(const MeasuredRow& row) {
  return std::ranges::all_of(row.samples, [](const Sample& s) { return s.us >= s.place.least_us; });
}

/// Leaves out what nothing can be predicted by: impossible rows, all rows of kinds that are full of
/// them, and the whole table where such kinds are most of it.
void sift(Table& table) {
  std::size_t doubtful = 0;
  for (const auto& [name, kind] : table.kinds) doubtful += kind.is_credible() ? 0 : kind.rows;
  if (2 * doubtful > table.rows.size()) return table.rows.clear();
  std::erase_if(table.rows, [&](const MeasuredRow& row) {
    return !is_possible(row) || !table.kinds.at(kind_of(row)).is_credible();
  });
}

Table read(const std::filesystem::path& file, TableFamily family, const GpuSpec& gpu) {
  Table table;
  Rng shuffle(1, "thinning of tables");
  const EngineVersion engine = engine_named(file.parent_path().filename().string());
  read_table(file, [&](const TableRow& row) {
    table.columns = row.columns();
    MeasuredRow read{{row.fields.begin(), row.fields.end()},
                     samples_of(family, row, gpu, engine),
                     {},
                     shuffle.uniform()};
    if (family == TableFamily::experts) {
      read.model = fmt::format("{} {} {} {}", row.text("hidden"), row.text("width"),
                               row.text("top_k"), row.text("experts"));
    }
    CalibratedTable::Kind& kind = table.kinds[kind_of(read)];
    ++kind.rows;
    if (!is_possible(read)) ++kind.impossible;
    table.rows.push_back(std::move(read));
  });
  return table;
}

/// Predicts rows from others.
class Predictor {
 public:
  Predictor(TableFamily family, const Table& table, const std::vector<std::size_t>& rows)
      : family_(family), table_(table) {
    for (const std::size_t row : rows) add(row);
  }
  void add(std::size_t row) {
    for (const Sample& sample : table_.rows[row].samples) {
      maps_.try_emplace({sample.group, sample.kernel}, axes_of(family_))
          .first->second.add(sample.place.at, sample.value());
    }
  }
  /// |predicted / measured - 1|, the worst of the row; nothing where no row is of its kind.
  std::optional<double> error(std::size_t row) const {
    double worst = 0;
    for (const Sample& sample : table_.rows[row].samples) {
      const auto map = maps_.find({sample.group, sample.kernel});
      if (map == maps_.end()) return std::nullopt;
      const double guess = map->second.at(sample.place.at).value;
      worst = std::max(worst, std::abs(std::exp(guess - sample.value()) - 1));
    }
    return worst;
  }

 private:
  TableFamily family_;
  const Table& table_;
  std::map<std::pair<std::string, std::string>, Scattered> maps_;
};

CalibratedTable::Errors summed_up(std::vector<double> errors) {
  if (errors.empty()) return {};
  std::ranges::sort(errors);
  const auto quantile = [&](double share) {
    return errors[at(std::lround(share * static_cast<double>(errors.size() - 1)))];
  };
  return {errors.size(), quantile(0.5), quantile(0.9)};
}

std::vector<double> errors_of(const Predictor& predictor, const std::vector<std::size_t>& rows) {
  std::vector<double> errors;
  for (const std::size_t row : rows)
    if (const auto error = predictor.error(row)) errors.push_back(*error);
  return errors;
}

/// A third of the rows, and of the others those that it does not predict.
std::vector<std::size_t> thinned(TableFamily family, const Table& table,
                                 const std::vector<std::size_t>& rows, double tolerance) {
  std::vector<std::size_t> kept, rest;
  for (const std::size_t row : rows)
    (std::fmod(table.rows[row].order * 1e3, 1) < 1.0 / 3 ? kept : rest).push_back(row);
  const Predictor third(family, table, kept);
  for (const std::size_t row : rest)
    if (third.error(row).value_or(1) > tolerance) kept.push_back(row);
  std::ranges::sort(kept);
  return kept;
}

/// What runs along a table's series.
std::string_view series_of(TableFamily family) {
  switch (family) {
    case TableFamily::gemm:
    case TableFamily::quantize: return "m";
    case TableFamily::attention_decode: return "ctx";
    case TableFamily::attention_prefill: return "isl";
    case TableFamily::mla_decode:
    case TableFamily::mla_decode_module: return "step";
    case TableFamily::mla_prefill:
    case TableFamily::mla_prefill_module: return "isl";
    case TableFamily::all_reduce:
    case TableFamily::collectives: return "bytes";
    case TableFamily::low_latency:
    case TableFamily::normal: return "tokens_per_rank";
    default: return "tokens";
  }
}

/// What a line of a thinned table says of all its points, and what of each.
struct Columns {
  std::vector<std::string> plain, point;
};

/// Of expert tables the load of the measured rank stands for how it was drawn: a slice's width for
/// `width` and `tp`, rows and active experts for `ep` and `distribution`.
Columns columns_of(TableFamily family, const Table& table) {
  const std::string_view along = series_of(family);
  const bool experts = family == TableFamily::experts;
  constexpr std::array<std::string_view, 5> drawn{"tp", "ep", "distribution", "rows", "active"};
  Columns columns;
  for (const std::string& column : table.columns) {
    if (experts && std::ranges::find(drawn, column) != drawn.end()) continue;
    const bool of_point = column == along || column.ends_with("us");
    (of_point ? columns.point : columns.plain).push_back(column);
  }
  if (experts) columns.point.insert(columns.point.end(), {"rows", "active"});
  return columns;
}

std::string field_of(TableFamily family, const Table& table, const MeasuredRow& row,
                     const std::string& column) {
  const Coordinates& at = row.samples.front().place.at;
  if (family == TableFamily::experts) {
    // Three digits, in full: 1020, not 1.02e+03.
    const auto three = [](double x) {
      return fmt::format("{:g}", std::stod(fmt::format("{:.3g}", x)));
    };
    if (column == "rows") return three(std::exp2(at[0] + at[1]));
    if (column == "active") return three(std::exp2(at[0]));
    if (column == "width") return fmt::format("{:.6g}", std::exp2(at[4]));
  }
  const auto index = std::ranges::find(table.columns, column) - table.columns.begin();
  const std::string& field = row.fields[static_cast<std::size_t>(index)];
  return column.ends_with("us") ? fmt::format("{:.4g}", std::stod(field)) : field;
}

std::string text_of(TableFamily family, const Table& table, const std::vector<std::size_t>& kept) {
  const Columns columns = columns_of(family, table);
  const auto fields = [&](const MeasuredRow& row, const std::vector<std::string>& names) {
    std::vector<std::string> values;
    for (const std::string& name : names) values.push_back(field_of(family, table, row, name));
    return values;
  };
  std::map<std::string, std::string> series;
  std::vector<std::string> order;
  for (const std::size_t index : kept) {
    const MeasuredRow& row = table.rows[index];
    std::string line = fmt::format("{}", fmt::join(fields(row, columns.plain), ","));
    if (!line.empty()) line += ",";
    std::string& points = series[line];
    if (points.empty()) order.push_back(line);
    points +=
        fmt::format("{}{}", points.empty() ? "" : " ", fmt::join(fields(row, columns.point), ":"));
  }
  std::string text = fmt::format("{}{}{}\n", fmt::join(columns.plain, ","),
                                 columns.plain.empty() ? "" : ",", fmt::join(columns.point, ":"));
  for (const std::string& line : order) text += line + series[line] + "\n";
  return text;
}

CalibratedTable calibrated(TableFamily family, const Table& table, double tolerance,
                           std::vector<std::size_t>& kept) {
  std::vector<std::size_t> all, tenth, rest;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    all.push_back(row);
    (table.rows[row].order < 0.1 ? tenth : rest).push_back(row);
  }
  kept = thinned(family, table, all, tolerance);
  CalibratedTable result;
  result.kept = kept.size();
  result.points = summed_up(errors_of({family, table, rest}, tenth));
  const Predictor fewer(family, table, thinned(family, table, rest, tolerance));
  result.thinned = summed_up(errors_of(fewer, tenth));
  if (family != TableFamily::experts) return result;
  std::map<std::string, std::vector<std::size_t>> models;
  for (const std::size_t row : all) models[table.rows[row].model].push_back(row);
  std::vector<double> errors;
  for (const auto& [model, of_model] : models) {
    std::vector<std::size_t> others, asked;
    for (const std::size_t row : kept)
      if (table.rows[row].model != model) others.push_back(row);
    for (const std::size_t row : of_model)
      if (table.rows[row].order < 0.1) asked.push_back(row);
    if (others.empty()) continue;
    for (const double error : errors_of({family, table, others}, asked)) errors.push_back(error);
  }
  result.models = summed_up(std::move(errors));
  return result;
}

/// errors.csv: by table the median error at points left out, the mean over profiles.
std::string errors_text(const std::vector<CalibratedTable>& tables) {
  std::string text = "table,evidence,median,points\n";
  for (std::size_t i = 0; i < table_family_names.size(); ++i) {
    double sum = 0;
    std::size_t points = 0;
    for (const CalibratedTable& table : tables) {
      if (static_cast<std::size_t>(table.family) != i) continue;
      sum += table.thinned.median * static_cast<double>(table.thinned.points);
      points += table.thinned.points;
    }
    if (points > 0)
      text += fmt::format("{},interpolated,{:.3f},{}\n", table_family_names[i],
                          sum / static_cast<double>(points), points);
  }
  return text;
}

/// impossible.csv: what was left out as impossible.
std::string impossible_text(const std::vector<CalibratedTable>& tables) {
  std::string text = "profile,table,kind,rows,impossible,kept\n";
  for (const CalibratedTable& table : tables) {
    for (const auto& [name, kind] : table.kinds) {
      if (kind.impossible == 0) continue;
      const bool none = table.kept == 0 || !kind.is_credible();
      text += fmt::format("{},{},{},{},{},{}\n", table.profile,
                          table_family_names[static_cast<std::size_t>(table.family)], name,
                          kind.rows, kind.impossible, none ? "none" : "the others");
    }
  }
  return text;
}

}  // namespace

std::vector<CalibratedTable> calibrate_tables(const std::filesystem::path& tables,
                                              const GpuSpec& measured_on,
                                              const std::filesystem::path& profiles,
                                              double tolerance) {
  std::error_code failed;
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(tables, failed))
    if (entry.is_directory()) folders.push_back(entry.path());
  std::ranges::sort(folders);
  std::vector<CalibratedTable> results;
  for (const auto& folder : folders) {
    for (std::size_t i = 0; i < table_family_names.size(); ++i) {
      const auto family = static_cast<TableFamily>(i);
      const std::string name = std::string(table_family_names[i]) + ".csv";
      if (!std::filesystem::exists(folder / name)) continue;
      Table table = read(folder / name, family, measured_on);
      if (table.rows.empty()) continue;
      const std::size_t rows = table.rows.size();
      sift(table);
      std::vector<std::size_t> kept;
      CalibratedTable result;
      if (!table.rows.empty()) result = calibrated(family, table, tolerance, kept);
      result.family = family;
      result.rows = rows;
      result.left_out = rows - table.rows.size();
      result.kinds = std::move(table.kinds);
      result.profile = folder.filename().string();
      results.push_back(result);
      std::filesystem::remove(profiles / folder.filename() / name);
      if (kept.empty()) continue;
      std::filesystem::create_directories(profiles / folder.filename());
      write_file((profiles / folder.filename() / name).string(), text_of(family, table, kept));
    }
  }
  if (results.empty()) {
    throw ConfigError(fmt::format("{}: no folder <engine>-<version> with tables ({}.csv) in it",
                                  tables.string(), fmt::join(table_family_names, ".csv, ")));
  }
  if (std::ranges::all_of(results, [](const CalibratedTable& t) { return t.kept == 0; }))
    throw ConfigError(
        fmt::format("{}: no table is of this GPU: its peak allows none of them", tables.string()));
  write_file((profiles / "errors.csv").string(), errors_text(results));
  write_file((profiles / "impossible.csv").string(), impossible_text(results));
  return results;
}

}  // namespace moesim
