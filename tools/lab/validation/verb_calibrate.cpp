// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/shipped.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/report/statistics.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/lab/validation/calibration.hpp"
#include "tools/lab/validation/engine_fit.hpp"
#include "tools/lab/validation/family_calibration.hpp"
#include "tools/lab/validation/power_calibration.hpp"
#include "tools/lab/validation/table_calibration.hpp"

namespace moesim {

namespace {

struct CalibrateOptions {
  std::string points, serving, power, engine, tables, gpu, output, source, profiles;
  std::filesystem::path root = data_folder();
  bool families = false;
};

/// A GPU file as people edit it: one line for each fact, family and collective.
std::string file_text(const OrderedJson& gpu) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : gpu.items()) {
    // Constants of the draw are by class, but for another GPU's, scaled.
    const bool by_line =
        key == "kernels" || key == "collectives" || (key == "power" && value.contains("kernels"));
    if (!by_line) {
      lines.push_back(fmt::format("  \"{}\": {}", key, value.dump()));
      continue;
    }
    std::vector<std::string> rows;
    for (const auto& [name, constants] : value.items())
      rows.push_back(fmt::format("    \"{}\": {}", name, constants.dump()));
    lines.push_back(fmt::format("  \"{}\": {{\n{}\n  }}", key, fmt::join(rows, ",\n")));
  }
  return fmt::format("{{\n{}\n}}\n", fmt::join(lines, ",\n"));
}

/// An engine preset as people edit it: one line for each setting.
std::string preset_text(const OrderedJson& preset) {
  std::vector<std::string> settings;
  for (const OrderedJson& setting : preset.at("settings"))
    settings.push_back("    " + setting.dump());
  return fmt::format("{{\n  \"name\": {},\n  \"source\": {},\n  \"settings\": [\n{}\n  ]\n}}\n",
                     preset.at("name").dump(), preset.at("source").dump(),
                     fmt::join(settings, ",\n"));
}

/// Fits what kernels leave of an engine's steps, on runs of many deployments.
int calibrate_engine(const CalibrateOptions& options) {
  const auto runs = runs_of_engine(read_points(options.serving), options.engine, options.root);
  if (runs.size() < 10)
    throw ConfigError("{}: {} runs of {} that can be predicted; ten are needed", options.serving,
                      runs.size(), options.engine);
  const EngineConstants fitted = fit_engine(runs);
  const HeldOutErrors errors = held_out_errors(runs);
  const std::string name = options.source.empty() ? options.serving : options.source;
  write_file(options.output,
             preset_text(with_constants(
                 OrderedJson::parse(find_engine(options.engine)->preset), fitted,
                 fmt::format("fitted on {} runs of {}; median error (and bias) on GPUs and models "
                             "left out: TPOT {:.1f} % ({:+.1f}), TTFT {:.1f} % ({:+.1f})",
                             runs.size(), name, errors.tpot * 100, errors.tpot_bias * 100,
                             errors.ttft * 100, errors.ttft_bias * 100))));
  Table table({"constant", "value"});
  table.add({"per layer", fmt::format("{:.1f} us", fitted.per_layer_us)});
  table.add({"per step", fmt::format("{:.0f} us", fitted.per_step_us)});
  table.add({"per sequence", fmt::format("{:.1f} us", fitted.per_sequence_us)});
  table.add({"latency per launch", fmt::format("{:.1f} us", fitted.latency_per_launch_us)});
  table.add({"admission steps", fmt::format("{}", fitted.admission_steps)});
  const auto percent = [](double error, double bias) {
    return fmt::format("{:.1f} % ({:+.1f})", error * 100, bias * 100);
  };
  table.add({"TPOT, GPU and model left out (bias)", percent(errors.tpot, errors.tpot_bias)});
  table.add({"TTFT, the same", percent(errors.ttft, errors.ttft_bias)});
  print(table.text());
  return 0;
}

/// A GPU's file by its path, or by its name in hardware/gpus.
std::filesystem::path gpu_path(const CalibrateOptions& options) {
  if (options.gpu.ends_with(".json")) return options.gpu;
  return options.root / "hardware/gpus" / (options.gpu + ".json");
}

/// A file in the order in which people wrote it.
OrderedJson as_written(const std::filesystem::path& path) {
  std::ifstream in(path);
  return OrderedJson::parse(in);
}

