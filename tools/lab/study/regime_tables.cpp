// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/study/regime_tables.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/analysis/pareto.hpp"
#include "tools/cli/gnuplot.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

// The rows of one table: a case under a set of constants, steps of one kind.
struct Panel {
  std::size_t of_case = 0, constants = 0;
  StepKind kind = StepKind::decode;
  bool has(const RegimeRow& row) const {
    return row.place.of_case == of_case && row.place.constants == constants && row.kind == kind;
  }
};

std::vector<Panel> panels_of(const RegimeStudy& study) {
  std::vector<Panel> panels;
  for (std::size_t of_case = 0; of_case < study.cases.size(); ++of_case) {
    for (std::size_t constants = 0; constants < study.constants.size(); ++constants) {
      if (!study.sequences.empty()) panels.push_back({of_case, constants, StepKind::decode});
      if (!study.prompts.empty()) panels.push_back({of_case, constants, StepKind::prefill});
    }
  }
  return panels;
}

std::string kind_name(StepKind kind) { return std::string(step_kind_names[at(kind)]); }

std::string heading_of(const RegimeStudy& study, const Panel& panel) {
  std::vector<std::string> parts{study.cases[panel.of_case].first};
  if (study.constants.size() > 1) parts.push_back(study.constants[panel.constants].first);
  if (!study.prompts.empty()) parts.push_back(kind_name(panel.kind));
  return fmt::format("{}", fmt::join(parts, "; "));
}

const std::string& policy_of(const RegimeStudy& study, const RegimeRow& row) {
  return study.policies[row.place.policy].first;
}

std::string named(const RegimeStudy& study, const RegimeRow& row) {
  return row.replication > 1 ? fmt::format("{} {:.4g}x", policy_of(study, row), row.replication)
                             : policy_of(study, row);
}

std::string interval(const SampledGain& gain) {
  return fmt::format("{:+.1f} to {:+.1f}", gain.low, gain.high);
}

double percent_of(const std::vector<double>& values, const std::vector<double>& against) {
  return 100 * (mean_of(values) / mean_of(against) - 1);
}

double kv_change(const RegimeRow& row, const RegimeRow& reference) {
  return 100 * (row.kv_tokens / reference.kv_tokens - 1);
}

std::string map_text(const RegimeStudy& study, const std::vector<RegimeCell>& cells,
                     const Panel& panel) {
  const bool tells_exchange = study.exchanges.size() > 1;
  std::vector<std::string> head{"x", "batch", "fastest"};
  if (tells_exchange) head.push_back("behind");
  for (const std::string& column :
       {"step % of " + study.policies.front().first, std::string("90 %"), std::string("P"),
        std::string("% of metro"), std::string("P"), std::string("expert bytes %"),
        std::string("KV %"), std::string("as fast, most KV")})
    head.push_back(column);
  Table table(head);
  const Worlds worlds = worlds_of(study);
  bool any = false;
  for (const RegimeCell& cell : cells) {
    const RegimeRow& best = *cell.fastest;
    if (!panel.has(best)) continue;
    any = true;
    std::vector<std::string> line{fmt::format("{:.3g}", best.x), fmt::format("{}", best.batch),
                                  named(study, best)};
    if (tells_exchange) line.push_back(study.exchanges[best.place.exchange].first);
    const SampledGain gain = worlds.percent(best.steps(), cell.reference->steps());
    std::string change_of_metro = "-", p_of_metro = "-";
    if (cell.metro != nullptr) {
      const SampledGain of_metro = worlds.percent(best.steps(), cell.metro->steps());
      change_of_metro = fmt::format("{:+.1f}", of_metro.change);
      p_of_metro = fmt::format("{:.2f}", of_metro.p_less);
    }
    for (const std::string& value :
         {fmt::format("{:+.1f}", gain.change), interval(gain), fmt::format("{:.2f}", gain.p_less),
          change_of_metro, p_of_metro,
          fmt::format("{:+.1f}", percent_of(best.read_mb, cell.reference->read_mb)),
          fmt::format("{:+.1f}", kv_change(best, *cell.reference)), named(study, *cell.cheapest)})
      line.push_back(value);
    table.add(std::move(line));
  }
  return any ? table.text(100) : "no policy's batch fits\n";
}

