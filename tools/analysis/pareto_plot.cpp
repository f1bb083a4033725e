// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/pareto_plot.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/cli/gnuplot.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

// A series of a plot: places under a name, drawn in one style.
struct Series {
  std::string title, places;
  std::size_t colour = 0, style = 0, styles = 1, letter = 0;
  bool dominated = false;
};

std::string places_of(std::span<const ParetoPoint> points, bool on_frontier) {
  std::string places;
  for (const ParetoPoint& point : points) {
    if (point.x && point.y && point.on_frontier == on_frontier)
      places += fmt::format("{} {}\n", *point.x, *point.y);
  }
  return places;
}

// Numbers of different things, in order of their first use.
template <class Key>
std::size_t number_in(std::map<Key, std::size_t>& numbers, const Key& key) {
  return numbers.emplace(key, numbers.size()).first->second;
}

// Dominated points come first, so that frontiers lie on top. The first axis that tells groups apart
// sets the colour, the others dash and marker. Equal curves are one series, which says so.
std::vector<Series> series_of(const Pareto& pareto) {
  std::vector<Series> all;
  // gnuplot crashes on a terminal plot of nothing.
  if (std::string places = places_of(pareto.points, false); !places.empty())
    all.push_back({.title = "dominated", .places = std::move(places), .dominated = true});
  const std::vector<std::map<Json, std::string>> words = group_words(pareto);
  std::map<std::string, std::size_t> colours, styles, known;
  for (const auto& points : groups_of(pareto)) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i].size() > 1) parts.push_back(words[i].at(points.front().group[i]));
    }
    std::string places = places_of(points, true);
    if (places.empty()) continue;
    const std::string title =
        parts.empty() ? "all points" : fmt::format("{}", fmt::join(parts, ", "));
    std::size_t colour = 0, style = 0;
    if (!parts.empty()) {
      const std::vector<std::string> others(parts.begin() + (parts.size() > 1 ? 1 : 0),
                                            parts.end());
      colour = number_in(colours, parts.front());
      style = number_in(styles, fmt::format("{}", fmt::join(others, ", ")));
    }
    const std::size_t letter = known.size();
    if (const auto [same, is_new] = known.emplace(places, all.size()); !is_new) {
      all[same->second].title += " = " + title;
    } else {
      all.push_back({title, std::move(places), colour, style, 1, letter});
    }
  }
  for (Series& series : all) series.styles = styles.size();
  return all;
}

// Script and data for gnuplot.
struct Drawing {
  std::string script, data;
};

// `style` says how a series is drawn: "with points ..".
template <class Style>
Drawing drawing_of(const Pareto& pareto, std::string_view settings, Style&& style) {
  Drawing drawing;
  std::string plot;
  std::size_t index = 0;
  // gnuplot tells blocks of data apart by two empty lines.
  for (const Series& series : series_of(pareto)) {
    drawing.data += fmt::format("x {}\n{}\n\n", plot_heading(series.title), series.places);
    plot += fmt::format("{} ARG1 index {} using 1:2 {} title columnheader(2)",
                        plot.empty() ? "plot" : ",", index++, style(series));
  }
  drawing.script = fmt::format(
      "{}set xlabel ARG2 noenhanced\nset ylabel ARG3 noenhanced\nset key noenhanced\n"
      "set offsets graph 0.03, graph 0.03, graph 0.05, 0\nset yrange [0:*]\n{}\n",
      settings, plot);
  return drawing;
}

std::string draw(const Drawing& drawing, const Pareto& pareto) {
  return run_gnuplot(drawing.script, drawing.data, {pareto.x_label, pareto.y_label, pareto.title});
}

}  // namespace

void plot_pareto(const Pareto& pareto, const fs::path& file) {
  const std::string terminal = plot_terminal(file);
  require_writable(file);
  const std::string settings = fmt::format(
      "set terminal {}\nset grid linecolor '#CCCCCC'\nset border 3\nset tics nomirror\n"
      "set key below Left reverse height 2\nset title ARG4 noenhanced\n",
      terminal);
  const Drawing drawing = drawing_of(pareto, settings, [](const Series& series) -> std::string {
    if (series.dominated) return "with points pt 7 ps 0.8 lc rgb '#B0B0B0'";
    return line_style(series.colour, series.style, series.styles) + " ps 1 lw 2";
  });
  // On stdout, so that the file is whole or not there.
  write_file(file, draw(drawing, pareto));
}

std::string plot_text(const Pareto& pareto) {
  constexpr std::size_t narrowest = 40, widest = 100;
  const std::size_t columns = std::clamp(output_columns().value_or(widest), narrowest, widest) - 1;
  const Drawing drawing = drawing_of(
      pareto, fmt::format("set terminal dumb noenhanced size {},28\nset key below\n", columns),
      [](const Series& series) {
        const char letter = series.dominated ? '.' : letters[series.letter % letters.size()];
        return fmt::format("with points pt '{}'", letter);
      });
  std::string drawn;
  try {
    drawn = draw(drawing, pareto);
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
  return text.empty() ? "" : fmt::format("{}\n{}\n", pareto.y_label, text);
}

}  // namespace moesim