/// A GPU without what its file says so far under the key.
GpuSpec gpu_without(const char* key, const std::filesystem::path& path) {
  Json facts = ConfigNode::from_file(path).json();
  facts.erase(key);
  return read_gpu(ConfigNode(std::move(facts), path));
}

std::string median_and_p90(const auto& errors) {
  return fmt::format("{:.1f} / {:.1f} %", errors.median * 100, errors.p90 * 100);
}

std::string in_percent(const CalibratedTable::Errors& errors) {
  return errors.points == 0 ? "-" : median_and_p90(errors);
}

/// `path` as a file in `folder` names it: relative where both stand below one root.
std::string seen_from(const std::filesystem::path& folder, const std::filesystem::path& path) {
  return std::filesystem::proximate(std::filesystem::absolute(path),
                                    std::filesystem::absolute(folder))
      .string();
}

/// Measured tables of a GPU beside a copy of its file that names them.
int calibrate_from_tables(const CalibrateOptions& options) {
  const std::filesystem::path path = gpu_path(options), output = options.output;
  const GpuSpec gpu = gpu_without("profiles", path);
  const std::filesystem::path profiles =
      options.profiles.empty() ? output.parent_path() / (output.stem().string() + "-profiles")
                               : std::filesystem::path(options.profiles);
  const auto tables = calibrate_tables(options.tables, gpu, profiles);
  OrderedJson file = as_written(path);
  const auto folder = output.parent_path().empty() ? "." : output.parent_path();
  if (file.contains("sibling"))
    file["sibling"] = seen_from(folder, path.parent_path() / file["sibling"].get<std::string>());
  file["profiles"] = seen_from(folder, profiles);
  write_file(output, file_text(file));
  Table table({"profile", "table", "rows", "kept", "a tenth left out", "model left out",
               "from the sibling"});
  for (const CalibratedTable& t : tables)
    table.add({t.profile, std::string(t.table->name), fmt::format("{}", t.rows),
               t.kept == 0 ? "none" : fmt::format("{}", t.kept), in_percent(t.points),
               in_percent(t.models), in_percent(t.carried_over)});
  print(table.text() +
        "median / p90 of |predicted / measured - 1| at rows that were left out. Rows not kept: "
        "left_out.csv\n");
  return 0;
}

// ---- constants of kernel families

/// The shipped GPUs with tables, by file name.
std::map<std::string, MeasuredGpu> measured_gpus(const std::filesystem::path& root) {
  std::map<std::string, MeasuredGpu> all;
  for (const std::string& name : shipped_names(Shipped::gpu)) {
    const auto file = root / "hardware/gpus" / (name + ".json");
    GpuSpec gpu = read_gpu(ConfigNode::from_file(file));
    if (gpu.profiles.empty()) continue;
    std::vector<FamilyCall> calls = family_calls(gpu);
    all[name] = {std::move(gpu), std::move(calls)};
  }
  return all;
}

/// The errors of a GPU's calls with the constants of others.
ErrorsByKind errors_by_others(const MeasuredGpu& gpu,
                              const std::vector<const MeasuredGpu*>& others) {
  if (others.empty()) return {};
  return errors_by_fit(fit_families(others), gpu.calls, gpu.gpu);
}

void write_constants(const std::filesystem::path& from, const std::string& output,
                     const FittedKernels& constants) {
  OrderedJson file = as_written(from);
  for (const Kernel* kernel : kernels())
    if (const auto fitted = constants.find(kernel); fitted != constants.end())
      file["kernels"][std::string(kernel->name)] = to_json(fitted->second);
  write_file(output, file_text(file));
}

