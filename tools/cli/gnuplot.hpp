// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

/// "with linespoints ..": one of many colours, and one of `styles` dashes with a marker. No two of
/// some hundred pairs are alike. Colours are Okabe and Ito's, which the colour-blind tell apart;
/// without yellow, which paper swallows.
std::string line_style(std::size_t colour, std::size_t style, std::size_t styles);

/// A text as the heading of a column of gnuplot's data, where nothing is run: in one line and
/// without the quotes that end it.
std::string plot_heading(std::string_view text);

/// gnuplot's terminal for a file that ends in .svg, .png or .pdf, with room for so many panels.
/// Throws ConfigError for other endings.
std::string plot_terminal(const std::filesystem::path& file, int columns = 1, int lines = 1);

/// Output of gnuplot. The script's ARG1 is the data's file, ARG2 and on are `texts`, a line each.
/// Names that users chose belong into the data and the texts; the script could run commands. Throws
/// ConfigError if gnuplot is missing or fails.
std::string run_gnuplot(const std::string& script, const std::string& data,
                        const std::vector<std::string>& texts);

}  // namespace moesim