std::string break_even_cell(const BreakEven& one) {
  return fmt::format("{:+.1f} ({:.2f}, {:.2f})", one.us, one.p_fast, one.p_published);
}

// How long each policy by global counts may take to decide, a line for each batch and rival of a
// panel.
std::string break_even_text(const RegimeStudy& study, const std::vector<BreakEven>& all,
                            const Panel& panel) {
  std::vector<std::string> head{"x", "batch", "rival"};
  std::map<std::size_t, std::size_t> column;  // by policy
  for (std::size_t policy = 0; policy < study.policies.size(); ++policy) {
    const bool decides = std::ranges::any_of(all, [&](const BreakEven& one) {
      return panel.has(*one.policy) && one.policy->place.policy == policy;
    });
    if (!decides) continue;
    column[policy] = head.size();
    head.push_back(study.policies[policy].first);
  }
  if (column.empty()) return "";
  Table table(head);
  std::vector<std::string> line;
  const RegimeRow* rival = nullptr;
  const auto end_line = [&] {
    if (!line.empty()) table.add(std::exchange(line, {}));
  };
  for (const BreakEven& one : all) {
    if (!panel.has(*one.policy)) continue;
    if (one.rival != rival) {
      end_line();
      rival = one.rival;
      line = {fmt::format("{:.3g}", rival->x), fmt::format("{}", rival->batch),
              named(study, *rival)};
      line.resize(head.size(), "-");
    }
    line[column.at(one.policy->place.policy)] = break_even_cell(one);
  }
  end_line();
  return "break-even, us per MoE layer:\n" + table.text(100) + "\n";
}

// The fastest under one set of constants, whatever the exchange.
std::string view_text(const std::vector<RegimeView>& all, std::size_t constants) {
  std::vector<RegimeView> views;
  std::vector<double> percent;
  for (const RegimeView& view : all) {
    if (view.constants != constants) continue;
    percent.push_back(percent_of(view.fastest->ms, view.reference->ms));
    views.push_back(view);
  }
  if (views.empty()) return "-";
  const auto [least, most] = std::ranges::minmax(percent);
  const FastestFamily best = fastest_family(views);
  return fmt::format("{} {:+.1f} to {:+.1f}, {:.2f}", best.family, least, most, best.p);
}

// Text of how likely somebody is the fastest whatever is assumed.
std::string chances_text(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  if (study.constants.size() * study.exchanges.size() == 1) return "";
  std::vector<std::string> head{"case", "x"};
  for (const auto& [name, settings] : study.constants)
    head.push_back(name.empty() ? "fastest, step %, P" : name + ", step %, P");
  for (const char* column : {"in all", "P"}) head.emplace_back(column);
  Table table(head);
  for (const std::vector<RegimeView>& views : regime_views(study, rows)) {
    const RegimeRow& some = *views.front().fastest;
    std::string name = study.cases[some.place.of_case].first;
    if (!study.prompts.empty()) name += "; " + kind_name(some.kind);
    std::vector<std::string> line{name, fmt::format("{:.3g}", some.x)};
    for (std::size_t constants = 0; constants < study.constants.size(); ++constants)
      line.push_back(view_text(views, constants));
    const FastestFamily best = fastest_family(views);
    line.push_back(best.family);
    line.push_back(fmt::format("{:.2f}", best.p));
    table.add(std::move(line));
  }
  return fmt::format("the fastest, and P:\n{}\n", table.text(100));
}

std::string legend(const RegimeStudy& study) {
  std::string drawn = "batches";
  if (study.deals > 1) drawn += ", deals of the requests to fit on";
  if (study.price_errors) drawn += ", and errors of kernels and exchange";
  std::string text =
      paragraph(
          "x: tokens * k / experts. %: the fastest compared with " + study.policies.front().first +
          " and with the fastest metro. Compared are step time (with the 90 % interval, and P "
          "that it is shorter), bytes of experts that the busiest GPU reads, and KV cache. "
          "Interval and P are over worlds that could as well be true: resampled are " +
          drawn + ". As fast, most KV: shorter than the fastest with P of .05 or more.") +
      paragraph(
          "Break-even: how long a policy that needs the counts of all GPUs may take to decide, in "
          "each MoE layer. At that time the policy is as fast as the rival: " +
          study.policies.front().first +
          ", or the fastest policy without these counts. Below 0: the policy is slower even if "
          "deciding takes no time. In parentheses: P that its step is shorter if deciding takes as "
          "long as by our own kernels (hardware/measured), and as long as published.");
  if (study.constants.size() * study.exchanges.size() > 1)
    text +=
        paragraph("The fastest: range of its step compared with " + study.policies.front().first +
                  ", each policy behind its best exchange and all behind the same one. P that "
                  "it is the fastest is the least of these. Policies whose names begin with the "
                  "same word are one.");
  return text;
}

}  // namespace