/// The constants of one GPU's kernels, fitted on its tables; without a GPU the kernels' default
/// ones, fitted on those of all.
int calibrate_families(const CalibrateOptions& options) {
  std::map<std::string, MeasuredGpu> gpus = measured_gpus(options.root);
  const std::string source = "the tables of hardware/profiles";
  if (options.gpu.empty()) {
    std::vector<const MeasuredGpu*> all;
    for (const auto& [name, gpu] : gpus) all.push_back(&gpu);
    auto fitted = fit_families(all);
    for (auto& [family, constants] : fitted)
      constants.source = fmt::format("fitted on {} GPUs: {}", all.size(), source);
    write_constants(options.root / "hardware/families.json", options.output, fitted);
    return 0;
  }
  const auto found = gpus.find(options.gpu);
  if (found == gpus.end()) {
    std::vector<std::string> names;
    for (const auto& [name, gpu] : gpus) names.push_back(name);
    throw ConfigError("calibrate: no tables were measured on \"{}\"; choose one of: {}",
                      options.gpu, fmt::join(names, ", "));
  }
  MeasuredGpu& gpu = found->second;
  const ErrorsByKind before = errors_by_kind(gpu.calls, gpu.gpu);
  std::vector<const MeasuredGpu*> sibling, others;
  for (const auto& [name, other] : gpus) {
    if (name == options.gpu) continue;
    const bool is_sibling = gpu.gpu.sibling && other.gpu.name == gpu.gpu.sibling->name;
    (is_sibling ? sibling : others).push_back(&other);
  }
  const auto by_sibling = errors_by_others(gpu, sibling), by_others = errors_by_others(gpu, others);
  const auto shapes = errors_of_shapes_left_out(gpu);
  const MeasuredGpu* const own[] = {&gpu};
  const auto fitted = fit_families(own);
  take_families(fitted, gpu, source);
  FittedKernels constants;
  for (const auto& [kernel, values] : fitted) constants[kernel] = gpu.gpu.kernel(*kernel);
  write_constants(gpu_path(options), options.output, constants);
  Table table({"family", "precision", "step", "calls", "before", "fitted", "bias",
               "shapes left out", "as the sibling", "as the others"});
  for (const auto& [kind, errors] : errors_by_kind(gpu.calls, gpu.gpu)) {
    const auto& [kernel, precision, prefill] = kind;
    const auto of = [&, &kind = kind](const ErrorsByKind& other) {
      const auto row = other.find(kind);
      return row == other.end() ? "-" : median_and_p90(sum_of(row->second));
    };
    const ErrorSum sum = sum_of(errors);
    table.add({std::string(kernel), std::string(precision_names[at(precision)]),
               prefill ? "prefill" : "decode", fmt::format("{}", sum.calls), of(before),
               median_and_p90(sum), fmt::format("{:+.1f} %", sum.bias * 100), of(shapes),
               of(by_sibling), of(by_others)});
  }
  print(table.text() +
        "median / p90 of |predicted / measured - 1|. Shapes left out: a fifth at a time. As the "
        "sibling, as the others: constants are fitted on their tables alone\n");
  return 0;
}

// ---- what a GPU draws

void add_errors(std::vector<std::string>& row, const PowerErrors& errors, const char* whose) {
  row.insert(row.end(), {fmt::format("{}{}", errors.points, whose),
                         fmt::format("{:.1f} %", errors.fitted_median * 100),
                         fmt::format("{}", errors.left_out), median_and_p90(errors),
                         fmt::format("{:.2f}", errors.energy)});
}

/// The constants of a GPU's power, fitted on measured kernels.
int calibrate_power(const CalibrateOptions& options) {
  const auto path = gpu_path(options);
  const GpuSpec gpu = gpu_without("power", path);
  const std::string name = path.stem().string();
  FittedPower fit;
  try {
    fit = fit_power(read_power_points(options.power, name, gpu));
  } catch (const ConfigError& error) {
    throw ConfigError("{}: {}: {}", options.power, name, error.what());
  }
  const std::string source = options.source.empty() ? options.power : options.source;
  fit.power.source = "fitted on measured kernels: " + source;
  Table table({"class", "floor W", "loads", "arithmetic", "exponent", "kernels", "fitted",
               "shapes left out", "median / p90", "joules"});
  for (std::size_t i = 0; i < fit.errors.size(); ++i) {
    const PowerConstants& c = fit.power.classes[i];
    const PowerErrors& errors = fit.errors[i];
    if (!c.calibration)
      fit.power.source +=
          fmt::format("; {}: as other GPUs of the table, scaled", power_class_names[i]);
    std::vector<std::string> row{std::string(power_class_names[i]),
                                 fmt::format("{:g}", c.floor.value()), fmt::format("{:g}", c.loads),
                                 fmt::format("{:g}", c.arithmetic),
                                 fmt::format("{:g}", c.exponent)};
    add_errors(row, errors, c.calibration ? "" : " (other GPUs)");
    table.add(std::move(row));
  }
  std::vector<std::string> row{"all", "", "", "", ""};
  add_errors(row, fit.all, "");
  table.add(std::move(row));
  OrderedJson file = as_written(path);
  file["power"] = to_json(fit.power);
  write_file(options.output, file_text(file));
  print(table.text() +
        paragraph("idle {:g} W, limit {:g} W. Errors are |predicted / measured - 1| of watts: of "
                  "all kernels by the fit, and of a tenth of the shapes, by a fit without them. "
                  "joules: their energy, predicted over measured",
                  fit.power.idle.value(), fit.power.limit.value()));
  return 0;
}

