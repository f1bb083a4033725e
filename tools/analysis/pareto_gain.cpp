// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/pareto_gain.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "sim/report/statistics.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

constexpr int places_if_not_said = 8;
constexpr int median_samples = 1001;

// The first point beyond x.
Frontier::const_iterator beyond(const Frontier& frontier, double x) {
  return std::ranges::upper_bound(frontier, x, {}, &Frontier::value_type::first);
}

Gain gain_at(const Frontier& baseline, const Frontier& candidate, double x) {
  return {x, *step_value(candidate, x) / *step_value(baseline, x),
          *interpolated_value(candidate, x) / *interpolated_value(baseline, x)};
}

std::vector<double> evenly(double first, double last, int n) {
  std::vector<double> places;
  for (int i = 0; i < n; ++i) places.push_back(first + (last - first) * i / (n - 1));
  return places;
}

std::map<std::vector<Json>, Frontier> frontiers(const Pareto& pareto) {
  std::map<std::vector<Json>, Frontier> found;
  for (const ParetoPoint& point : pareto.points) {
    if (point.on_frontier) found[point.group].emplace_back(*point.x, *point.y);
  }
  return found;
}

std::string list_settings(std::span<const Setting> settings) {
  std::string text;
  for (const Setting& setting : settings)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", setting.pointer,
                        setting_text(setting.value));
  return text;
}

}  // namespace

std::optional<double> step_value(const Frontier& frontier, double x) {
  const auto next = beyond(frontier, x);
  if (next == frontier.begin()) return std::nullopt;
  return std::prev(next)->second;
}

std::optional<double> interpolated_value(const Frontier& frontier, double x) {
  const auto next = beyond(frontier, x);
  if (next == frontier.begin()) return std::nullopt;
  const auto [x0, y0] = *std::prev(next);
  if (next == frontier.end()) return y0;
  return y0 + (next->second - y0) * (x - x0) / (next->first - x0);
}

GroupGain frontier_gain(const Frontier& baseline, const Frontier& candidate,
                        std::span<const double> places) {
  GroupGain gain;
  gain.first = std::max(baseline.front().first, candidate.front().first);
  gain.last = std::min(baseline.back().first, candidate.back().first);
  if (gain.first > gain.last) return gain;
  const auto within = [&](double x) { return x >= gain.first && x <= gain.last; };
  const std::vector<double> even = evenly(gain.first, gain.last, places_if_not_said);
  for (const double x : places.empty() ? std::span<const double>(even) : places) {
    if (within(x)) gain.at.push_back(gain_at(baseline, candidate, x));
  }
  // Between two neighbouring points of either frontier a ratio of steps is constant, one of
  // straight lines monotonous: the best is at one of the points.
  std::vector<double> corners{gain.first, gain.last};
  for (const Frontier* frontier : {&baseline, &candidate}) {
    for (const auto& [x, y] : *frontier) {
      if (within(x)) corners.push_back(x);
    }
  }
  std::ranges::sort(corners);
  for (const double x : corners) {
    const Gain here = gain_at(baseline, candidate, x);
    if (gain.best_step.x == 0 || here.step > gain.best_step.step) gain.best_step = here;
    if (gain.best_interpolated.x == 0 || here.interpolated > gain.best_interpolated.interpolated)
      gain.best_interpolated = here;
  }
  std::vector<double> steps, lines;
  for (const double x : evenly(gain.first, gain.last, median_samples)) {
    const Gain here = gain_at(baseline, candidate, x);
    steps.push_back(here.step);
    lines.push_back(here.interpolated);
  }
  gain.median = {0, median(std::move(steps)), median(std::move(lines))};
  return gain;
}

ParetoGain pareto_gain(const StoredSweep& sweep, const ParetoAxes& axes,
                       std::span<const Setting> baseline, std::span<const Setting> candidate,
                       std::span<const double> places) {
  ParetoAxes within = axes;
  std::erase_if(within.by, [&](const std::string& pointer) {
    const auto compared = [&](const Setting& setting) { return setting.pointer == pointer; };
    return std::ranges::any_of(baseline, compared) || std::ranges::any_of(candidate, compared);
  });
  const Pareto before = pareto(points_with(sweep, baseline), within);
  const auto after = frontiers(pareto(points_with(sweep, candidate), within));
  ParetoGain result{before.group_names,
                    before.x_name,
                    before.y_name,
                    list_settings(baseline),
                    list_settings(candidate),
                    {}};
  for (const auto& [group, frontier] : frontiers(before)) {
    const auto found = after.find(group);
    if (found == after.end()) continue;
    result.groups.push_back(frontier_gain(frontier, found->second, places));
    result.groups.back().group = group;
  }
  if (result.groups.empty()) {
    throw ConfigError(
        "{} and {} have no group of --by in common, so there is no gain; group by less",
        result.baseline, result.candidate);
  }
  return result;
}

OrderedJson gain_json(const ParetoGain& gain) {
  const auto ratios = [](const Gain& of) {
    return OrderedJson{{"x", of.x}, {"step", of.step}, {"interpolated", of.interpolated}};
  };
  OrderedJson groups = OrderedJson::array();
  for (const GroupGain& group : gain.groups) {
    OrderedJson& row = groups.emplace_back(OrderedJson::object());
    for (std::size_t i = 0; i < gain.group_names.size(); ++i)
      row["group"][gain.group_names[i]] = group.group[i];
    if (group.first > group.last) continue;  // no common range
    row["first"] = group.first;
    row["last"] = group.last;
    row["at"] = OrderedJson::array();
    for (const Gain& at : group.at) row["at"].push_back(ratios(at));
    row["best_step"] = ratios(group.best_step);
    row["best_interpolated"] = ratios(group.best_interpolated);
    row["median"] = {{"step", group.median.step}, {"interpolated", group.median.interpolated}};
  }
  return {{"baseline", gain.baseline}, {"candidate", gain.candidate}, {"groups", groups}};
}

std::string gain_text(const ParetoGain& gain) {
  std::vector<std::string> head = gain.group_names;
  head.insert(head.end(), {gain.x_name + " <=", "step", "interpolated"});
  std::vector<std::string> summary_head = gain.group_names;
  summary_head.insert(summary_head.end(), {"common range", "step: most", "at", "median",
                                           "interpolated: most", "at", "median"});
  std::vector<std::vector<std::string>> rows, summary;
  for (const GroupGain& group : gain.groups) {
    std::vector<std::string> names;
    for (const Json& value : group.group) names.push_back(setting_cell(value));
    for (const Gain& at : group.at) {
      auto& row = rows.emplace_back(names);
      row.insert(row.end(),
                 {number_text(at.x), number_text(at.step), number_text(at.interpolated)});
    }
    auto& row = summary.emplace_back(names);
    if (group.first > group.last) {
      row.insert(row.end(), {"none", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    row.insert(row.end(),
               {fmt::format("{} to {}", number_text(group.first), number_text(group.last)),
                number_text(group.best_step.step), number_text(group.best_step.x),
                number_text(group.median.step), number_text(group.best_interpolated.interpolated),
                number_text(group.best_interpolated.x), number_text(group.median.interpolated)});
  }
  const std::size_t settings = gain.group_names.size();
  return fmt::format("{}\n{}\n{}",
                     wrapped(fmt::format("{} of {} over that of {}, at equal {}", gain.y_name,
                                         gain.candidate, gain.baseline, gain.x_name)),
                     narrow_table(std::move(head), std::move(rows), settings),
                     narrow_table(std::move(summary_head), std::move(summary), settings));
}

}  // namespace moesim
