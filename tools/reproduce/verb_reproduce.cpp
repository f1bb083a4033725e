// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "tools/cli/output.hpp"
#include "tools/cli/source_tree.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/reproduce/reproduction.hpp"

namespace moesim {

namespace {

struct Options {
  std::vector<std::string> names;
  bool all = false;
  std::filesystem::path folder = source_tree() / "configs/reproduce";
};

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw ConfigError(fmt::format("{}: no folder with figures in it", folder.string()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// The file of RESULTS.md: how many rows came out how, then the figures.
std::string results(const std::vector<Reproduction>& figures) {
  std::array<int, verdict_names.size()> count{};
  std::string sections;
  for (const Reproduction& figure : figures) {
    for (const ReproducedRow& row : figure.rows) ++count[static_cast<std::size_t>(row.verdict)];
    sections += "\n" + markdown(figure);
  }
  return fmt::format(
             "# Published beside simulated\n\nWritten by `moesim reproduce --all`. No constant and "
             "no preset is tuned to a row; README.md says\nhow bands are chosen. {} rows within "
             "band, {} sign only, {} not reproduced; {} more have nothing published\nto compare "
             "with.\n",
             count[0], count[1], count[2], count[3]) +
         sections;
}

bool verdicts_hold(const Reproduction& figure) {
  return std::all_of(figure.rows.begin(), figure.rows.end(),
                     [](const ReproducedRow& row) { return row.verdict == row.recorded; });
}

}  // namespace

Action setup_reproduce(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  command.add_option("NAME", options->names, "figures: files of the folder, without .json");
  command.add_flag("--all", options->all, "all of them, and write RESULTS.md into the folder");
  command.add_option("--folder", options->folder, "(default: configs/reproduce)");
  return [options] {
    if (options->all == !options->names.empty()) {
      throw ConfigError("reproduce: expected names of figures, or --all");
    }
    std::vector<std::filesystem::path> files;
    if (options->all) files = files_in(options->folder);
    for (const std::string& name : options->names)
      files.push_back(options->folder / (name + ".json"));
    const std::filesystem::path output = options->folder / "RESULTS.md";
    if (options->all) require_writable(output);

    std::vector<ConfigNode> nodes;
    for (const std::filesystem::path& file : files) nodes.push_back(ConfigNode::from_file(file));
    std::vector<Reproduction> figures;
    bool hold = true;
    for (const ConfigNode& node : nodes) {
      spdlog::info("{} of {}: {}", figures.size() + 1, nodes.size(), node.file().stem().string());
      figures.push_back(reproduce(node));
      print((figures.size() > 1 ? "\n" : "") + to_text(figures.back()));
      hold = hold && verdicts_hold(figures.back());
    }
    if (options->all) write_file(output, results(figures));
    if (!hold) spdlog::warn("a verdict differs from the one in its file");
    return hold ? 0 : 3;
  };
}

}  // namespace moesim