int calibrate_gpu(const CalibrateOptions& options) {
  const auto path = gpu_path(options);
  const ConfigNode node = ConfigNode::from_file(path);
  GpuSpec gpu = read_gpu(node);
  const std::vector<MeasuredPoint> points = read_points(options.points);
  const OperationPredictor predictor(options.root);
  const std::string source = options.source.empty() ? options.points : options.source;
  const auto fitted = calibrate(points, options.gpu, predictor, gpu, source);
  if (fitted.empty())
    throw ConfigError("{}: no family of {} is measured at least four times", options.points,
                      options.gpu);
  OrderedJson file = as_written(path);
  Table table({"constants", "points", "median error", "p90 error"});
  for (const FittedConstants& family : fitted) {
    const std::string name(family.of->name);
    if (family.of->law == Law::roofline) {
      file["kernels"][name] = to_json(gpu.kernel(*family.of));
    } else {
      file["collectives"][name] = to_json(gpu.collective(*family.of));
    }
    table.add({name, fmt::format("{}", family.points),
               fmt::format("{:.1f} %", family.median_error * 100),
               fmt::format("{:.1f} %", family.p90_error * 100)});
  }
  write_file(options.output, file_text(file));
  print(table.text());
  return 0;
}

int calibrate_by(const CalibrateOptions& options) {
  require_writable(options.output);
  if (options.families) return calibrate_families(options);
  if (!options.serving.empty()) return calibrate_engine(options);
  const bool of_gpu = !options.points.empty() || !options.tables.empty() || !options.power.empty();
  if (!of_gpu || options.gpu.empty()) {
    throw ConfigError(
        "calibrate: give --points FILE.csv, --tables DIR or --power FILE.csv with --gpu GPU, "
        "--families, or --serving RUNS.csv with --engine ENGINE");
  }
  if (!options.power.empty()) return calibrate_power(options);
  if (!options.tables.empty()) return calibrate_from_tables(options);
  return calibrate_gpu(options);
}

}  // namespace

Action setup_calibrate(CLI::App& command) {
  const auto engines = engine_names();
  const auto options = std::make_shared<CalibrateOptions>();
  CLI::Option* of_points = command.add_option("--points", options->points, "measured points, CSV");
  CLI::Option* serving = command.add_option(
      "--serving", options->serving,
      "measured runs of many deployments, CSV: fits the constants of an engine's preset");
  CLI::Option* tables =
      command.add_option("--tables", options->tables,
                         "folder of one GPU's kernel times, <engine>-<version>/<table>.csv");
  CLI::Option* families =
      command.add_flag("--families", options->families,
                       "fits the constants of kernel families on measured tables: with --gpu those "
                       "of that GPU, without --gpu those of hardware/families.json on all GPUs");
  CLI::Option* power =
      command.add_option("--power", options->power,
                         "measured power of kernels, CSV: fits what the GPU of --gpu draws");
  power->excludes(of_points)->excludes(serving)->excludes(tables)->excludes(families);
  families->excludes(of_points)->excludes(serving)->excludes(tables);
  of_points->excludes(tables)->excludes(serving);
  tables->excludes(serving);
  CLI::Option* engine =
      option(command, "--engine", options->engine, "the engine whose preset is fitted",
             CLI::IsMember(std::vector<std::string>(engines.begin(), engines.end())));
  serving->needs(engine);
  engine->needs(serving);
  command.add_option("--gpu", options->gpu, "GPU file, or its name in hardware/gpus without .json");
  command.add_option("--profiles", options->profiles,
                     "folder for the tables (default: NAME-profiles next to the output)");
  option(command, "-o,--output", options->output,
         "the file with the fitted constants: a GPU's, a preset or families.json", mandatory);
  command.add_option("--source", options->source,
                     "source of the points, for the file (default: their path)");
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  return [options] { return calibrate_by(*options); };
}

}  // namespace moesim
