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

namespace moesim {

namespace {

struct Options {
  std::string points, serving, gpu, output, source;
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

}  // namespace

Action setup_calibrate(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  CLI::Option* kernels = command.add_option("--points", options->points, "measured points, CSV");
  command
      .add_option("--serving", options->serving,
                  "measured runs of one deployment, CSV: writes what corrects its predictions")
      ->excludes(kernels);
  command.add_option("--gpu", options->gpu, "file in hardware/gpus, without .json");
  command
      .add_option("-o,--output", options->output,
                  "the GPU file with fitted constants, or the corrections")
      ->required();
  command.add_option("--source", options->source, "what the points are, for the file (their path)");
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  return [options] {
    require_writable(options->output);
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
