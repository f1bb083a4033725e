// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/table_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include "hardware/at.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/rng.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

/// A row of a table with what it says of its kernels.
struct MeasuredRow {
  std::vector<std::string> fields;
  std::vector<Sample> samples;
  std::string model;             // where the table names models
  double order = 0;              // where it stands in a fixed shuffle
  std::vector<KeptColumn> kept;  // instead of the fields of these names, or beside the fields
  double cut = 1;                // ranks that the layer is cut over
};

struct ImportedTable {
  std::vector<std::string> columns;
  std::vector<MeasuredRow> rows;
  std::map<std::string, CalibratedTable::Kind> kinds;  // by the group of a row's first sample
};

const std::string& kind_of(const MeasuredRow& row) { return row.samples.front().group; }

bool is_possible(const MeasuredRow& row) {
  return std::ranges::all_of(row.samples, [](const Sample& s) { return s.us >= s.place.least_us; });
}

// `sorted` is not empty.
template <class Values>
double quantile(const Values& sorted, double share) {
  return sorted[at(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

/// The time below which rows of one kernel tell of the host's launches alone; 0: none does.
double host_bound_below(std::vector<const MeasuredRow*> rows) {
  constexpr std::size_t few = 50;
  // The host's own times vary by half and more: what takes twice the shortest is not bound by it.
  constexpr double flat = 2, above_work = 8, range = 4;
  if (rows.size() < few) return 0;
  const auto time = [](const MeasuredRow* row) { return row->samples.front().us; };
  const auto rough = [](const MeasuredRow* row) { return row->samples.front().place.rough_us; };
  std::ranges::sort(rows, {}, time);
  const double limit = flat * time(rows[rows.size() / 50]);
  std::vector<double> work;
  for (const MeasuredRow* row : rows)
    if (time(row) < limit) work.push_back(rough(row));
  std::ranges::sort(work);
  const double least = quantile(work, 0.05), most = quantile(work, 0.95);
  return limit / flat > above_work * least && most > range * least ? limit : 0;
}

/// Leaves out what nothing can be predicted by, see calibrate_tables().
void sift(const MeasuredTable& table, ImportedTable& imported) {
  std::size_t doubtful = 0;
  for (const auto& [name, kind] : imported.kinds) doubtful += kind.is_credible() ? 0 : kind.rows;
  if (2 * doubtful > imported.rows.size()) return imported.rows.clear();
  std::erase_if(imported.rows, [&](const MeasuredRow& row) {
    return !is_possible(row) || !imported.kinds.at(kind_of(row)).is_credible();
  });
  std::map<std::pair<std::string, std::string>, std::vector<const MeasuredRow*>> kernels;
  for (const MeasuredRow& row : imported.rows)
    kernels[{kind_of(row), row.samples.front().kernel}].push_back(&row);
  std::map<std::pair<std::string, std::string>, double> limits;
  for (auto& [name, rows] : kernels) limits[name] = host_bound_below(std::move(rows));
  std::erase_if(imported.rows, [&](const MeasuredRow& row) {
    const Sample& first = row.samples.front();
    const double limit = limits.at({kind_of(row), first.kernel});
    const bool bound = first.us < limit || (limit > 0 && is_stalled(table, first, limit));
    if (bound) ++imported.kinds.at(kind_of(row)).host_bound;
    return bound;
  });
  std::vector<LawRow> rows;
  for (const MeasuredRow& row : imported.rows) rows.push_back({row.samples.front(), row.cut});
  std::set<std::size_t> unlawful;
  const BrokenLaws broken = broken_laws(table, rows);
  for (std::size_t law = 0; law < broken.size(); ++law)
    for (const std::size_t row : broken[law])
      if (unlawful.insert(row).second)
        ++imported.kinds.at(kind_of(imported.rows[row])).unlawful[law];
  for (auto row = unlawful.rbegin(); row != unlawful.rend(); ++row)
    imported.rows.erase(imported.rows.begin() + static_cast<std::ptrdiff_t>(*row));
}

std::string model_of(const MeasuredTable& table, const TableRow& row) {
  std::string model;
  for (const std::string_view column : table.model)
    if (!column.empty()) model += fmt::format("{} ", row.text(column));
  return model;
}

ImportedTable read(const std::filesystem::path& file, const MeasuredTable& table,
                   const GpuSpec& gpu) {
  ImportedTable imported;
  Rng shuffle(1, "rows of tables");
  const EngineVersion engine = engine_named(file.parent_path().filename().string());
  read_table(file, [&](const TableRow& row) {
    imported.columns = row.columns();
    std::vector<Sample> samples = samples_of(table, row, gpu, engine);
    if (samples.empty()) return;  // of draws that nobody can repeat
    MeasuredRow read{{row.fields.begin(), row.fields.end()},
                     std::move(samples),
                     model_of(table, row),
                     shuffle.uniform(),
                     {},
                     ranks_of_layer(row)};
    if (table.kept != nullptr) read.kept = table.kept(row, read.samples.front());
    CalibratedTable::Kind& kind = imported.kinds[kind_of(read)];
    ++kind.rows;
    if (!is_possible(read)) ++kind.impossible;
    imported.rows.push_back(std::move(read));
  });
  return imported;
}

/// Predicts rows from others.
class Predictor {
 public:
  Predictor(const MeasuredTable& table, const ImportedTable& imported,
            const std::vector<std::size_t>& rows)
      : imported_(imported) {
    for (const std::size_t row : rows)
      for (const Sample& sample : imported_.rows[row].samples)
        maps_.try_emplace({sample.group, sample.kernel}, table.axis_count())
            .first->second.add(sample.place.at, sample.value());
  }
  /// |predicted / measured - 1|, the worst of the row; nothing where no row is of its kind.
  std::optional<double> error(std::size_t row) const {
    double worst = 0;
    for (const Sample& sample : imported_.rows[row].samples) {
      const auto map = maps_.find({sample.group, sample.kernel});
      if (map == maps_.end()) return std::nullopt;
      const double guess = map->second.at(sample.place.at).value;
      worst = std::max(worst, std::abs(std::exp(guess - sample.value()) - 1));
    }
    return worst;
  }

 private:
  const ImportedTable& imported_;
  std::map<std::pair<std::string, std::string>, Scattered> maps_;
};

CalibratedTable::Errors summed_up(std::vector<double> errors) {
  if (errors.empty()) return {};
  std::ranges::sort(errors);
  return {errors.size(), quantile(errors, 0.5), quantile(errors, 0.9)};
}

// Errors of so many rows at most.
std::vector<double> errors_of(const Predictor& predictor, const std::vector<std::size_t>& rows,
                              std::size_t most) {
  std::vector<double> errors;
  const std::size_t step = rows.size() / most + 1;
  for (std::size_t i = 0; i < rows.size(); i += step)
    if (const auto error = predictor.error(rows[i])) errors.push_back(*error);
  return errors;
}

/// Columns that a line of a table has for all its points, and for each.
struct Columns {
  std::vector<std::string> plain, point;
};

const KeptColumn* kept_column(const MeasuredRow& row, std::string_view name) {
  const auto kept = std::ranges::find(row.kept, name, &KeptColumn::name);
  return kept == row.kept.end() ? nullptr : &*kept;
}

/// The source's columns, those that a row keeps otherwise in their places or behind the others.
Columns columns_of(const MeasuredTable& table, const ImportedTable& imported) {
  const MeasuredRow& any = imported.rows.front();
  Columns columns;
  for (const std::string& column : imported.columns) {
    const KeptColumn* kept = kept_column(any, column);
    const bool of_point = kept != nullptr ? kept->place == KeptColumn::of_point
                                          : column == table.along || column.ends_with("us");
    if (kept != nullptr && kept->place == KeptColumn::left_out) continue;
    (of_point ? columns.point : columns.plain).push_back(column);
  }
  for (const KeptColumn& kept : any.kept) {
    const bool is_new = std::ranges::find(imported.columns, kept.name) == imported.columns.end();
    if (!is_new || kept.place == KeptColumn::left_out) continue;
    (kept.place == KeptColumn::of_point ? columns.point : columns.plain).emplace_back(kept.name);
  }
  return columns;
}

std::string field_of(const ImportedTable& imported, const MeasuredRow& row,
                     const std::string& column) {
  if (const KeptColumn* kept = kept_column(row, column)) return kept->value;
  const auto index = std::ranges::find(imported.columns, column) - imported.columns.begin();
  const std::string& field = row.fields[at(index)];
  return column.ends_with("us") ? fmt::format("{:.4g}", std::stod(field)) : field;
}

std::string text_of(const MeasuredTable& table, const ImportedTable& imported) {
  const Columns columns = columns_of(table, imported);
  const auto fields = [&](const MeasuredRow& row, const std::vector<std::string>& names) {
    std::vector<std::string> values;
    for (const std::string& name : names) values.push_back(field_of(imported, row, name));
    return values;
  };
  std::map<std::string, std::string> series;
  for (const MeasuredRow& row : imported.rows) {
    std::string line = fmt::format("{}", fmt::join(fields(row, columns.plain), ","));
    if (!line.empty()) line += ",";
    std::string& points = series[line];
    points +=
        fmt::format("{}{}", points.empty() ? "" : " ", fmt::join(fields(row, columns.point), ":"));
  }
  std::string text = fmt::format("{}{}{}\n", fmt::join(columns.plain, ","),
                                 columns.plain.empty() ? "" : ",", fmt::join(columns.point, ":"));
  for (const auto& [line, points] : series) text += line + points + "\n";
  return text;
}

// The same bytes for the same text: gzip's header has no time here.
void write_compressed(const std::filesystem::path& file, const std::string& text) {
  const gzFile out = gzopen(file.c_str(), "wb9");
  const bool written =
      out != nullptr &&
      gzwrite(out, text.data(), static_cast<unsigned>(text.size())) == std::ssize(text);
  const bool closed = out != nullptr && gzclose(out) == Z_OK;
  if (!written || !closed) throw ConfigError("{}: cannot be written", file.string());
}

// |predicted / measured - 1| of rows, from the tables of the GPU's sibling.
std::vector<double> errors_of_sibling(const MeasuredTable& table, const ImportedTable& imported,
                                      const std::vector<std::size_t>& rows,
                                      const EngineVersion& engine, GpuSpec gpu) {
  constexpr std::size_t most = 250;
  std::vector<double> errors;
  if (!gpu.sibling) return errors;
  gpu.profiles.clear();
  const KernelTables tables(gpu, engine, {});
  for (std::size_t i = 0; i < rows.size(); i += rows.size() / most + 1) {
    for (const Sample& sample : imported.rows[rows[i]].samples) {
      const auto found = tables.candidates(table, {sample.group}, sample.place.at);
      if (found.empty()) continue;
      errors.push_back(std::abs(std::exp(found.at(sample.place.at).value - sample.value()) - 1));
    }
  }
  return errors;
}

void measure_errors(const MeasuredTable& table, const ImportedTable& imported, const GpuSpec& gpu,
                    CalibratedTable& result) {
  constexpr std::size_t most = 2000;
  std::vector<std::size_t> all, tenth, rest;
  for (std::size_t row = 0; row < imported.rows.size(); ++row) {
    all.push_back(row);
    (imported.rows[row].order < 0.1 ? tenth : rest).push_back(row);
  }
  result.points = summed_up(errors_of({table, imported, rest}, tenth, most));
  result.carried_over =
      summed_up(errors_of_sibling(table, imported, tenth, engine_named(result.profile), gpu));
  std::map<std::string, std::vector<std::size_t>> models;
  for (const std::size_t row : all) models[imported.rows[row].model].push_back(row);
  if (models.size() < 2) return;
  std::vector<double> errors;
  for (const auto& [model, of_model] : models) {
    std::vector<std::size_t> others;
    for (const std::size_t row : all)
      if (imported.rows[row].model != model) others.push_back(row);
    const auto missed = errors_of({table, imported, others}, of_model, most / models.size());
    errors.insert(errors.end(), missed.begin(), missed.end());
  }
  result.models = summed_up(std::move(errors));
}

/// errors.csv: by table the median error at points left out, the mean over profiles.
std::string errors_text(const std::vector<CalibratedTable>& tables) {
  using Errors = CalibratedTable::Errors;
  std::string text = "table,evidence,median,points\n";
  for (const auto& [evidence, errors] :
       {std::pair<Evidence, Errors CalibratedTable::*>{Evidence::interpolated,
                                                       &CalibratedTable::points},
        {Evidence::carried_over, &CalibratedTable::carried_over}}) {
    for (const MeasuredTable* measured : measured_tables()) {
      double sum = 0;
      std::size_t points = 0;
      for (const CalibratedTable& table : tables) {
        if (table.table != measured) continue;
        const Errors& of_table = table.*errors;
        sum += of_table.median * static_cast<double>(of_table.points);
        points += of_table.points;
      }
      if (points == 0) continue;
      text += fmt::format("{},{},{:.3f},{}\n", measured->name, evidence_names[at(evidence)],
                          sum / static_cast<double>(points), points);
    }
  }
  return text;
}

/// left_out.csv: what was left out and why.
std::string left_out_text(const std::vector<CalibratedTable>& tables) {
  std::string text = fmt::format("profile,table,kind,rows,impossible,host_bound,{},kept\n",
                                 fmt::join(table_law_names, ","));
  for (const CalibratedTable& table : tables) {
    for (const auto& [name, kind] : table.kinds) {
      if (kind.left_out() == 0) continue;
      const bool none = table.kept == 0 || !kind.is_credible() || kind.left_out() == kind.rows;
      text += fmt::format("{},{},{},{},{},{},{},{}\n", csv_cell(table.profile), table.table->name,
                          csv_cell(name), kind.rows, kind.impossible, kind.host_bound,
                          fmt::join(kind.unlawful, ","), none ? "none" : "the others");
    }
  }
  return text;
}

}  // namespace

std::vector<CalibratedTable> calibrate_tables(const std::filesystem::path& tables,
                                              const GpuSpec& measured_on,
                                              const std::filesystem::path& profiles) {
  std::error_code failed;
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(tables, failed))
    if (entry.is_directory()) folders.push_back(entry.path());
  std::ranges::sort(folders);
  std::vector<CalibratedTable> results;
  for (const auto& folder : folders) {
    for (const MeasuredTable* table : measured_tables()) {
      const std::string name = std::string(table->name) + ".csv";
      if (!std::filesystem::exists(folder / name)) continue;
      ImportedTable imported = read(folder / name, *table, measured_on);
      if (imported.rows.empty()) continue;
      CalibratedTable result;
      result.profile = folder.filename().string();
      result.table = table;
      result.rows = imported.rows.size();
      sift(*table, imported);
      result.kept = imported.rows.size();
      result.kinds = imported.kinds;
      const auto file = profiles / folder.filename() / (name + ".gz");
      std::filesystem::remove(file);
      if (!imported.rows.empty()) {
        measure_errors(*table, imported, measured_on, result);
        std::filesystem::create_directories(file.parent_path());
        write_compressed(file, text_of(*table, imported));
      }
      results.push_back(std::move(result));
    }
  }
  if (results.empty()) {
    std::vector<std::string> names;
    for (const MeasuredTable* table : measured_tables()) names.emplace_back(table->name);
    throw ConfigError("{}: no folder <engine>-<version> with tables ({}.csv) in it",
                      tables.string(), fmt::join(names, ".csv, "));
  }
  if (std::ranges::all_of(results, [](const CalibratedTable& t) { return t.kept == 0; }))
    throw ConfigError(
        "{}: all times are faster than this GPU's peak allows; give the GPU of the tables",
        tables.string());
  write_file((profiles / "errors.csv").string(), errors_text(results));
  write_file((profiles / "left_out.csv").string(), left_out_text(results));
  return results;
}

}  // namespace moesim