std::string regime_text(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  const std::vector<BreakEven> decided = break_even(study, rows);
  std::string text;
  for (const Panel& panel : panels_of(study))
    text += fmt::format("{}\n{}\n{}", heading_of(study, panel), map_text(study, cells, panel),
                        break_even_text(study, decided, panel));
  return text + chances_text(study, rows) + legend(study);
}

std::string regime_csv(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::string csv =
      "case,constants,exchange,policy,replication,step,batch,x,fits,step_ms,free_ms,published_ms,"
      "fast_ms,activated,read_mb,kv_tokens,step_vs_reference_percent,low,high,p_less,bytes_vs_"
      "reference_percent,step_vs_metro_percent,metro_low,metro_high,p_less_than_metro\n";
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  const auto optional_mean = [](const std::vector<double>& values) {
    return values.empty() ? std::string() : fmt::format("{:.6g}", mean_of(values));
  };
  const Worlds worlds = worlds_of(study);
  const auto gain = [&](const RegimeRow& of, const RegimeRow& against) {
    const SampledGain one = worlds.percent(of.steps(), against.steps());
    return fmt::format("{:.4f},{:.4f},{:.4f},{:.3f}", one.change, one.low, one.high, one.p_less);
  };
  for (const RegimeRow& row : rows) {
    const Panel panel{row.place.of_case, row.place.constants, row.kind};
    const auto cell = std::ranges::find_if(cells, [&](const RegimeCell& other) {
      return panel.has(*other.fastest) && other.fastest->batch == row.batch;
    });
    if (cell == cells.end()) continue;
    csv += fmt::format(
        "\"{}\",\"{}\",\"{}\",\"{}\",{:.6g},{},{},{:.6g},{},{:.6g},{},{},{},{:.6g},{:.6g},{:.0f},{}"
        ",{},{}\n",
        study.cases[row.place.of_case].first, study.constants[row.place.constants].first,
        study.exchanges[row.place.exchange].first, policy_of(study, row), row.replication,
        kind_name(row.kind), row.batch, row.x, row.fits ? 1 : 0, mean_of(row.ms),
        optional_mean(row.free_ms), optional_mean(row.published_ms), optional_mean(row.fast_ms),
        mean_of(row.activated), mean_of(row.read_mb), row.kv_tokens, gain(row, *cell->reference),
        fmt::format("{:.4f}", percent_of(row.read_mb, cell->reference->read_mb)),
        cell->metro != nullptr ? gain(row, *cell->metro) : ",,,");
  }
  return csv;
}

namespace {

// A policy's step against the reference's over x, at its best ratio and exchange for each, and P
// that the step is shorter.
std::string series_of(const Worlds& worlds, const std::vector<RegimeCell>& cells,
                      const std::vector<RegimeRow>& rows, const Panel& panel, std::size_t policy) {
  std::string places;
  for (const RegimeCell& cell : cells) {
    if (!panel.has(*cell.fastest)) continue;
    const RegimeRow* best = nullptr;
    for (const RegimeRow& row : rows) {
      if (!panel.has(row) || row.batch != cell.fastest->batch || row.place.policy != policy)
        continue;
      if (best == nullptr || mean_of(row.ms) < mean_of(best->ms)) best = &row;
    }
    if (best == nullptr) continue;
    const SampledGain gain = worlds.percent(best->steps(), cell.reference->steps());
    places += fmt::format("{} {} {}\n", best->x, gain.change, gain.p_less);
  }
  return places;
}

// "waterfill 0: replication 1, waterfill": what a policy sets, in words, where its name is not
// that.
std::string explained(const std::string& policy, const Json& settings) {
  if (settings.size() == 1 && settings.front() == policy) return policy;
  std::string text;
  for (const auto& [pointer, value] : settings.items()) {
    const std::string name = name_in_words(pointer.substr(pointer.rfind('/') + 1));
    text += fmt::format("{}{}{}", text.empty() ? ": " : ", ", value.is_number() ? name + " " : "",
                        setting_text(value));
  }
  return policy + text;
}

}  // namespace

