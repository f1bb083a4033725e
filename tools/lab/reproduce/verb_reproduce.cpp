// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "hardware/shipped.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/lab/reproduce/reproduction.hpp"

namespace moesim {

namespace {

struct ReproduceOptions {
  std::vector<std::string> names;
  bool all = false;
  std::filesystem::path folder = data_folder() / "configs/reproduce";
};

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw ConfigError("{}: no folder with figures in it", folder.string());
  }
  std::ranges::sort(files);
  return files;
}

/// The file of a figure. Throws ConfigError with the nearest names where there is none.
std::filesystem::path file_of(const std::string& name, const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / (name + ".json");
  if (std::filesystem::exists(file)) return file;
  constexpr std::size_t telling = 5;  // letters
  std::string like;
  for (const std::filesystem::path& other : files_in(folder)) {
    const std::string stem = other.stem().string();
    if (stem.starts_with(name.substr(0, telling)))
      like += (like.empty() ? "; names like it: " : ", ") + stem;
  }
  throw ConfigError("no figure is called \"{}\" in {}{}", name, folder.string(), like);
}

/// Text of RESULTS.md above the counts, which is written by hand; a title where there is no page.
std::string text_above_counts(const std::filesystem::path& page, std::string_view counts_heading) {
  std::ifstream file(page);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t counts = text.find(counts_heading);
  return counts == std::string::npos ? "# Published figures compared with simulated ones\n\n"
                                     : text.substr(0, counts);
}

/// RESULTS.md: what the project found, as the page before said, and how many rows came out how.
std::string results(const std::vector<Reproduction>& figures, const std::filesystem::path& page) {
  constexpr std::string_view counts_heading = "## How it compares with what others published\n";
  return fmt::format(
      "{}{}\n`moesim-lab reproduce --all` writes what follows, and every row with its reason into "
      "[results.csv](results.csv). No\nconstant and no preset is tuned to a row; "
      "[README](README.md) says how bands are chosen.\n\n{}",
      text_above_counts(page, counts_heading), counts_heading, counts_markdown(figures));
}

bool verdicts_hold(const Reproduction& figure) {
  return std::ranges::all_of(figure.rows,
                             [](const ReproducedRow& row) { return row.verdict == row.recorded; });
}

}  // namespace

Action setup_reproduce(CLI::App& command) {
  const auto options = std::make_shared<ReproduceOptions>();
  command.add_option("NAME", options->names,
                     "names of figures: files of the folder, without .json");
  command.add_flag("--all", options->all,
                   "all figures, and write RESULTS.md and results.csv into the folder");
  command.add_option("--folder", options->folder, "(default: configs/reproduce)");
  return [options] {
    if (options->all == !options->names.empty()) {
      throw ConfigError("reproduce: expected names of figures, or --all");
    }
    std::vector<std::filesystem::path> files;
    if (options->all) files = files_in(options->folder);
    for (const std::string& name : options->names) files.push_back(file_of(name, options->folder));
    const std::filesystem::path page = options->folder / "RESULTS.md";
    const std::filesystem::path rows = options->folder / "results.csv";
    if (options->all) {
      require_writable(page);
      require_writable(rows);
    }

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
    if (options->all) {
      write_file(rows, results_csv(figures));
      write_file(page, results(figures, page));
    }
    if (!hold) spdlog::warn("a verdict differs from the one in its file");
    return hold ? 0 : 3;
  };
}

}  // namespace moesim
