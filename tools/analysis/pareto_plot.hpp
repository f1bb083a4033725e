// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "tools/analysis/pareto.hpp"

namespace moesim {

/// Draws a frontier per group, dominated points in grey, with gnuplot: .svg, .png or .pdf. Throws
/// ConfigError for other endings, if the file cannot be written or gnuplot is missing.
void plot_pareto(const Pareto&, const std::filesystem::path& file);

/// The frontiers drawn in letters, at most 100 columns wide; empty without gnuplot.
std::string plot_text(const Pareto&);

}  // namespace moesim
