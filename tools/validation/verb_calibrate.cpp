// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/source_tree.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/validation/calibration.hpp"

namespace moesim {

namespace {

struct Options {
  std::string points, gpu, output, source;
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

}  // namespace

Action setup_calibrate(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  command.add_option("--points", options->points, "measured points, CSV")->required();
  command.add_option("--gpu", options->gpu, "file in hardware/gpus, without .json")->required();
  command.add_option("-o,--output", options->output, "the GPU file with fitted constants")
      ->required();
  command.add_option("--source", options->source, "what the points are, for the file (their path)");
  command.add_option("--root", options->root, "folder that holds hardware/ and models/");
  return [options] {
    require_writable(options->output);
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
