// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/source_tree.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/validation/anchors.hpp"
#include "tools/validation/calibration.hpp"
#include "tools/validation/engine_fit.hpp"

namespace moesim {

namespace {

struct Options {
  std::string points, serving, engine, gpu, output, source;
  std::filesystem::path root = source_tree();
};

std::string_view name_of(const Constants& of) {
  if (const auto* family = std::get_if<KernelFamily>(&of))
    return kernel_family_names[static_cast<std::size_t>(*family)];
  return collective_names[static_cast<std::size_t>(std::get<Collective>(of))];
}

/// A GPU file as people edit it: one line for each fact, family and collective.
std::string file_text(const OrderedJson& gpu) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : gpu.items()) {
    if (key != "kernels" && key != "collectives") {
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

/// Runs of one deployment, and what corrects its predictions.
int calibrate_serving(const Options& options) {
  const auto anchors = anchors_of(validate(read_points(options.serving), options.root));
  if (anchors.size() != 1) {
    throw ConfigError(fmt::format("{}: runs of {} deployments that can be predicted; one is needed",
                                  options.serving, anchors.size()));
  }
  const Anchor& anchor = anchors.begin()->second;
  write_file(options.output, to_json(anchor).dump(1) + "\n");
  Table table({"figure", "runs", "factor", "leave-one-out error"});
  for (const auto& [name, fit] : {std::pair{"tpot", anchor.tpot}, {"ttft", anchor.ttft}}) {
    if (fit.runs == 0) continue;
    table.add({name, fmt::format("{}", fit.runs), fmt::format("{:.3f}", fit.factor),
               fmt::format("{:.1f} %", fit.leave_one_out * 100)});
  }
  print(table.text());
  return 0;
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

/// What kernels leave of an engine's steps, fitted on runs of many deployments.
int calibrate_engine(const Options& options) {
  const auto runs = runs_of_engine(read_points(options.serving), options.engine, options.root);
  if (runs.size() < 10)
    throw ConfigError(fmt::format("{}: {} runs of {} that can be predicted; ten are needed",
                                  options.serving, runs.size(), options.engine));
  const EngineConstants fitted = fit_engine(runs);
  const double error = held_out_error(runs);
  const std::string name = options.source.empty() ? options.serving : options.source;
  std::ifstream in(options.root / "hardware/engines" / (options.engine + ".json"));
  write_file(options.output,
             preset_text(with_constants(
                 OrderedJson::parse(in), fitted,
                 fmt::format("fitted on {} runs of {}; median error of TPOT on deployments left "
                             "out {:.1f} %",
                             runs.size(), name, error * 100))));
  Table table({"constant", "value"});
  table.add({"per layer", fmt::format("{:.1f} us", fitted.per_layer_us)});
  table.add({"per step", fmt::format("{:.0f} us", fitted.per_step_us)});
  table.add({"per sequence", fmt::format("{:.1f} us", fitted.per_sequence_us)});
  table.add({"latency", fmt::format("{:.1f} ms", fitted.latency_ms)});
  table.add({"admission steps", fmt::format("{}", fitted.admission_steps)});
  table.add({"TPOT, deployment left out", fmt::format("{:.1f} %", error * 100)});
  print(table.text());
  return 0;
}

}  // namespace

Action setup_calibrate(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  CLI::Option* kernels = command.add_option("--points", options->points, "measured points, CSV");
  command
      .add_option("--serving", options->serving,
                  "measured runs of one deployment, CSV: writes what corrects its predictions")
      ->excludes(kernels);
  command
      .add_option("--engine", options->engine,
                  "with --serving: fits the constants of this engine's preset on all of its runs")
      ->check(CLI::IsMember({"vllm", "sglang", "trtllm"}));
  command.add_option("--gpu", options->gpu, "file in hardware/gpus, without .json");
  command
      .add_option("-o,--output", options->output,
                  "the GPU file with fitted constants, or the corrections")
      ->required();
  command.add_option("--source", options->source, "what the points are, for the file (their path)");
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  return [options] {
    require_writable(options->output);
    if (!options->engine.empty() && !options->serving.empty()) return calibrate_engine(*options);
    if (!options->serving.empty()) return calibrate_serving(*options);
    if (options->points.empty() || options->gpu.empty())
      throw ConfigError("calibrate: give --points FILE.csv and --gpu NAME, or --serving RUNS.csv");
    const auto path = options->root / "hardware/gpus" / (options->gpu + ".json");
    const ConfigNode node = ConfigNode::from_file(path);
    GpuSpec gpu = read_gpu(node);
    const std::vector<MeasuredPoint> points = read_points(options->points);
    const OperationPredictor predictor(options->root);
    const std::string source = options->source.empty() ? options->points : options->source;
    const auto fitted = calibrate(points, options->gpu, predictor, gpu, source);
    if (fitted.empty())
      throw ConfigError(fmt::format("{}: no family of {} is measured at least four times",
                                    options->points, options->gpu));
    // Read again in the order people wrote it.
    std::ifstream in(path);
    OrderedJson file = OrderedJson::parse(in);
    Table table({"constants", "points", "median error", "p90 error"});
    for (const FittedConstants& family : fitted) {
      const std::string name(name_of(family.of));
      if (const auto* kernel = std::get_if<KernelFamily>(&family.of)) {
        file["kernels"][name] = to_json(gpu.kernel(*kernel));
      } else {
        file["collectives"][name] = to_json(gpu.collective(std::get<Collective>(family.of)));
      }
      table.add({name, fmt::format("{}", family.points),
                 fmt::format("{:.1f} %", family.median_error * 100),
                 fmt::format("{:.1f} %", family.p90_error * 100)});
    }
    write_file(options->output, file_text(file));
    print(table.text());
    return 0;
  };
}

}  // namespace moesim
