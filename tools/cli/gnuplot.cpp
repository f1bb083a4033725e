// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/gnuplot.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "hardware/config.hpp"
#include "tools/cli/process.hpp"

namespace moesim {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view advice = "install it (Debian: gnuplot-nox), or leave out --plot";

std::string one_line(std::string_view text) {
  std::string line(text);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  std::replace_if(line.begin(), line.end(), is_control, ' ');
  return line;
}

class TemporaryText {
 public:
  explicit TemporaryText(const std::string& text) {
    std::string name = (fs::temp_directory_path() / "moesim-plot-XXXXXX").string();
    const int descriptor = ::mkstemp(name.data());
    if (descriptor < 0) throw ConfigError("{}: cannot be written", name);
    ::close(descriptor);
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~TemporaryText() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  TemporaryText(const TemporaryText&) = delete;
  TemporaryText& operator=(const TemporaryText&) = delete;

  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

}  // namespace

std::string line_style(std::size_t colour, std::size_t style, std::size_t styles) {
  constexpr std::array<std::string_view, 7> colours{"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                    "#E69F00", "#56B4E9", "#000000"};
  // gnuplot's point types, full before open ones, and dash types: 35 pairs before one returns.
  constexpr std::array<int, 7> shapes{7, 5, 9, 11, 13, 4, 6};
  constexpr std::size_t dashes = 5;
  style += colour / colours.size() * styles;  // colours begin anew
  return fmt::format("with linespoints pt {} dt {} lc rgb '{}'", shapes[style % shapes.size()],
                     1 + style % dashes, colours[colour % colours.size()]);
}

std::string plot_heading(std::string_view text) {
  std::string line = one_line(text);
  std::ranges::replace(line, '"', '\'');
  return "\"" + line + "\"";
}

std::string plot_terminal(const fs::path& file, int columns, int lines) {
  const std::string ending = file.extension().string();
  const double wide = std::max(1.0, 0.5 * columns), high = std::max(1.0, 0.6 * lines);
  const auto size = [&](double width, double height) {
    return fmt::format("{:.0f},{:.0f}", wide * width, high * height);
  };
  if (ending == ".svg")
    return fmt::format("svg size {} font 'DejaVu Sans,14' background 'white'", size(960, 600));
  if (ending == ".png")
    return fmt::format("pngcairo size {} font 'DejaVu Sans,16' linewidth 1.5", size(1440, 900));
  if (ending == ".pdf")
    return fmt::format("pdfcairo size {:.0f}cm,{:.0f}cm font 'DejaVu Sans,10'", wide * 16,
                       high * 10);
  throw ConfigError("{}: expected a name that ends in .svg, .png or .pdf", file.string());
}

std::string run_gnuplot(const std::string& script, const std::string& data,
                        const std::vector<std::string>& texts) {
  const TemporaryText script_file(script), data_file(data);
  std::vector<std::string> command{"gnuplot", "-c", script_file.path(), data_file.path()};
  for (const std::string& text : texts) command.push_back(one_line(text));
  return run_program(command, advice);
}

}  // namespace moesim