void plot_regimes(const RegimeStudy& study, const std::vector<RegimeRow>& rows,
                  const std::filesystem::path& file) {
  plot_terminal(file);  // refuses other endings
  require_writable(file);
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  const Worlds worlds = worlds_of(study);
  const std::size_t policies = study.policies.size();
  std::string data, titles, names, keys;
  std::vector<std::string> panels;
  std::size_t index = 0;
  for (std::size_t i = 0; i < policies; ++i) {
    keys += fmt::format(", NaN {} ps 0.6 lw 1.5 title word(ARG5, {}) noenhanced",
                        line_style(i, i, policies), i + 1);
    names += plot_heading(explained(study.policies[i].first, study.policies[i].second)) + " ";
  }
  const std::string white = "with points pt 7 ps 0.3 lc rgb 'white'";
  keys +=
      ", NaN with points pt 6 ps 0.6 lc rgb 'black' title 'white inside: P of a shorter step "
      "between .05 and .95'";
  for (const Panel& panel : panels_of(study)) {
    std::string plot, unsure;
    for (std::size_t i = 0; i < policies; ++i) {
      const std::string places = series_of(worlds, cells, rows, panel, i);
      if (places.empty()) continue;
      data += fmt::format("{}\n\n", places);
      plot += fmt::format("{} ARG1 index {} using 1:2 {} ps 0.6 lw 1.5 notitle",
                          plot.empty() ? "plot" : ",", index, line_style(i, i, policies));
      if (i > 0)  // the reference is neither shorter nor longer than itself
        unsure += fmt::format(
            ", ARG1 index {} using 1:($3 > .05 && $3 < .95 ? $2 : NaN) {} notitle", index, white);
      ++index;
    }
    if (plot.empty()) continue;
    titles += plot_heading(heading_of(study, panel)) + " ";
    panels.push_back(fmt::format("set title word(ARG4, {}) noenhanced offset 0,-.5\n{}{}{}\n",
                                 panels.size() + 1, plot, unsure, panels.empty() ? keys : ""));
  }
  // All panels share the legend below them, and the range of both axes.
  constexpr int line_height = 21, panel_height = 600;
  constexpr double smallest_panel = .6;
  const int drawn = static_cast<int>(panels.size());
  const int columns = std::max(1, static_cast<int>(std::ceil(std::sqrt(drawn))));
  const int lines = std::max(1, (drawn + columns - 1) / columns);
  std::string drawing;  // axes are named at the edge
  for (int i = 0; i < drawn; ++i)
    drawing += fmt::format("set xlabel {}\nset ylabel {}\n{}", i + columns < drawn ? "''" : "ARG2",
                           i % columns > 0 ? "''" : "ARG3", panels[at(i)]);
  const std::size_t key_lines = (policies + 2) / 2;  // one more says what white is
  const double height = panel_height * std::max(1.0, smallest_panel * lines);
  const double bottom = line_height * double(key_lines + 4) / height;
  const std::string script = fmt::format(
      "set terminal {}\nset grid linecolor '#CCCCCC'\nset border 3\nset tics nomirror\n"
      "set key at screen .5,.005 center bottom vertical maxrows {} Left reverse\n"
      "stats ARG1 using 1:2 nooutput\nset yrange [STATS_min_y:STATS_max_y]\n"
      "set xrange [STATS_min_x:STATS_max_x]\n"
      "set logscale x 2\n"
      "set multiplot layout {},{} margins screen .07,.98,{:.3f},.95 spacing screen .05,.1\n"
      "{}unset multiplot\n",
      plot_terminal(file, columns, lines), key_lines, lines, columns, bottom, drawing);
  write_file(file,
             run_gnuplot(script, data,
                         {"x = tokens * k / experts",
                          fmt::format("change of step time against {}, %", study.policies[0].first),
                          titles, names}));
}

}  // namespace moesim
