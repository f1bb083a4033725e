// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/lab/study/regimes.hpp"

namespace moesim {

/// The map, break-even times and who is the fastest as tables, at most 100 columns wide.
std::string regime_text(const RegimeStudy&, const std::vector<RegimeRow>& rows);
/// All rows, with each one's gains over the reference and over the fastest METRO.
std::string regime_csv(const RegimeStudy&, const std::vector<RegimeRow>& rows);
/// Plots step time against the reference's over x with gnuplot: .svg, .png or .pdf. There is a
/// panel per case and constants, and a line per policy at its best ratio and exchange.
void plot_regimes(const RegimeStudy&, const std::vector<RegimeRow>& rows,
                  const std::filesystem::path& file);

}  // namespace moesim
