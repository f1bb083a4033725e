// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/pareto_plot.hpp"

#include <array>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "tools/cli/output.hpp"
#include "tools/cli/process.hpp"

namespace moesim {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view advice = "install it (Debian: gnuplot-nox), or leave out --plot";

// Okabe and Ito's colours, which the colour-blind tell apart; without yellow, which paper swallows.
constexpr std::array<std::string_view, 7> colours{"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                  "#E69F00", "#56B4E9", "#000000"};
constexpr std::array<int, 7> shapes{7, 5, 9, 11, 13, 4, 6};  // full before open ones
constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

// A text in gnuplot's single quotes.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("''") : std::string(1, c);
  return word + "'";
}

// What a plot is made of: places under a name, drawn in one style.
struct Series {
  std::string title, places;
  std::size_t group = 0;
  bool dominated = false;
};

void add_series(std::vector<Series>& all, Series series, std::span<const ParetoPoint> points) {
  for (const ParetoPoint& point : points) {
    if (point.x && point.y && point.on_frontier != series.dominated)
      series.places += fmt::format("{} {}\n", *point.x, *point.y);
  }
  // gnuplot crashes on a terminal plot of nothing.
  if (!series.places.empty()) all.push_back(std::move(series));
}

// Dominated points first, so that frontiers lie on top of them.
std::vector<Series> series_of(const Pareto& pareto) {
  std::vector<Series> all;
  add_series(all, {"dominated", "", 0, true}, pareto.points);
  std::size_t group = 0;
  for (const auto& points : groups_of(pareto))
    add_series(all, {group_text(pareto, points.front()), "", group++}, points);
  return all;
}

// `style` says how a series is drawn: "with points ..".
template <class Style>
std::string script_of(const Pareto& pareto, std::string_view settings, Style&& style) {
  std::string data;
  std::string plot;
  for (const Series& series : series_of(pareto)) {
    const std::string name = fmt::format("$series{}", data.size());
    data += fmt::format("{} << EOD\n{}EOD\n", name, series.places);
    plot += fmt::format("{} {} {} title {}", plot.empty() ? "plot" : ",", name, style(series),
                        quoted(series.title));
  }
  return fmt::format(
      "{}{}set xlabel {} noenhanced\nset ylabel {} noenhanced\nset key noenhanced\n"
      "set xrange [0:*]\nset yrange [0:*]\n{}\n",
      data, settings, quoted(pareto.x_name), quoted(pareto.y_name), plot);
}

class ScriptFile {
 public:
  explicit ScriptFile(const std::string& script) {
    std::string name = (fs::temp_directory_path() / "moesim-plot-XXXXXX").string();
    const int descriptor = ::mkstemp(name.data());
    if (descriptor < 0) throw ConfigError(fmt::format("{}: cannot be written", name));
    ::close(descriptor);
    path_ = name;
    std::ofstream(path_) << script;
  }
  ~ScriptFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  ScriptFile(const ScriptFile&) = delete;
  ScriptFile& operator=(const ScriptFile&) = delete;

  std::string run() const { return run_program({"gnuplot", path_.string()}, advice); }

 private:
  fs::path path_;
};

std::string_view terminal_of(const fs::path& file) {
  const std::string ending = file.extension().string();
  if (ending == ".svg") return "svg size 960,600 font 'DejaVu Sans,14' background 'white'";
  if (ending == ".png") return "pngcairo size 1440,900 font 'DejaVu Sans,16' linewidth 1.5";
  if (ending == ".pdf") return "pdfcairo size 16cm,10cm font 'DejaVu Sans,10'";
  throw ConfigError(
      fmt::format("{}: expected a name that ends in .svg, .png or .pdf", file.string()));
}

}  // namespace

void plot_pareto(const Pareto& pareto, const fs::path& file) {
  const std::string_view terminal = terminal_of(file);
  require_writable(file);
  const std::string settings = fmt::format(
      "set terminal {}\nset grid linecolor '#CCCCCC'\nset border 3\nset tics nomirror\n"
      "set key below Left reverse\n",
      terminal);
  const std::string script = script_of(pareto, settings, [](const Series& series) -> std::string {
    if (series.dominated) return "with points pt 7 ps 0.8 lc rgb '#B0B0B0'";
    return fmt::format("with linespoints pt {} ps 1 lw 2 lc rgb '{}'",
                       shapes[series.group % shapes.size()],
                       colours[series.group % colours.size()]);
  });
  // On stdout, so that the file is whole or not there.
  write_file(file, ScriptFile(script).run());
}

std::string plot_text(const Pareto& pareto) {
  const std::string script = script_of(
      pareto, "set terminal dumb noenhanced size 99,28\nset key below\n", [](const Series& series) {
        const char letter = series.dominated ? '.' : letters[series.group % letters.size()];
        return fmt::format("with points pt '{}'", letter);
      });
  std::string drawn;
  try {
    drawn = ScriptFile(script).run();
  } catch (const ConfigError&) {
    return "";
  }
  std::erase(drawn, '\f');
  std::string text;
  for (std::size_t begin = 0; begin < drawn.size();) {
    const std::size_t end = std::min(drawn.find('\n', begin), drawn.size());
    std::string line = drawn.substr(begin, end - begin);
    line.erase(line.find_last_not_of(' ') + 1);
    if (!line.empty()) text += line + '\n';
    begin = end + 1;
  }
  return text.empty() ? "" : fmt::format("{}\n{}\n", pareto.y_name, text);
}

}  // namespace moesim
